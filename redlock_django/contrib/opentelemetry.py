"""OpenTelemetry: the counters of this process as observable instruments, and its locks as spans.

Call `observe()` and `trace()` once in each process after the SDK is set up; with a server that
forks, in its post-fork hook. Only the API package is required. Attributes of metrics are
`redlock.using` and, for masters, `redlock.master`. A resource is an attribute of spans only,
because the number of resources is unbounded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from redlock_django.backends.redis.backend import RedlockBackend
from redlock_django.engine.errors import NotAcquired, StoreUnavailable
from redlock_django.engine.quorum import quorum
from redlock_django.engine.validity import RedlockLease
from redlock_django.locking import reports
from redlock_django.locking.reports import MasterCounts, counter_types, counters
from redlock_django.locking.services import locks

try:
    from opentelemetry import context
    from opentelemetry.metrics import CallbackOptions, Meter, Observation, get_meter
    from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer, get_tracer
except ImportError as error:
    raise ImportError(
        "redlock_django.contrib.opentelemetry needs opentelemetry-api: "
        "pip install 'redlock-django[opentelemetry]'"
    ) from error

Callback = Callable[[CallbackOptions], Iterator[Observation]]


def observe(meter: Meter | None = None) -> None:
    """Create an instrument for each counter of `counters.Counts`, and two for the masters.

    They are `redlock.acquired` and so on, `redlock.master.errors` and `redlock.master.up`.
    `meter` defaults to one of the global provider. Reading them sends nothing to the masters and
    does not slow down locks.
    """
    meter = meter or get_meter("redlock_django")
    for name, counter in counter_types().items():
        meter.create_observable_counter(
            f"redlock.{name}",
            [_number(name)],
            unit=counter.unit,
            description=counter.description,
        )
    meter.create_observable_counter(
        "redlock.master.errors",
        [_of_masters(lambda master: master.errors)],
        unit="{error}",
        description="Lost connections and failed attempts to connect",
    )
    meter.create_observable_gauge(
        "redlock.master.up",
        [_of_masters(lambda master: int(not master.down))],
        description="0 if the last attempt to reach the master failed, else 1",
    )


def _number(name: str) -> Callback:
    def ask(options: CallbackOptions) -> Iterator[Observation]:
        for alias in locks:
            yield Observation(getattr(counters[alias], name), {"redlock.using": alias})

    return ask


def _of_masters(value: Callable[[MasterCounts], int]) -> Callback:
    def ask(options: CallbackOptions) -> Iterator[Observation]:
        for alias in locks:
            for name, master in counters[alias].masters.items():
                about = {"redlock.using": alias, "redlock.master": name}
                yield Observation(value(master), about)

    return ask


def trace(tracer: Tracer | None = None) -> None:
    """Create spans for the locks of this process: acquire, wait, hold and release.

    `tracer` defaults to one of the global provider; a second call replaces the first one's. A span
    is created when it ends, and all spans of a lock are children of the span in which the lock was
    acquired, also if another task or thread releases it. Spans are not created for
    `transaction_lock`.
    """
    untrace()
    reports.observers.append(_Spans(tracer or get_tracer("redlock_django")))


def untrace() -> None:
    """Stop creating spans."""
    reports.observers[:] = [one for one in reports.observers if not isinstance(one, _Spans)]


class _Spans:
    """Creates the spans of a lock from its events."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        # For each held lease, the context in which it was acquired, and the moment.
        self._held: WeakKeyDictionary[reports.ReportedLease, tuple[context.Context, int]] = (
            WeakKeyDictionary()
        )

    def acquired(self, held_lease: reports.ReportedLease) -> None:
        lease, now = held_lease.lease, time.time_ns()
        asked = now - _ns(held_lease.backend.clock() - held_lease.acquired_at + lease.waited)
        around = context.get_current()
        self._held[held_lease] = around, now
        about = {**_about_lease(held_lease), **_votes(held_lease), "redlock.outcome": "acquired"}
        self._acquire(around, asked, now, lease.waited, lease.attempts, about)

    def refused(self, error: NotAcquired, using: str, resources: tuple[str, ...]) -> None:
        now = time.time_ns()
        unavailable = isinstance(error, StoreUnavailable)
        about = {
            "redlock.using": using,
            "redlock.resources": resources,
            "redlock.outcome": "unavailable" if unavailable else "refused",
            "redlock.masters": len(error.tally),
            "redlock.answers": [f"{name}: {answer}" for name, answer in error.tally.items()],
        }
        # That another client holds the lock is no error.
        problem = str(error) if unavailable else ""
        asked = now - _ns(max(error.took, error.waited))
        self._acquire(
            context.get_current(), asked, now, error.waited, error.attempts, about, problem
        )

    def released(self, held_lease: reports.ReportedLease, held: float, freed: bool | None) -> None:
        now = time.time_ns()
        began = now - _ns(held_lease.backend.clock() - held_lease.released_at)
        around, granted = self._begin_of(held_lease)
        about = _about_lease(held_lease)
        self._span("hold", around, granted, began, {**about, "redlock.outcome": "released"})
        outcome = "confirmed" if freed else "not confirmed"
        self._span("release", around, began, now, {**about, "redlock.outcome": outcome})

    def lost(self, held_lease: reports.ReportedLease, held: float, reason: str) -> None:
        around, granted = self._begin_of(held_lease)
        # Perhaps reported by the thread for signals, so some time after the loss.
        ended = time.time_ns() - _ns(held_lease.held_seconds() - held)
        about = {**_about_lease(held_lease), "redlock.outcome": "lost"}
        self._span("hold", around, granted, ended, about, reason)

    def _begin_of(self, held_lease: reports.ReportedLease) -> tuple[context.Context, int]:
        """Return the context in which a lease was acquired, and when it was granted."""
        known = self._held.pop(held_lease, None)
        if known is None:  # it was acquired before `trace()` was called
            return context.get_current(), time.time_ns() - _ns(held_lease.held_seconds())
        return known

    def _acquire(
        self,
        around: context.Context,
        asked: int,
        now: int,
        waited: float,
        attempts: int,
        about: Mapping[str, Any],
        problem: str = "",
    ) -> None:
        if attempts:
            about = {**about, "redlock.attempts": attempts}
        if waited:
            self._span("wait", around, asked, asked + _ns(waited), about, problem)
        self._span("acquire", around, asked + _ns(waited), now, about, problem)

    def _span(
        self,
        name: str,
        around: context.Context,
        began: int,
        ended: int,
        about: Mapping[str, Any],
        problem: str = "",
    ) -> None:
        remote = name in ("acquire", "release")
        span = self._tracer.start_span(
            f"redlock {name}",
            context=around,
            kind=SpanKind.CLIENT if remote else SpanKind.INTERNAL,
            attributes=about,
            start_time=began,
        )
        if problem:
            span.set_status(Status(StatusCode.ERROR, problem))
        span.end(end_time=max(began, ended))


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def _about_lease(held_lease: reports.ReportedLease) -> dict[str, Any]:
    lease = held_lease.lease
    slot = {"redlock.slot": lease.slot} if lease.limit > 1 else {}
    return {
        "redlock.using": held_lease.backend.alias,
        "redlock.resources": lease.names,
        "redlock.fingerprint": lease.fingerprint,
        **slot,
    }


def _votes(held_lease: reports.ReportedLease) -> dict[str, int]:
    """Return how many masters there are, must agree, and had granted the lock when it was won."""
    lease, backend = held_lease.lease, held_lease.backend
    if not (isinstance(lease, RedlockLease) and isinstance(backend, RedlockBackend)):
        return {}
    masters = backend.deployment.masters
    return {
        "redlock.masters": masters,
        "redlock.quorum": quorum(masters),
        "redlock.granted": lease.granted,
    }

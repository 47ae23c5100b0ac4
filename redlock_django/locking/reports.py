"""Reports: what happens to locks and servers is counted, logged, observed and signalled here.

`counters["default"]` returns a snapshot of the counters of one alias. They start at 0 when the
process starts and only grow; a forked child starts at 0. They count the actions of this process,
not the locks on the masters: add them up over all processes.

Resource names have been checked before, so they cannot forge a log line. Tokens never appear,
only their fingerprints.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, NamedTuple, Protocol

from django.dispatch import Signal

from redlock_django.backends.base import BaseBackend
from redlock_django.engine.errors import NotAcquired, StoreUnavailable
from redlock_django.engine.validity import Lease
from redlock_django.locking.signal_thread import signal_thread
from redlock_django.signals import (
    asend,
    lock_acquired,
    lock_lost,
    lock_refused,
    lock_released,
    master_down,
    master_up,
    request_replayed,
    send,
)

logger = logging.getLogger("redlock_django")


class Event(NamedTuple):
    """How an event is reported: the level and the text of its log line, its counter, its signal.

    `name` is the method of an `Observer` that is called with it.
    """

    name: str
    level: int
    text: str
    counter: str
    signal: Signal


ACQUIRED = Event(
    "acquired", logging.DEBUG,
    "redlock %(resource)s: acquired by %(fingerprint)s after %(waited).3f s",
    "acquired", lock_acquired,
)  # fmt: skip
REFUSED = Event(
    "refused", logging.DEBUG,
    "redlock %(resource)s: not acquired: %(error)s",
    "refused", lock_refused,
)  # fmt: skip
UNAVAILABLE = REFUSED._replace(level=logging.ERROR, counter="unavailable")
PROCEEDED = UNAVAILABLE._replace(
    text="redlock %(resource)s: no quorum, continuing WITHOUT a lock (ON_UNAVAILABLE): %(error)s"
)
RELEASED = Event(
    "released", logging.DEBUG,
    "redlock %(resource)s: released by %(fingerprint)s after %(held).3f s%(unconfirmed)s",
    "released", lock_released,
)  # fmt: skip
HANDED_ON = RELEASED._replace(text=RELEASED.text.replace("released", "handed on"))
LOST = Event(
    "lost", logging.WARNING,
    "redlock %(resource)s: the lock was lost: %(reason)s",
    "lost", lock_lost,
)  # fmt: skip

_LOGGED = ("using", "fingerprint", "waited", "held", "reason")
"""The arguments of a signal that a log record has as attributes, as it has `resource`."""


def _counter(description: str, unit: str = "{lock}") -> Any:
    return field(default=0, metadata={"description": description, "unit": unit})


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """A snapshot of the counters of one alias; `counter_types` describes them.

    `masters` maps the names of the masters, in the order of the settings, to their counts. It is
    empty until the alias is used for the first time.
    """

    acquired: int = _counter("Locks acquired")
    refused: int = _counter("Locks refused because another holder had them")
    unavailable: int = _counter("Locks not acquired because too few servers could be reached")
    waited: int = _counter(
        "Locks that were waited for between attempts, whether acquired or refused in the end"
    )
    waited_seconds: float = _counter(
        "Seconds from the first to the last attempt of those locks", "s"
    )
    released: int = _counter("Locks released while they were still held")
    held_seconds: float = _counter("Seconds that locks were held until released or lost", "s")
    lost: int = _counter("Locks lost before they were released")
    released_late: int = _counter("Locks that were already lost when their holder released them")
    forced: int = _counter("Locks of other holders that this process released by force")
    replayed: int = _counter("Requests answered from an idempotency record", "{request}")
    conflicted: int = _counter(
        "Requests refused because the first request with their key was running", "{request}"
    )
    mismatched: int = _counter(
        "Requests refused because their key was used for a different request", "{request}"
    )
    uncertain: int = _counter(
        "Requests refused because the outcome of the first request is not known", "{request}"
    )
    masters: Mapping[str, MasterCounts] = field(default_factory=dict)


class CounterType(NamedTuple):
    """The description of a counter for metrics, and its unit as OpenTelemetry writes it."""

    description: str
    unit: str


def counter_types() -> dict[str, CounterType]:
    """Return every counter by name."""
    return {one.name: CounterType(**one.metadata) for one in fields(Counts) if one.metadata}


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterCounts:
    """The condition of one master as this process has seen it.

    `errors` counts lost links and failed attempts to connect, not reconnects that worked at once.
    `down` is True if the master is unreachable now, as far as this process knows.
    """

    errors: int = 0
    down: bool = False


class Counters:
    """The counters of all aliases that this process has used."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        # Reentrant: a finalizer that runs meanwhile may notice the loss of a lock. See
        # docs/contributing/interrupts.md.
        self._mutex = threading.RLock()
        self._numbers = _Numbers()
        self._masters: dict[str, dict[str, MasterCounts]] = {}

    def __getitem__(self, alias: str) -> Counts:
        """Return a snapshot of an alias; raise InvalidRedlock if there is no such alias."""
        with self._mutex:
            if alias in self._numbers:
                numbers: dict[str, Any] = dict(self._numbers[alias])
                return Counts(**numbers, masters=dict(self._masters.get(alias, {})))
        from redlock_django.conf.settings import load  # not above: counting needs no settings

        load(alias)
        return Counts()

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._numbers))

    # None of these takes a mutex, or calls anything: see docs/contributing/interrupts.md.

    def count(self, alias: str, name: str, amount: float = 1) -> None:
        """Add an amount to a counter of an alias, by its name in `Counts`."""
        self._numbers[alias][name] += amount

    def count_end(self, alias: str, name: str, held: float) -> None:
        """Count a lease that ended in this way, and the seconds for which it was held."""
        numbers = self._numbers[alias]
        numbers[name] += 1
        numbers["held_seconds"] += held

    def count_wait(self, alias: str, waited: float) -> None:
        """Count a lock that was waited for, and the seconds until its last attempt."""
        numbers = self._numbers[alias]
        numbers["waited"] += 1
        numbers["waited_seconds"] += waited

    def set_masters(self, alias: str, masters: Iterable[str]) -> None:
        """Set the names of the masters of an alias; known masters keep their counts."""
        with self._mutex:
            _ = self._numbers[alias]  # creates the entry, so that __iter__ yields the alias
            known = self._masters.get(alias, {})
            self._masters[alias] = {name: known.get(name, MasterCounts()) for name in masters}

    def set_master_state(self, alias: str, name: str, *, up: bool) -> bool:
        """Record that a master is up or failed; return whether its state changed."""
        with self._mutex:
            masters = self._masters.setdefault(alias, {})
            before = masters.get(name, MasterCounts())
            errors = before.errors + (not up)
            masters[name] = MasterCounts(errors=errors, down=not up)
            return before.down is up


class _Numbers(dict[str, defaultdict[str, float]]):
    """The numbers of each alias by name; an alias or a name is added when it is first read."""

    def __missing__(self, alias: str) -> defaultdict[str, float]:
        return self.setdefault(alias, defaultdict(int))  # another thread may be quicker


counters = Counters()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=counters._reset)


class ReportedLease(Protocol):
    """The data about a lease that an event reports. `locking.lease.HeldLease` is one."""

    backend: BaseBackend
    lease: Lease
    sender: type
    holder: Mapping[str, str]
    acquired_at: float
    released_at: float
    handed: Lease | None

    def held_seconds(self) -> float:
        """Return the seconds since the lease was acquired."""


class Observer(Protocol):
    """An object whose methods are called at once with each event of a lock of this process.

    They run in the thread or loop of the caller, so they must be quick, and must not use locks. A
    loss that the renewal thread notices is reported from the thread for signals.
    """

    def acquired(self, held_lease: ReportedLease) -> None:
        """Note that a lock was acquired."""

    def refused(self, error: NotAcquired, using: str, resources: tuple[str, ...]) -> None:
        """Note that a lock was not acquired."""

    def released(self, held_lease: ReportedLease, held: float, freed: bool | None) -> None:
        """Note that a lock was released, which began at `released_at`; the rest as in signals."""

    def lost(self, held_lease: ReportedLease, held: float, reason: str) -> None:
        """Note that a lock was lost."""


observers: list[Observer] = []
"""Tools that need more than signals: the lease itself, its moments, and the caller's context."""


def acquired(held_lease: ReportedLease) -> None:
    """Report that a lock was acquired."""
    alias, waited = held_lease.backend.alias, held_lease.lease.waited
    counters.count(alias, ACQUIRED.counter)
    if waited:
        counters.count_wait(alias, waited)
    if _is_heard(ACQUIRED):
        about = {**_about_lease(held_lease), "waited": waited}
        _log(ACQUIRED, about)
        _publish(ACQUIRED, (held_lease,), about)


def refused(
    error: NotAcquired,
    sender: type,
    using: str,
    resources: tuple[str, ...],
    holder: Mapping[str, str],
    proceed: bool,
) -> None:
    """Report that a lock was not acquired; `proceed` is True if the caller continues without it."""
    event = REFUSED
    if isinstance(error, StoreUnavailable):
        event = PROCEEDED if proceed else UNAVAILABLE
    counters.count(using, event.counter)
    if error.waited:
        counters.count_wait(using, error.waited)
    if _is_heard(event):
        about = {
            "sender": sender, "using": using, "resources": resources, "holder": holder,
            "error": error, "waited": error.waited,
        }  # fmt: skip
        _log(event, about, resource=error.resource, error=error)
        _publish(event, (error, using, resources), {**about, "reason": str(error)})


def released(held_lease: ReportedLease, freed: bool | None, send: Callable[..., Any] = send) -> Any:
    """Report the release of a lock that was held; `freed` is None if it is not confirmed yet.

    Returns what `send` returned, None if the signal has no receiver.
    """
    held = held_lease.released_at - held_lease.acquired_at
    if held < 0:
        held = 0.0
    counters.count_end(held_lease.backend.alias, RELEASED.counter, held)
    event = RELEASED if held_lease.handed is None else HANDED_ON
    if not _is_heard(event):
        return None
    about = {**_about_lease(held_lease), "held": held}
    _log(event, about, unconfirmed="" if freed else ", not confirmed")
    return _publish(event, (held_lease, held, freed), {**about, "freed": freed}, send)


async def areleased(held_lease: ReportedLease, freed: bool | None) -> None:
    """Report as `released` does, and wait for all receivers: the loop may end right after this."""
    if (sending := released(held_lease, freed, asend)) is not None:
        await sending


def released_late(held_lease: ReportedLease) -> None:
    """Report that a holder released a lock that it had already lost."""
    counters.count(held_lease.backend.alias, "released_late")


def lost(held_lease: ReportedLease, reason: str) -> None:
    """Report that a lock was lost before it was released."""
    held = held_lease.held_seconds()
    counters.count_end(held_lease.backend.alias, LOST.counter, held)
    about = {**_about_lease(held_lease), "held": held, "reason": reason}
    _log(LOST, about)
    if observers or LOST.signal.receivers:
        signal_thread.run(partial(_publish, LOST, (held_lease, held, reason), about))


def server(using: str, is_master: bool, name: str, up: bool, reason: str) -> None:
    """Report that a server failed or is back: once for each outage, whichever link noticed it."""
    if not counters.set_master_state(using, name, up=up):
        return
    extra = {"master": name, "using": using}
    if up:
        word, why = "master" if is_master else "server", f" ({reason})" if reason else ""
        logger.info("redlock %s %s is back%s", word, name, why, extra=extra)
    elif not is_master:  # of a master, the wire has logged it
        logger.warning("redlock server %s failed: %s", name, reason, extra=extra)
    signal = master_up if up else master_down
    send(signal, sender=BaseBackend, using=using, master=name, reason=reason)


def replayed(using: str, sender: type, about: Mapping[str, Any]) -> None:
    """Report a request that was answered from the record of an earlier one."""
    counters.count(using, "replayed")
    if request_replayed.receivers:
        send(request_replayed, sender=sender, using=using, **about)


def _is_heard(event: Event) -> bool:
    return bool(observers or event.signal.receivers or logger.isEnabledFor(event.level))


def _log(event: Event, about: Mapping[str, Any], **values: Any) -> None:
    """Write the log line of an event; `values` are those of its text that no signal has."""
    if logger.isEnabledFor(event.level):
        extra = {name: about[name] for name in _LOGGED if name in about}
        extra["resource"] = values.pop("resource", None) or ", ".join(about["resources"])
        logger.log(event.level, event.text, {**extra, **values}, extra=extra)


def _publish(
    event: Event,
    subject: tuple[Any, ...],
    about: Mapping[str, Any],
    send: Callable[..., Any] = send,
) -> Any:
    """Call the observers with the subject of an event, and send its signal with all about it."""
    for observer in observers:
        try:
            getattr(observer, event.name)(*subject)
        except Exception:
            logger.exception("redlock: an observer of locks failed: %r", observer)
    return send(event.signal, **about) if event.signal.receivers else None


def _about_lease(held_lease: ReportedLease) -> dict[str, Any]:
    return {
        "sender": held_lease.sender,
        "using": held_lease.backend.alias,
        "resources": held_lease.lease.names,
        "fingerprint": held_lease.lease.fingerprint,
        "holder": held_lease.holder,
    }

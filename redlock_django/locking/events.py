"""Events of locks and masters: each is counted, logged, observed and signalled here.

Resource names have been checked before, so they cannot forge a log line. Tokens never appear,
only their fingerprints.

The renewal thread sends no signals itself, so that no receiver delays a renewal. A receiver may be
slow, block for ever or raise SystemExit: the `SignalThread` calls it, and others wait in a queue.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from django.dispatch import Signal

from redlock_django.backends.base import BaseBackend
from redlock_django.engine.errors import NotAcquired, StoreUnavailable
from redlock_django.engine.validity import Lease
from redlock_django.locking.counters import counters
from redlock_django.locking.thread_state import reset_with_threads
from redlock_django.signals import (
    asend,
    lock_acquired,
    lock_lost,
    lock_refused,
    lock_released,
    master_down,
    master_up,
    send,
)

logger = logging.getLogger("redlock_django")


class ReportedLease(Protocol):
    """The data about a lease that an event reports. `locking.held_lease.HeldLease` is one."""

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


def _observe(event: str, *arguments: Any) -> None:
    for observer in observers:
        try:
            getattr(observer, event)(*arguments)
        except Exception:
            logger.exception("redlock: an observer of locks failed: %r", observer)


def acquired(held_lease: ReportedLease) -> None:
    """Report that a lock was acquired."""
    alias, waited = held_lease.backend.alias, held_lease.lease.waited
    counters.count(alias, "acquired")
    if waited:
        counters.count_wait(alias, waited)
    if logger.isEnabledFor(logging.DEBUG):
        logger.debug(
            "redlock %s: acquired by %s after %.3f s",
            ", ".join(held_lease.lease.names),
            held_lease.lease.fingerprint,
            waited,
            extra={**_log_fields(held_lease), "waited": waited},
        )
    if observers:
        _observe("acquired", held_lease)
    if lock_acquired.receivers:
        send(lock_acquired, **_signal_arguments(held_lease), waited=waited)


def refused(
    error: NotAcquired,
    sender: type,
    using: str,
    resources: tuple[str, ...],
    holder: Mapping[str, str],
    proceed: bool,
) -> None:
    """Report that a lock was not acquired; `proceed` is True if the caller continues without it."""
    unavailable = isinstance(error, StoreUnavailable)
    counters.count(using, "unavailable" if unavailable else "refused")
    if error.waited:
        counters.count_wait(using, error.waited)
    level = logging.ERROR if unavailable else logging.DEBUG
    if logger.isEnabledFor(level):
        logger.log(
            level,
            "redlock %s: no quorum, continuing WITHOUT a lock (ON_UNAVAILABLE): %s"
            if proceed
            else "redlock %s: not acquired: %s",
            error.resource,
            error,
            extra={"resource": error.resource, "using": using, "waited": error.waited},
        )
    if observers:
        _observe("refused", error, using, resources)
    if lock_refused.receivers:
        send(
            lock_refused,
            sender=sender,
            using=using,
            resources=resources,
            holder=holder,
            reason=str(error),
            error=error,
            waited=error.waited,
        )


def released(held_lease: ReportedLease, freed: bool | None, send: Callable[..., Any] = send) -> Any:
    """Report the release of a lock that was held; `freed` is None if it is not confirmed yet.

    Returns what `send` returned, None if the signal has no receiver.
    """
    held = held_lease.released_at - held_lease.acquired_at
    if held < 0:
        held = 0.0
    counters.count_end(held_lease.backend.alias, "released", held)
    if logger.isEnabledFor(logging.DEBUG):
        logger.debug(
            "redlock %s: %s by %s after %.3f s%s",
            ", ".join(held_lease.lease.names),
            "released" if held_lease.handed is None else "handed on",
            held_lease.lease.fingerprint,
            held,
            "" if freed else ", not confirmed",
            extra={**_log_fields(held_lease), "held": held},
        )
    if observers:
        _observe("released", held_lease, held, freed)
    if not lock_released.receivers:
        return None
    return send(lock_released, **_signal_arguments(held_lease), held=held, freed=freed)


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
    counters.count_end(held_lease.backend.alias, "lost", held)
    logger.warning(
        "redlock %s: the lock was lost: %s",
        ", ".join(held_lease.lease.names),
        reason,
        extra={**_log_fields(held_lease), "held": held, "reason": reason},
    )
    if observers:
        signal_thread.run(partial(_observe, "lost", held_lease, held, reason))
    if lock_lost.receivers:
        signal_thread.send(lock_lost, **_signal_arguments(held_lease), held=held, reason=reason)


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


def _log_fields(held_lease: ReportedLease) -> dict[str, Any]:
    return {
        "resource": ", ".join(held_lease.lease.names),
        "using": held_lease.backend.alias,
        "fingerprint": held_lease.lease.fingerprint,
    }


def _signal_arguments(held_lease: ReportedLease) -> dict[str, Any]:
    return {
        "sender": held_lease.sender,
        "using": held_lease.backend.alias,
        "resources": held_lease.lease.names,
        "fingerprint": held_lease.lease.fingerprint,
        "holder": held_lease.holder,
    }


logger = logging.getLogger("redlock_django")

MAX_PENDING = 1000  # signals that wait for slow receivers; further ones are only logged


class SignalThread:
    """Sends signals in order, from a thread that is started with the first of them."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._pending: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._mutex = threading.RLock()  # a finalizer inside may notice another loss
        self._deferring = threading.local()

    def defer_in_this_thread(self) -> None:
        """Send the signals of the calling thread from the signal thread, from now on."""
        self._deferring.always = True

    def send(self, signal: Signal, **arguments: Any) -> None:
        """Send a signal as `signals.send` does, or queue it if the calling thread defers it."""
        self.run(partial(send, signal, **arguments))

    def run(self, report: Callable[[], None]) -> None:
        """Call a function, or queue it as `send` does a signal."""
        if not getattr(self._deferring, "always", False):
            report()
        elif self._pending.qsize() >= MAX_PENDING:
            logger.error(
                "redlock: a signal was not sent, because %d others wait for slow receivers",
                MAX_PENDING,
            )
        else:
            self._pending.put(report)
            self.ensure_running()

    def ensure_running(self) -> bool:
        """Start the thread if signals wait and none sends them; return False if it cannot start."""
        with self._mutex:
            running = self._thread is not None and self._thread.is_alive()
            if running or self._pending.empty():
                return True
            thread = threading.Thread(target=self._run, name="redlock-signals", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the process may have no more threads now
                return False
            self._thread = thread
            return True

    def _run(self) -> None:
        while True:
            try:
                self._pending.get()()
            except BaseException:  # a receiver called sys.exit(): the others still get theirs
                with suppress(BaseException):
                    logger.exception("redlock: a receiver of a signal ended its thread")


signal_thread = SignalThread()
reset_with_threads(signal_thread._reset)

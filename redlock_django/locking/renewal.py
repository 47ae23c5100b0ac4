"""The renewal service: it extends held leases in time and notices those that are lost.

One thread serves all locks of the process, those of its event loops, too. It has a dict of the
leases and scans all of them when it looks, which takes a millisecond for 10,000. The engine decides
when an extension is due (`engine.renewal`). An expired lease is noticed by the local clock, and so
even if no master can be reached. A forked child starts with an empty service: see
docs/contributing/interrupts.md.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from operator import itemgetter

from redlock_django.backends.base import BaseBackend
from redlock_django.engine.validity import Lease, LeaseState
from redlock_django.locking.lease import HeldLease
from redlock_django.locking.signal_thread import signal_thread
from redlock_django.locking.thread_state import reset_with_threads
from redlock_django.wire.clock import clock
from redlock_django.wire.wakeup import Wakeup

logger = logging.getLogger("redlock_django")

BATCH = 500  # leases that are extended together: about 50 ms of work for this process
SCAN_INTERVAL = 5e-6  # seconds between two scans for each lease: they take a fiftieth of the time
LINGER = 0.1  # seconds until the thread looks again after it was woken, at most
PAUSE_AFTER_FAILURE = 0.05  # seconds that the thread sleeps after an error of its own
RETRY_SIGNALS = 1.0  # seconds after which the signal thread is started again if that failed
LONG_OVERDUE = 1.0  # seconds after which a thread that should have looked may have died


class Schedule:
    """The leases that the thread checks. Any thread may add one; that one does the rest.

    A lease leaves the dict when nothing refers to it any more, as after its release.
    """

    def __init__(self) -> None:
        self.wakes_at = math.inf
        """When the thread looks again by itself, by the clock of this process."""
        self._leases: dict[weakref.ref[HeldLease], None] = {}

    def add(self, held_lease: HeldLease) -> bool:
        """Check a lease from now on; return whether that is earlier than the thread would look."""
        # Removed by nothing else, and not by a function of ours, which a signal could interrupt.
        self._leases[weakref.ref(held_lease, self._leases.__delitem__)] = None
        backend, lease = held_lease.backend, held_lease.lease
        # Not after the moment of its first check, which takes longer to find.
        when = lease.started + lease.ttl / 3 if held_lease.renew else lease.until
        held_lease.check_at = when
        if backend.clock is not clock:
            when += clock() - backend.clock()
        return when < self.wakes_at

    def scan(self) -> tuple[list[HeldLease], float]:
        """Return the leases to check now, the latest first, and when to scan again, in seconds.

        These are at most BATCH. The time is infinite if there is no lease.
        """
        self.wakes_at = math.inf  # a lease that is added from here on wakes the thread
        began = clock()
        due, left = [], math.inf
        backend, now = None, 0.0  # the clocks of backends differ
        for reference in self._leases.copy():
            held_lease = reference()
            if held_lease is None or held_lease.released or held_lease.loss_reason:
                continue
            if held_lease.backend is not backend:
                backend = held_lease.backend
                now = backend.clock()
            if (seconds := held_lease.check_at - now) <= 0:
                due.append((seconds, held_lease))
            elif seconds < left:
                left = seconds
        if due or left < math.inf:
            left = max(0.0 if due else left, SCAN_INTERVAL * len(self._leases))
        self.wakes_at = began + left
        due.sort(key=itemgetter(0))
        return [held_lease for _, held_lease in due[:BATCH]], 0.0 if due[BATCH:] else left


class RenewalService:
    """Renews the leases that one process holds."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._schedule = Schedule()
        self._mutex = threading.RLock()
        self._wakeup = Wakeup()
        self._thread: threading.Thread | None = None

    def watch(self, held_lease: HeldLease) -> None:
        """Check a lease in time, until it ends or is garbage-collected.

        Raises RuntimeError if no thread is running and none can be started.
        """
        schedule = self._schedule
        # To ask the thread whether it is alive takes longer.
        if not clock() < schedule.wakes_at + LONG_OVERDUE < math.inf:
            with self._mutex:
                self._start()
        if schedule.add(held_lease):
            self._wakeup.wake()

    def ensure_running(self) -> None:
        """Start the thread again if it has died, as far as that is possible now."""
        if self._thread is not None and not self._thread.is_alive():
            with self._mutex, suppress(RuntimeError):
                self._start()

    def _start(self) -> None:
        """Start the thread if it is not running."""
        if self._thread is None or not self._thread.is_alive():
            thread = threading.Thread(target=self._run, name="redlock-renewal", daemon=True)
            thread.start()
            self._thread = thread  # not earlier: if the start fails, the next call retries

    def _run(self) -> None:
        signal_thread.defer_in_this_thread()
        was_woken = True
        while True:
            # Nothing may end this thread, not even SystemExit: other leases depend on it.
            try:
                due, left = self._schedule.scan()
                self._check_due(due)
                del due  # a lease that is released meanwhile is forgotten
                was_woken = self._sleep(left, was_woken)
            except BaseException:
                with suppress(BaseException):
                    logger.exception("redlock: the renewal thread failed, and continues")
                time.sleep(PAUSE_AFTER_FAILURE)

    def _sleep(self, left: float, was_woken: bool) -> bool:
        """Sleep until the next check is due; return whether a new lease has ended that."""
        if was_woken and left > LINGER:
            # Most locks are released at once: the next ones then need not wake the thread.
            left = LINGER
            self._schedule.wakes_at = clock() + left
        if not signal_thread.ensure_running():
            left = min(left, RETRY_SIGNALS)
        return self._wakeup.wait(None if left == math.inf else left)

    def _check_due(self, due: list[HeldLease]) -> None:
        """Extend these leases together or report their loss, and plan their next checks."""
        try:
            asked: dict[BaseBackend, list[tuple[HeldLease, float, int]]] = {}
            for held_lease in due:
                with _survived([held_lease]):
                    if (ttl := held_lease.due_ttl()) is not None:
                        extension = held_lease, ttl, held_lease.hand_ons
                        asked.setdefault(held_lease.backend, []).append(extension)
            for backend, extensions in asked.items():
                with _survived([held_lease for held_lease, *_ in extensions]):
                    results = backend.extend_all([(held.lease, ttl) for held, ttl, _ in extensions])
                    for (held_lease, _, hand_ons), result in zip(extensions, results, strict=True):
                        with _survived([held_lease]):
                            held_lease.apply_extension(*_value(result), hand_ons)
        finally:
            for held_lease in due:
                held_lease.check_at = held_lease.next_check()


@contextmanager
def _survived(held_leases: list[HeldLease]) -> Iterator[None]:
    """Log whatever is raised, even SystemExit, and have these leases extended again soon."""
    try:
        yield
    except BaseException:
        for held_lease in held_leases:
            held_lease.state = LeaseState.UNKNOWN
        logger.exception("redlock: an extension failed")


def _value(result: tuple[LeaseState, Lease] | Exception) -> tuple[LeaseState, Lease]:
    if isinstance(result, Exception):
        raise result
    return result


renewal_service = RenewalService()
reset_with_threads(renewal_service._reset)

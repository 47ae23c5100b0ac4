"""The renewal service: it extends held leases in time and notices those that are lost.

One thread serves the locks that threads hold; timers of the event loop serve the locks that
tasks hold. The engine decides when an extension is due (`engine.renewal`). An expired lease is
noticed by the local clock, and so even if no master can be reached. A forked child starts with an
empty service: see docs/explanation/interrupts.md.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import math
import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from operator import itemgetter
from typing import NamedTuple

from redlock_django.backends.base import BaseBackend
from redlock_django.engine.validity import Lease, LeaseState
from redlock_django.locking.held_lease import HeldLease
from redlock_django.locking.signal_thread import signal_thread
from redlock_django.wire.clock import clock
from redlock_django.wire.wakeup import Wakeup

logger = logging.getLogger("redlock_django")


BATCH = 500  # leases that are extended together: about 50 ms of work for this process
MIN_SCHEDULED = 128  # checks added until those of ended leases are removed, at least
PAUSE_AFTER_FAILURE = 0.05  # seconds that the thread sleeps after an error of its own
RETRY_SIGNALS = 1.0  # seconds after which the signal thread is started again if that failed


class Check(NamedTuple):
    """When to check a held lease next, by its backend's clock; `order` breaks ties."""

    when: float
    order: int
    held_lease: weakref.ref[HeldLease]


class RenewalService:
    """Renews the leases that one process holds."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        # One heap for each backend, because the clocks of backends differ.
        self._checks: dict[BaseBackend, list[Check]] = {}
        self._tasks: set[asyncio.Task[None]] = set()  # a loop keeps only weak references
        self._until_cleanup = MIN_SCHEDULED
        self._wakes_at = math.inf  # when the thread wakes up by itself
        self._order = count()
        self._mutex = threading.RLock()
        self._wakeup = Wakeup()
        self._thread: threading.Thread | None = None

    # Leases that threads acquired.

    def watch_in_thread(self, held_lease: HeldLease) -> None:
        """Check a lease in time from the renewal thread, until it ends or is garbage-collected.

        Raises RuntimeError if no thread is running and none can be started.
        """
        with self._mutex:
            when = self._schedule(held_lease)
            backend = held_lease.backend
            if not self._start() and clock() + max(0.0, when - backend.clock()) < self._wakes_at:
                self._wakeup.wake()

    def ensure_running(self) -> None:
        """Start the renewal thread again if it has died, as far as that is possible now."""
        if self._thread is not None and not self._thread.is_alive():
            with self._mutex, suppress(RuntimeError):
                self._start()

    def _start(self) -> bool:
        """Start the thread if it is not running; return whether that was necessary."""
        if self._thread is not None and self._thread.is_alive():
            return False
        thread = threading.Thread(target=self._run, name="redlock-renewal", daemon=True)
        thread.start()
        self._thread = thread  # not earlier: if the start fails, the next call retries
        return True

    def _schedule(self, held_lease: HeldLease) -> float:
        """Add the next check of a lease to the heap, and return when it is due."""
        when = held_lease.next_check()
        check = Check(when, next(self._order), weakref.ref(held_lease))
        heapq.heappush(self._checks.setdefault(held_lease.backend, []), check)
        self._until_cleanup -= 1
        if self._until_cleanup <= 0:
            for checks in self._checks.values():
                checks[:] = sorted(filter(_is_needed, checks))  # a sorted list is a heap
            self._until_cleanup = max(MIN_SCHEDULED, sum(map(len, self._checks.values())))
        return when

    def _run(self) -> None:
        signal_thread.defer_in_this_thread()
        while True:
            # Nothing may end this thread, not even SystemExit: other leases depend on it.
            try:
                self._check_due(self._wait_for_due())
            except BaseException:
                with suppress(BaseException):
                    logger.exception("redlock: the renewal thread failed, and continues")
                time.sleep(PAUSE_AFTER_FAILURE)

    def _check_due(self, due: list[HeldLease]) -> None:
        """Extend these leases together or report their loss, and schedule their next checks."""
        try:
            asked: dict[BaseBackend, list[tuple[HeldLease, float]]] = {}
            for held_lease in due:
                with _survived([held_lease]):
                    if (ttl := held_lease.due_ttl()) is not None:
                        asked.setdefault(held_lease.backend, []).append((held_lease, ttl))
            for backend, extensions in asked.items():
                with _survived([held_lease for held_lease, _ in extensions]):
                    results = backend.extend_all([(held.lease, ttl) for held, ttl in extensions])
                    for (held_lease, _), result in zip(extensions, results, strict=True):
                        with _survived([held_lease]):
                            held_lease.apply_extension(*_value(result))
        finally:
            with self._mutex:
                for held_lease in due:
                    if not held_lease.ended:
                        self._schedule(held_lease)

    def _wait_for_due(self) -> list[HeldLease]:
        """Sleep until leases are due, and return them, at most BATCH."""
        while True:
            sent = signal_thread.ensure_running()
            with self._mutex:
                delays = {backend: self._delay(backend) for backend in self._checks}
                delay = min(delays.values(), default=None)
                # The delay of an ended lease still counts: then the thread need not be woken for
                # every one of many short locks, acquired one after the other.
                self._checks = dict(filter(itemgetter(1), self._checks.items()))
                self._wakes_at = math.inf if delay is None else clock() + max(0.0, delay)
                if delay is not None and delay <= 0:
                    if due := self._pop_due(sorted(delays, key=delays.__getitem__)):
                        return due
                    continue
            # Signals that no thread could be started for are tried again soon.
            self._wakeup.wait(delay if sent else min(delay or RETRY_SIGNALS, RETRY_SIGNALS))

    def _pop_due(self, backends: list[BaseBackend]) -> list[HeldLease]:
        """Remove the checks that are due from the heaps, and return their leases."""
        due: list[HeldLease] = []
        for backend in backends:
            checks, now = self._checks.get(backend, []), backend.clock()
            while checks and checks[0].when <= now and len(due) < BATCH:
                held_lease = heapq.heappop(checks).held_lease()
                if held_lease is not None and not held_lease.ended:
                    due.append(held_lease)
        return due

    def _delay(self, backend: BaseBackend) -> float:
        """Return the seconds until a backend's next check, and drop the checks of ended leases.

        If no lease is left, return the delay of the last one that was dropped.
        """
        checks, delay = self._checks[backend], 0.0
        while checks:
            held_lease, delay = checks[0].held_lease(), checks[0].when - backend.clock()
            if not (held_lease is None or held_lease.ended):
                break
            heapq.heappop(checks)
        return delay

    # Leases that tasks acquired.

    def watch_in_loop(self, held_lease: HeldLease) -> None:
        """Check a lease in time on the running loop, until it ends or is garbage-collected."""
        delay = max(0.0, held_lease.next_check() - held_lease.backend.clock())
        loop = asyncio.get_running_loop()
        held_lease.timer = loop.call_later(delay, self._start_task, weakref.ref(held_lease))

    def move_to_thread(self, held_lease: HeldLease) -> None:
        """Check a lease from the thread that was checked on a loop, which may end before it."""
        if held_lease.timer is not None:
            self.watch_in_thread(held_lease)  # first: if no thread can be started, the loop goes on
            held_lease.timer.cancel()
            held_lease.timer = None

    def _start_task(self, reference: weakref.ref[HeldLease]) -> None:
        held_lease = reference()
        if held_lease is None or held_lease.ended:
            return
        task = asyncio.get_running_loop().create_task(self._arun_once(held_lease))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _arun_once(self, held_lease: HeldLease) -> None:
        try:
            await held_lease.aextend_if_due()
        except Exception:
            logger.exception("redlock: an extension failed")
            held_lease.state = LeaseState.UNKNOWN
        if not held_lease.ended:
            self.watch_in_loop(held_lease)


def _is_needed(check: Check) -> bool:
    held_lease = check.held_lease()
    return held_lease is not None and not held_lease.ended


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
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=renewal_service._reset)

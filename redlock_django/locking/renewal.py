"""The renewal service: it extends held leases in time and notices those that are lost.

One thread serves the locks that threads hold; a timer of each event loop serves the locks that
its tasks hold. A `Schedule` says which leases to check next, and when. The engine decides when an
extension is due (`engine.renewal`). An expired lease is noticed by the local clock, and so even if
no master can be reached. A forked child starts with an empty service: see
docs/explanation/interrupts.md.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import logging
import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from typing import NamedTuple

from redlock_django.backends.base import BaseBackend
from redlock_django.engine.validity import Lease, LeaseState
from redlock_django.locking.held_lease import HeldLease
from redlock_django.locking.signal_thread import signal_thread
from redlock_django.locking.thread_state import reset_with_threads
from redlock_django.wire.clock import clock
from redlock_django.wire.wakeup import Wakeup

logger = logging.getLogger("redlock_django")

BATCH = 500  # leases that are extended together: about 50 ms of work for this process
PAUSE_AFTER_FAILURE = 0.05  # seconds that the thread sleeps after an error of its own
RETRY_SIGNALS = 1.0  # seconds after which the signal thread is started again if that failed
MOST_NEW = 1000  # leases added until they are sorted in, so that those that ended are dropped
LONG_OVERDUE = 1.0  # seconds after which a thread that should have looked may have died
MIN_SCHEDULED = 128  # checks sorted in until those of ended leases are removed, at least


class Check(NamedTuple):
    """When to check a held lease next, by its backend's clock; `order` breaks ties."""

    when: float
    order: int
    held_lease: weakref.ref[HeldLease]


class Schedule:
    """The leases that one thread or loop checks. Any thread may add one; that one does the rest.

    Most locks are released long before their first check. So a lease is only noted when it is
    added, and sorted in when the thread or loop looks: nearly all have ended by then.
    """

    def __init__(self) -> None:
        self.wakes_at = math.inf
        """When the thread or loop looks again by itself, by the clock of this process."""
        self._new: deque[tuple[float, weakref.ref[HeldLease]]] = deque()
        # One heap for each backend, because the clocks of backends differ.
        self._checks: dict[BaseBackend, list[Check]] = {}
        self._until_cleanup = MIN_SCHEDULED
        self._order = count()

    def add(self, held_lease: HeldLease, now: float) -> bool:
        """Note a lease; from `now` on, by the clock of the process, no other schedule checks it.

        Returns whether the thread or loop must look earlier than it would by itself.
        """
        held_lease.schedule = self
        lease = held_lease.lease
        # Not after the moment of its first check, which takes longer to find.
        when = lease.started + lease.ttl / 3 if held_lease.renew else lease.until
        if held_lease.backend.clock is not clock:
            when += now - held_lease.backend.clock()
        self._new.append((when, weakref.ref(held_lease)))
        return when < self.wakes_at or len(self._new) > MOST_NEW

    def sort(self, held_lease: HeldLease) -> None:
        """Sort a lease in by its next check."""
        check = Check(held_lease.next_check(), next(self._order), weakref.ref(held_lease))
        heapq.heappush(self._checks.setdefault(held_lease.backend, []), check)
        self._until_cleanup -= 1
        if self._until_cleanup <= 0:
            for checks in self._checks.values():
                checks[:] = sorted(filter(self._is_needed, checks))  # a sorted list is a heap
            self._until_cleanup = max(MIN_SCHEDULED, sum(map(len, self._checks.values())))

    def next_delay(self) -> float | None:
        """Sort new leases in; return the seconds until the next check, None if there is none.

        A lease that has ended still counts at first: then the thread need not be woken for every
        one of many short locks, acquired one after the other.
        """
        while True:
            ended = self._sort_new()
            now = clock()
            delays = [ended - now] if ended > now else []
            for backend in list(self._checks):
                if checks := self._needed(backend):
                    delays.append(checks[0].when - backend.clock())
                else:
                    del self._checks[backend]
            delay = min(delays, default=None)
            self.wakes_at = math.inf if delay is None else now + max(0.0, delay)
            if not self._new:  # a lease that is added from here on is compared with `wakes_at`
                return delay

    def pop_due(self, most: int) -> list[HeldLease]:
        """Remove the checks that are due, `most` at most, and return their leases."""
        late = {backend: c[0].when - backend.clock() for backend, c in self._checks.items() if c}
        due: dict[HeldLease, None] = {}
        for backend in sorted(late, key=late.__getitem__):
            now = backend.clock()
            while (checks := self._needed(backend)) and checks[0].when <= now and len(due) < most:
                if (held_lease := heapq.heappop(checks).held_lease()) is not None:
                    due[held_lease] = None
        return list(due)

    def _sort_new(self) -> float:
        """Sort new leases in; return when the last one of those that have ended was due, or 0."""
        ended = 0.0
        while self._new:
            when, reference = self._new[0]
            held_lease = reference()
            if held_lease is None or held_lease.ended:
                ended = when
            elif held_lease.schedule is self:
                self.sort(held_lease)
            self._new.popleft()  # last: an interrupt may have a lease sorted in twice, never lost
        return ended

    def _needed(self, backend: BaseBackend) -> list[Check]:
        """Return the checks of a backend; the first is that of a lease that must be checked."""
        checks = self._checks[backend]
        while checks and not self._is_needed(checks[0]):
            heapq.heappop(checks)
        return checks

    def _is_needed(self, check: Check) -> bool:
        held_lease = check.held_lease()
        return held_lease is not None and not held_lease.ended and held_lease.schedule is self


class RenewalService:
    """Renews the leases that one process holds."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._schedule = Schedule()
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopSchedule] = (
            weakref.WeakKeyDictionary()
        )
        self._tasks: set[asyncio.Task[None]] = set()  # a loop keeps only weak references
        self._mutex = threading.RLock()
        self._wakeup = Wakeup()
        self._thread: threading.Thread | None = None

    # Leases that threads acquired.

    def watch_in_thread(self, held_lease: HeldLease) -> None:
        """Check a lease in time from the renewal thread, until it ends or is garbage-collected.

        Raises RuntimeError if no thread is running and none can be started.
        """
        schedule, now = self._schedule, clock()
        # To ask the thread whether it is alive takes longer.
        if not now < schedule.wakes_at + LONG_OVERDUE < math.inf:
            with self._mutex:
                self._start()
        if schedule.add(held_lease, now):
            self._wakeup.wake()

    def ensure_running(self) -> None:
        """Start the renewal thread again if it has died, as far as that is possible now."""
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
            for held_lease in due:
                if not held_lease.ended:
                    self._schedule.sort(held_lease)

    def _wait_for_due(self) -> list[HeldLease]:
        """Sleep until leases are due, and return them, at most BATCH."""
        while True:
            sent = signal_thread.ensure_running()
            delay = self._schedule.next_delay()
            if delay is not None and delay <= 0:
                if due := self._schedule.pop_due(BATCH):
                    return due
                continue
            # Signals that no thread could be started for are tried again soon.
            self._wakeup.wait(delay if sent else min(delay or RETRY_SIGNALS, RETRY_SIGNALS))

    # Leases that tasks acquired.

    def watch_in_loop(self, held_lease: HeldLease) -> None:
        """Check a lease in time on the running loop, until it ends or is garbage-collected."""
        loop = asyncio.get_running_loop()
        schedule = self._loops.get(loop)
        if schedule is None:
            schedule = self._loops[loop] = _LoopSchedule()
        held_lease.context = contextvars.copy_context()
        if schedule.add(held_lease, clock()):
            self._set_timer(schedule)

    def move_to_thread(self, held_lease: HeldLease) -> None:
        """Check a lease of a loop from the renewal thread from now on: the loop may end first."""
        if held_lease.schedule is not self._schedule:
            self.watch_in_thread(held_lease)  # if no thread can be started, the loop goes on

    def _set_timer(self, schedule: _LoopSchedule) -> None:
        """Look again on the running loop when the next check is due; forget an earlier timer."""
        schedule.timers += 1
        delay = schedule.next_delay()
        if delay is not None:
            # Not the context of this task, which the timer outlives, and one for each timer: those
            # of two loops may run at the same moment, in two threads.
            asyncio.get_running_loop().call_later(
                max(0.0, delay),
                self._check_in_loop,
                schedule,
                schedule.timers,
                context=contextvars.Context(),
            )

    def _check_in_loop(self, schedule: _LoopSchedule, timer: int) -> None:
        if timer != schedule.timers:
            return  # another one was set for an earlier moment
        for held_lease in schedule.pop_due(BATCH):
            task = asyncio.get_running_loop().create_task(
                self._arun_once(held_lease), context=held_lease.context
            )
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._set_timer(schedule)

    async def _arun_once(self, held_lease: HeldLease) -> None:
        try:
            await held_lease.aextend_if_due()
        except Exception:
            logger.exception("redlock: an extension failed")
            held_lease.state = LeaseState.UNKNOWN
        schedule = self._loops.get(asyncio.get_running_loop())
        if schedule is not None and held_lease.schedule is schedule and not held_lease.ended:
            schedule.sort(held_lease)
            self._set_timer(schedule)


class _LoopSchedule(Schedule):
    """The schedule of one loop; `timers` counts its timers, of which only the last one counts.

    It keeps no timer, which would keep the loop alive.
    """

    timers = 0


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

"""The renewal service: it extends held leases in time and notices those that are lost.

One thread serves the locks that threads hold; a timer of each event loop serves the locks that
its tasks hold. The engine decides when an extension is due (`engine.renewal`). An expired lease is
noticed by the local clock, and so even if no master can be reached. A forked child starts with an
empty service: see docs/explanation/interrupts.md.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from redlock_django.backends.base import BaseBackend
from redlock_django.engine.validity import Lease, LeaseState
from redlock_django.locking.held_lease import HeldLease
from redlock_django.locking.renewal_schedule import LONG_OVERDUE, Schedule
from redlock_django.locking.signal_thread import signal_thread
from redlock_django.locking.thread_state import reset_with_threads
from redlock_django.wire.clock import clock
from redlock_django.wire.drivers.wakeup import Wakeup

logger = logging.getLogger("redlock_django")

BATCH = 500  # leases that are extended together: about 50 ms of work for this process
PAUSE_AFTER_FAILURE = 0.05  # seconds that the thread sleeps after an error of its own
RETRY_SIGNALS = 1.0  # seconds after which the signal thread is started again if that failed


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
        """Check a lease from the thread that was checked on a loop, which may end before it."""
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

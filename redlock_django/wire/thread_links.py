"""The links that all threads of a process share: one sends for all, and one reads for all.

Threads queue their rounds; the thread that has the mutex sends everything that is queued, in one
send for each master. If others were woken with it, it gives way to them first: they queue their
next rounds, too. One waiting thread at a time polls, and reads for all. A thread that stops waiting
passes the reading on to a thread that waits for answers or, if there is none, to one that waits to
be called. A tender thread reads the replies that no thread waits for any more.

No loop inside a `with` or `try` here ends in a condition: Python 3.12 and 3.13 handle signals on
the jump back from one, and an exception raised there skips the `finally`.
docs/explanation/interrupts.md explains this.
"""

from __future__ import annotations

import logging
import math
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from redlock_django.wire.clock import clock
from redlock_django.wire.exchange import Batch, Exchange
from redlock_django.wire.join import Joined, Unfit
from redlock_django.wire.links import Links
from redlock_django.wire.master import Master, discard
from redlock_django.wire.poller import Poller
from redlock_django.wire.waiters import Waiter
from redlock_django.wire.wakeup import Wakeup

logger = logging.getLogger("redlock_django")

Sleeper = Exchange | Batch | Waiter
"""A thread sleeps until one of these is decided, and until its time `until` at most."""
Sleepers = dict[Sleeper, None]
_is_decided = attrgetter("decided")


class ThreadLinks(Links):
    """The links of one process, and the threads that send and read on them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Only ever acquired by `with`: an interrupt cannot strike between acquiring it and being
        # certain to release it. Reentrant for finalizers alone, see `inside`.
        self._mutex = threading.RLock()
        # Whether a finalizer or signal handler interrupts this thread inside the mutex.
        self.inside: Callable[[], bool] = self._mutex._is_owned  # type: ignore[attr-defined]
        self._link_waits: dict[Wakeup, None] = {}
        self._queue: deque[Exchange] = deque()
        self._busy = False  # the thread that has the mutex will look at the queue again
        self._waiting: Sleepers = {}  # threads that sleep until a round is decided
        self._sleeping: Sleepers = {}  # and those that sleep until they are called
        self._reader: Sleeper | None = None
        self._reader_thread = 0  # the thread that reads, or was the last to
        self._poller = Poller()
        self._tender_wakeup = Wakeup()
        self._tender: threading.Thread | None = None
        # At the end, because other threads may use the links from there on.
        super().__init__(*args, **kwargs)

    # Sending.

    def _send(self, exchange: Exchange) -> None:
        self._queue.append(exchange)
        # If the busy thread is this one, which a finalizer interrupts, it sends this as well.
        if self._busy or self.inside():
            return  # if not busy, the tender sends it
        with self._mutex:
            self._send_all()

    def _send_all(self, masters: Sequence[Master] = ()) -> None:
        """Read these masters, and send everything that is queued, also what comes meanwhile."""
        queued = self._queue
        while True:
            try:
                self._busy = True
                if masters:
                    self.read_all(masters)
                while True:
                    if not queued:
                        break
                    # Removed only once it has begun: an interrupt in between may begin another
                    # thread's round twice, which is harmless, but never drops it.
                    self.begin(queued[0])
                    queued.popleft()
                if self._dirty:
                    self.flush()
            finally:
                # After an interrupt the next poll sends what other threads have left here.
                self._busy = False
            if not queued:
                return
            masters = ()

    def _read_idle(self) -> None:
        """Read what came while no thread was polling: a master may have closed an idle link."""
        with self._mutex:
            self._last_look = clock()
            self._send_all(self.masters)

    # Waiting and reading.

    def _wait_for_links(self) -> None:
        """Wait until the connections under way have made a quorum, or cannot any more."""
        wakeup = Wakeup()
        deadline = clock() + self.connect_timeout
        self._link_waits[wakeup] = None
        try:
            while True:
                left = deadline - clock()
                if left <= 0 or not self.may_reach_quorum():
                    break
                wakeup.wait(left)
        finally:
            del self._link_waits[wakeup]

    def _await(self, exchange: Exchange) -> None:
        """Send a round, and wait until it is decided."""
        try:
            self._queue.append(exchange)
            if not self._busy:
                # Others were woken with this thread, and have not run yet.
                if self._waiting and any(map(_is_decided, [*self._waiting])):
                    self._gather()
                with self._mutex:
                    self._send_all()
                    if self._reader is None and not exchange.decided:
                        self._reader, self._reader_thread = exchange, threading.get_ident()
            while True:
                if exchange.decided:
                    break
                if self._reader is exchange:  # as nearly always; what `_wait` does, in less time
                    self._poll()
                else:
                    self._wait(exchange, self._waiting, self.master_timeout)
        except BaseException:
            exchange.abandon()
            raise
        finally:
            self._leave(exchange)

    def _gather(self) -> None:
        """Wait for other threads that can run; they leave their rounds to this one meanwhile.

        Otherwise a thread whose masters answer quickly would hardly ever stop: the interpreter goes
        on with it after each call to the kernel, and the others would wait for milliseconds.
        """
        try:
            self._busy = True
            os.sched_yield()
        finally:
            self._busy = False

    def _wait(self, sleeper: Sleeper, sleepers: Sleepers, longest: float) -> None:
        """Read for all threads if none does; else sleep until woken, as one of the `sleepers`."""
        try:
            if self._reader is sleeper or self._becomes_reader(sleeper):
                sleeper.wake = self._wake_reader
                while True:
                    if sleeper.decided:
                        break
                    left = sleeper.until
                    if left < math.inf and (left := left - clock()) <= 0:
                        break
                    self._poll(left)
            else:
                self._sleep_until_woken(sleeper, sleepers, longest)
        finally:
            if self._reader is sleeper:
                self._reader = None  # its caller wakes the next one: see `_leave`

    def _becomes_reader(self, sleeper: Sleeper) -> bool:
        """Return whether this thread reads for all from now on."""
        me = threading.get_ident()
        # If the reader is this very thread, an interrupt has left that entry behind.
        if self._reader is None or self._reader_thread == me:
            with self._mutex:
                if self._reader is None or self._reader_thread == me:
                    self._reader, self._reader_thread = sleeper, me
                    return True
        return False

    def _sleep_until_woken(self, sleeper: Sleeper, sleepers: Sleepers, longest: float) -> None:
        wakeups: queue.SimpleQueue[None] = queue.SimpleQueue()
        sleeper.wake = partial(wakeups.put, None)
        sleepers[sleeper] = None
        try:
            # From here on it is woken. What happened before is looked at now.
            left = min(longest, sleeper.until - clock())
            if self._reader is None or sleeper.decided or left <= 0:
                return
            try:
                wakeups.get(timeout=left)
            except queue.Empty:
                self._poller.wake()  # the reader judges who is late
        finally:
            sleepers.pop(sleeper, None)

    def _leave(self, sleeper: Sleeper) -> None:
        """Stop waiting, and wake another thread to read if none does."""
        if self._reader is sleeper:
            self._reader = None
        # A thread that is about to sleep is among these, or sees that no thread reads.
        if self._reader is None and (self._waiting or self._sleeping):
            # One step each, because other threads come and go meanwhile. If the one that is woken
            # need not wait any more, it comes here as well.
            waiting: list[Sleeper] = [*self._waiting, *self._sleeping]
            if successor := next((other for other in waiting if not other.decided), None):
                successor.wake()

    def _poll(self, longest: float = math.inf) -> None:
        if self._queue:  # by a thread that gives way, or was interrupted
            os.sched_yield()
            with self._mutex:
                self._send_all()
        began = clock()
        asked = self.lateness.due - began
        if asked <= 0:
            with self._mutex:
                asked = self.lateness.poll_timeout(began)
        if asked > longest:
            asked = longest
        readable, writable = self._poller.poll(asked)
        self._last_look = now = clock()
        with self._mutex:
            if writable:
                self._dirty.update(master.index for master in writable)
            self._send_all(readable)
            self.lateness.waited(asked, now - began, now)
            if self._dirty:
                self.flush()

    def _wake_reader(self) -> None:
        """Wake the thread that reads for all, unless it is this one."""
        if threading.get_ident() != self._reader_thread:
            self._poller.wake()

    # Methods that Links requires of a driver.

    def _watch(self, master: Master) -> None:
        self._poller.watch(master)

    def _unwatch(self, master: Master) -> None:
        self._poller.unwatch(master)

    def _changed(self) -> None:
        for wakeup in list(self._link_waits):
            wakeup.wake()

    def deliver(self, index: int, result: Joined | Unfit) -> bool:
        with self._mutex:
            if self.closed.is_set() or self.masters[index].link is not None:
                discard(result)
                return False
            again = self.arrived(index, result)
            self.flush()
            self._tender_wakeup.wake()
            return again

    def look_again(self) -> None:
        with self._mutex:
            if not self.closed.is_set():
                self._check_all()
                self._send_all()
        self._tender_wakeup.wake()

    def abandon(self) -> None:
        super().abandon()
        self._poller.close()

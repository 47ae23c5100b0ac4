"""The links that all threads of a process share: one sends for all, and one reads for all.

Threads queue their rounds; the thread that has the mutex sends everything that is queued, in one
send for each master (flat combining: Hendler, Incze, Shavit and Tzafrir, 2010). If others were
woken with it, it gives way to them first: they queue their next rounds, too. One waiting thread at
a time polls, and reads for all. A thread that stops waiting passes the reading on to a thread that
waits for answers or, if there is none, to one that waits to be called.

No loop inside a `with` or `try` here ends in a condition: Python 3.12 and 3.13 handle signals on
the jump back from one, and an exception raised there skips the `finally`.
docs/contributing/interrupts.md explains this.
"""

from __future__ import annotations

import math
import os
import select
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import attrgetter
from select import POLLIN, POLLOUT

from redlock_django.wire.clock import clock
from redlock_django.wire.drivers.sockets import LinkSocket, Sockets
from redlock_django.wire.links.link import Exchange
from redlock_django.wire.links.master import Master
from redlock_django.wire.links.waiters import Waiter
from redlock_django.wire.wakeup import Wakeup


class Poller:
    """A poll of the links of one process, which any thread may end."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._receiver, self._sender = socket.socketpair()
        for end in (self._receiver, self._sender):
            end.setblocking(False)
        self._poll.register(self._receiver.fileno(), POLLIN)
        # The masters, by the descriptor of their link and the one event that ends nearly every
        # poll.
        self._readable: dict[tuple[int, int], Master] = {}

    def watch(self, master: Master, connection: LinkSocket) -> None:
        """Watch a connection from now on, also until it takes more bytes if it is `blocked`."""
        fd = connection.socket.fileno()
        self._readable[fd, POLLIN] = master
        self._poll.register(fd, POLLIN | (POLLOUT if connection.blocked else 0))
        self.wake()  # a poll under way does not notice the change

    def unwatch(self, connection: LinkSocket) -> None:
        """Stop watching a connection, which is about to be closed."""
        fd = connection.socket.fileno()
        self._readable.pop((fd, POLLIN), None)
        with suppress(KeyError, ValueError):
            self._poll.unregister(fd)

    def poll(self, seconds: float) -> tuple[list[Master], list[Master]]:
        """Wait, and return the masters to read and those whose links take more bytes."""
        events = self._poll.poll(int(seconds * 1000) + 1)
        try:
            return list(map(self._readable.__getitem__, events)), []
        except KeyError:
            return self._sort(events)

    def _sort(self, events: list[tuple[int, int]]) -> tuple[list[Master], list[Master]]:
        """Return what `poll` does, for events of any kind."""
        readable, writable = [], []
        for fd, event in events:
            master = self._readable.get((fd, POLLIN))
            if master is None:
                with suppress(OSError):
                    self._receiver.recv(4096)
                continue
            if event & POLLOUT:
                writable.append(master)
            if event != POLLOUT:
                readable.append(master)
        return readable, writable

    def wake(self) -> None:
        """End a poll under way, or the next one."""
        with suppress(OSError):
            self._sender.send(b"!")

    def close(self) -> None:
        """Close what wakes it: from then on each poll lasts as long as it is asked to."""
        with suppress(KeyError, ValueError):  # closed before
            self._poll.unregister(self._receiver.fileno())
        for end in (self._receiver, self._sender):
            end.close()


Sleeper = Exchange | Waiter
"""A thread sleeps until one of these is decided, and until its time `until` at most."""
Sleepers = dict[Sleeper, None]
_is_decided = attrgetter("decided")


class Combiner:
    """The queue of all threads' rounds, the mutex of their links, and the thread that reads."""

    def __init__(self, sockets: Sockets, poller: Poller) -> None:
        # Only ever acquired by `with`: an interrupt cannot strike between acquiring it and being
        # certain to release it. Reentrant for finalizers alone, see `inside`.
        self.mutex = threading.RLock()
        # Whether a finalizer or signal handler interrupts this thread inside the mutex.
        self.inside: Callable[[], bool] = self.mutex._is_owned  # type: ignore[attr-defined]
        self.poller = poller
        self.queue: deque[Exchange] = deque()
        self.waiting: Sleepers = {}  # threads that sleep until a round is decided
        self.sleeping: Sleepers = {}  # and those that sleep until they are called
        self.reader: Sleeper | None = None
        self.last_look = clock()  # at the links, by a poll or before a round
        self._reader_thread = 0  # the thread that reads, or was the last to
        self._busy = False  # the thread that has the mutex will look at the queue again
        # Bound once: these are used by every round.
        links = sockets.links
        self._masters = links.masters
        self._master_timeout = links.master_timeout
        self._lateness = links.lateness
        self._dirty = links.dirty
        self._read = sockets.read
        self._begin = links.begin
        self._changes = links.changes
        self._read_late = sockets.read_late
        self._flush = sockets.flush
        self._judge = sockets.judge
        self._polled = links.lateness.running.polled

    # Sending.

    def send(self, exchange: Exchange) -> None:
        """Send a round, or leave it to the thread that is sending; do not wait for its verdict."""
        self.queue.append(exchange)
        # If the busy thread is this one, which a finalizer interrupts, it sends this as well.
        if self._busy or self.inside():
            return  # if not busy, the tender sends it
        with self.mutex:
            self.send_all()

    def send_all(self, masters: Sequence[Master] = ()) -> None:
        """Read these masters, and send everything that is queued, also what comes meanwhile."""
        queued = self.queue
        while True:
            try:
                self._busy = True
                if masters:
                    self._read(masters)
                if queued and self._changes.late:
                    self._read_late()
                while True:
                    if not queued:
                        break
                    # Removed only once it has begun: an interrupt in between may begin another
                    # thread's round twice, which is harmless, but never drops it.
                    self._begin(queued[0])
                    queued.popleft()
                if self._dirty:
                    self._flush()
            finally:
                # After an interrupt the next poll sends what other threads have left here.
                self._busy = False
            if not queued:
                return
            masters = ()

    def read_idle(self) -> None:
        """Read what came while no thread was polling: a master may have closed an idle link."""
        with self.mutex:
            self.last_look = clock()
            self.send_all(self._masters)

    # Waiting and reading.

    def carry(self, exchange: Exchange) -> None:
        """Send a round, and wait until it is decided."""
        try:
            self.queue.append(exchange)
            if not self._busy:
                # Others were woken with this thread, and have not run yet.
                if self.waiting and any(map(_is_decided, [*self.waiting])):
                    self._gather()
                with self.mutex:
                    self.send_all()
                    if self.reader is None and not exchange.decided:
                        self.reader, self._reader_thread = exchange, threading.get_ident()
            while True:
                if exchange.decided:
                    break
                if self.reader is exchange:  # as nearly always; what `wait` does, in less time
                    self._poll()
                else:
                    self.wait(exchange, self.waiting, self._master_timeout)
        except BaseException:
            exchange.abandon()
            raise
        finally:
            # Not in `leave`: an interrupt may come when it is called, and no thread would read.
            if self.reader is exchange:
                self.reader = None
            self.leave()

    def carry_all(self, exchanges: Sequence[Exchange]) -> None:
        """Send several rounds together, and wait until all of them are decided."""
        try:
            self.queue.extend(exchanges)
            with self.mutex:
                self.send_all()
            for exchange in exchanges:
                while True:
                    if exchange.decided:
                        break
                    self.wait(exchange, self.waiting, self._master_timeout)
        except BaseException:
            for exchange in exchanges:
                exchange.abandon()
            raise
        finally:
            self.leave()

    def sleep(self, waiter: Waiter) -> None:
        """Sleep until a waiter is called or its time has come; read for all if no thread does."""
        try:
            while True:
                left = waiter.until - clock()
                if waiter.decided or left <= 0:
                    break
                self.wait(waiter, self.sleeping, left)
        finally:
            self.leave()

    def wait(self, sleeper: Sleeper, sleepers: Sleepers, longest: float) -> None:
        """Read for all threads if none does; else sleep until woken, as one of the `sleepers`."""
        try:
            if self.reader is sleeper or self._becomes_reader(sleeper):
                sleeper.wake = self.wake_reader
                while True:
                    if sleeper.decided:
                        break
                    left = sleeper.until - clock()
                    if left <= 0:
                        break
                    self._poll(left)
            else:
                self._sleep_until_woken(sleeper, sleepers, longest)
        finally:
            if self.reader is sleeper:
                self.reader = None  # its caller wakes the next one: see `leave`

    def leave(self) -> None:
        """Wake another thread to read if none does."""
        # A thread that is about to sleep is among these, or sees that no thread reads.
        if self.reader is None and (self.waiting or self.sleeping):
            # One step each, because other threads come and go meanwhile. A thread that is woken and
            # need not wait any more comes here as well.
            waiting: list[Sleeper] = [*self.waiting, *self.sleeping]
            if successor := next((other for other in waiting if not other.decided), None):
                successor.wake()

    def wake_decided(self) -> None:
        """Wake the threads that need not wait any more: an interrupt may have struck before."""
        for sleeper in [*self.waiting, *self.sleeping]:
            if sleeper.decided:
                sleeper.wake()

    def wake_reader(self) -> None:
        """Wake the thread that reads for all, unless it is this one."""
        if threading.get_ident() != self._reader_thread:
            self.poller.wake()

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

    def _becomes_reader(self, sleeper: Sleeper) -> bool:
        """Return whether this thread reads for all from now on."""
        me = threading.get_ident()
        # If the reader is this very thread, an interrupt has left that entry behind.
        if self.reader is None or self._reader_thread == me:
            with self.mutex:
                if self.reader is None or self._reader_thread == me:
                    self.reader, self._reader_thread = sleeper, me
                    return True
        return False

    def _sleep_until_woken(self, sleeper: Sleeper, sleepers: Sleepers, longest: float) -> None:
        wakeup = Wakeup()
        sleeper.wake = wakeup.wake
        sleepers[sleeper] = None
        try:
            # From here on other threads wake this one. Look at what happened before.
            left = min(longest, sleeper.until - clock())
            if self.reader is None or sleeper.decided or left <= 0:
                return
            if not wakeup.wait(left):
                self.poller.wake()  # the reader judges which masters are late
        finally:
            sleepers.pop(sleeper, None)

    def _poll(self, longest: float = math.inf) -> None:
        if self.queue:  # left by a thread that gives way, or was interrupted
            os.sched_yield()
            with self.mutex:
                self.send_all()
        began = clock()
        asked = self._lateness.due - began
        if asked <= 0:
            with self.mutex:
                asked = self._lateness.poll_timeout(began)
        if asked > longest:
            asked = longest
        readable, writable = self.poller.poll(asked)
        self.last_look = now = clock()
        with self.mutex:
            if writable:
                self._dirty.update(writable)
            self.send_all(readable)
            if self._polled(asked, now - began, now):
                self._judge(now)
            if self._dirty:
                self._flush()

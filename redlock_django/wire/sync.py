"""The links of a process, shared by all its threads.

Threads queue their rounds; the thread that has the mutex sends everything that is queued, in one
send for each master; one waiting thread at a time polls, and reads for all. A thread that stops
waiting passes the reading on to a thread that waits for answers or, if there is none, to one that
waits to be called. A tender thread reads the replies that no thread waits for any more.

No loop inside a `with` or `try` here ends in a condition: Python 3.12 and 3.13 handle signals on
the jump back from one, and an exception raised there skips the `finally`.
docs/explanation/interrupts.md explains this.
"""

from __future__ import annotations

import logging
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from redlock_django.engine.rounds import Pause, Protocol, Result, Round, Step
from redlock_django.engine.trampoline import is_finished
from redlock_django.wire.clock import clock
from redlock_django.wire.exchange import Batch, Exchange, wake_none
from redlock_django.wire.join import Joined, Unfit
from redlock_django.wire.links import IDLE, Links
from redlock_django.wire.master import Master, discard
from redlock_django.wire.reentry import INTERRUPTS, Running
from redlock_django.wire.waiters import Waiter
from redlock_django.wire.wakeup import Wakeup

logger = logging.getLogger("redlock_django")

REDIAL = 0.5  # seconds after which a thread that could not be started is tried again


Sleeper = Exchange | Batch | Waiter
"""A thread sleeps until one of these is decided, and until its time `until` at most."""


class SyncLinks(Links):
    """The links of one process, for callers that may block. Thread-safe."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Only ever acquired by `with`: an interrupt cannot strike between acquiring it and being
        # certain to release it. Reentrant for finalizers alone, see `inside`.
        self._mutex = threading.RLock()
        self._link_waits: dict[Wakeup, None] = {}
        self._queue: deque[Exchange] = deque()
        self._busy = False  # the thread that has the mutex will look at the queue again
        self._waiting: dict[Exchange | Batch, None] = {}
        self._sleeping: dict[Waiter, None] = {}
        self._reader: Sleeper | None = None
        self._reader_thread = 0  # the thread that reads, or was the last to
        self._last_poll = clock()
        self._poller = select.poll()
        self._by_fd: dict[int, Master] = {}
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._wake_receiver.setblocking(False)
        self._wake_sender.setblocking(False)
        self._poller.register(self._wake_receiver.fileno(), select.POLLIN)
        self._tender_wakeup = Wakeup()
        self._tender: threading.Thread | None = None
        self._running = Running()

    def run(
        self,
        protocol: Protocol[Result],
        *,
        wait_for_links: bool = True,
        waiter: Waiter | None = None,
    ) -> Result:
        """Run a protocol to its end and return its result.

        With `wait_for_links`, a round without a quorum of links waits for connections under
        way. The pauses of a `waiter` end when it is called.
        """
        self.refuse_interrupting()
        self.start()
        self._running.begin(protocol)
        try:
            step = next(protocol)
        except StopIteration as done:  # there was nothing to send: the extension came too late
            early: Result = done.value
            return early
        while True:
            try:
                while True:  # inside the try: an interrupt may strike where a loop repeats
                    self._take(step, wait_for_links, waiter)
                    step = protocol.send(clock())
            except StopIteration as done:
                result: Result = done.value
                return result
            except BaseException as error:
                if is_finished(protocol):
                    raise  # the protocol itself raised this
                step = protocol.throw(error)

    def run_all(self, protocols: Sequence[Protocol[Result]]) -> list[Result | Exception]:
        """Run protocols of at most one round each, such as extensions, all at the same time.

        Returns their results in order, or the exceptions that they raised. No round waits for
        connections under way. Takes as long as the slowest round, not as long as all of them.
        """
        self.start()
        results: dict[int, Result | Exception] = {}
        asked: dict[int, Round] = {}
        for index, protocol in enumerate(protocols):
            step = _outcome(partial(next, protocol), index, results)
            if isinstance(step, Round):
                asked[index] = step
        if asked:
            self._take_all(list(asked.values()))
        for index in asked:
            _outcome(partial(protocols[index].send, clock()), index, results)
        return [results[index] for index in range(len(protocols))]

    def waiter(self) -> Waiter:
        """Return a new waiter."""
        self.refuse_interrupting()
        with self._mutex:
            return self._waiter()

    def post(self, protocol: Protocol[Any]) -> None:
        """Send a protocol's first round without waiting for its answers."""
        self.start()
        step = next(protocol)
        if isinstance(step, Round):
            self._send(self.exchange(step, wake_none))
            self._tender_wakeup.wake()

    def close(self) -> None:
        """Close every link. The object cannot be used afterwards."""
        with self._mutex:
            self.shut()
        self._tender_wakeup.wake()
        for end in (self._wake_receiver, self._wake_sender):
            end.close()

    def abandon(self) -> None:
        super().abandon()
        for end in (self._wake_receiver, self._wake_sender):
            end.close()

    # One step.

    def _take(self, step: Step, wait_for_links: bool, waiter: Waiter | None) -> None:
        if isinstance(step, Pause):
            if waiter is None:
                time.sleep(step.seconds)
            else:
                self._sleep(waiter, step)
            return
        if not step.awaited:
            self._send(self.exchange(step, wake_none))
            self._tender_wakeup.wake()
            return
        if clock() - self._last_poll > IDLE:
            self._read_idle()
        if (
            wait_for_links
            and self.may_reach_quorum()
            and any(c is not None and c.trusted for c in step.commands)
        ):
            self._wait_for_links()
        if waiter is not None:
            waiter.ask()
        wakeups: SimpleQueue[None] = SimpleQueue()
        exchange = self.exchange(step, wake_none)
        exchange.wake = partial(self._wake, exchange, wakeups, threading.get_ident())
        try:
            self._waiting[exchange] = None
            self._send(exchange)
            while True:
                if exchange.decided:
                    break
                self._wait(exchange, wakeups, self.master_timeout)
        except BaseException:
            exchange.abandon()
            raise
        finally:
            self._waiting.pop(exchange, None)
        self._tender_wakeup.wake()

    def _take_all(self, steps: Sequence[Round]) -> None:
        """Send several rounds together, and wait until all of them are decided."""
        if clock() - self._last_poll > IDLE:
            self._read_idle()
        wakeups: SimpleQueue[None] = SimpleQueue()
        batch = Batch(len(steps))
        batch.wake = partial(self._wake, batch, wakeups, threading.get_ident())
        exchanges = [self.exchange(step, batch.count) for step in steps]
        try:
            self._waiting[batch] = None
            self._queue.extend(exchanges)
            with self._mutex:
                self._send_all()
            while True:
                if batch.decided:
                    break
                self._wait(batch, wakeups, self.master_timeout)
        except BaseException:
            for exchange in exchanges:
                exchange.abandon()
            raise
        finally:
            self._waiting.pop(batch, None)
        self._tender_wakeup.wake()

    def _sleep(self, waiter: Waiter, pause: Pause) -> None:
        """Sleep until the waiter is called, and read for all threads if no other thread does."""
        wakeups: SimpleQueue[None] = SimpleQueue()
        waiter.wake = partial(self._wake, waiter, wakeups, threading.get_ident())
        try:
            self._sleeping[waiter] = None
            waiter.rest(pause)
            while True:
                left = waiter.until - clock()
                if waiter.decided or left <= 0:
                    break
                self._wait(waiter, wakeups, left)
        finally:
            self._sleeping.pop(waiter, None)
            waiter.wake = wake_none

    def _wake(self, sleeper: Sleeper, wakeups: SimpleQueue[None], thread: int) -> None:
        """Wake a waiting thread, which sleeps on its queue, or in the poll if it is the reader."""
        wakeups.put(None)
        if self._reader is sleeper and threading.get_ident() != thread:
            self._wake_poll()

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

    def _read_idle(self) -> None:
        """Read what came while no thread was polling: a master may have closed an idle link."""
        with self._mutex:
            self._last_poll = clock()
            for master in self.masters:
                self.read(master)
            self._send_all()

    def inside(self) -> bool:
        """Return whether this thread has the mutex already: a finalizer or signal handler has it.

        Both interrupt their thread between any two of our steps.
        """
        return self._mutex._is_owned()  # type: ignore[attr-defined,no-any-return]

    def interrupting(self) -> bool:
        """Return whether the caller interrupts another lock operation of this thread."""
        return self.inside() or self._running.is_interrupted(SyncLinks.run.__code__)

    def refuse_interrupting(self) -> None:
        """Raise RuntimeError if the caller interrupts another lock operation of this thread."""
        if self.interrupting():
            raise RuntimeError(INTERRUPTS)

    def _send(self, exchange: Exchange) -> None:
        self._queue.append(exchange)
        # If the busy thread is this one, which a finalizer interrupts, it sends this as well.
        if self._busy or self.inside():
            return  # if not busy, the tender sends it
        with self._mutex:
            self._send_all()

    def _send_all(self, *masters: Master) -> None:
        """Read these masters, and send everything that is queued, also what comes meanwhile."""
        while True:
            try:
                self._busy = True
                for master in masters:
                    self.read(master)
                while True:
                    if not self._queue:
                        break
                    # Removed only once it has begun: an interrupt in between may begin another
                    # thread's round twice, which is harmless, but never drops it.
                    self.begin(self._queue[0])
                    self._queue.popleft()
                self.flush()
            finally:
                # After an interrupt the next poll sends what other threads have left here.
                self._busy = False
            if not self._queue:
                return
            masters = ()

    def _wait(
        self,
        sleeper: Sleeper,
        wakeups: SimpleQueue[None],
        longest: float,
    ) -> None:
        """Read for all threads if none does, else sleep until woken, for `longest` at most."""
        me = threading.get_ident()
        try:
            # If the reader is this very thread, an interrupt has left that entry behind.
            if self._reader is None or self._reader_thread == me:
                with self._mutex:
                    if self._reader is None or self._reader_thread == me:
                        self._reader, self._reader_thread = sleeper, me
            if self._reader is sleeper:
                while True:
                    left = sleeper.until - clock()
                    if sleeper.decided or left <= 0:
                        break
                    self._poll(left)
            else:
                try:
                    wakeups.get(timeout=longest)
                except Empty:
                    self._wake_poll()  # the reader judges who is late
        finally:
            if self._reader is sleeper:  # no other thread can make it the reader meanwhile
                self._pass_on()

    def _pass_on(self) -> None:
        """Let another waiting thread read for all."""
        with self._mutex:
            self._reader = None
            if len(self._waiting) == 1 and not self._sleeping:
                return
            # One step each, because other threads come and go meanwhile.
            waiting: list[Sleeper] = [*self._waiting, *self._sleeping]
            successor = next((other for other in waiting if not other.decided), None)
        if successor is not None:
            successor.wake()

    def _poll(self, longest: float) -> None:
        if self._queue:  # an interrupted thread has left it
            with self._mutex:
                self._send_all()
        began = clock()
        asked = self.lateness.due - began
        if asked <= 0:
            with self._mutex:
                asked = self.lateness.poll_timeout(began)
        if asked > longest:
            asked = longest
        events = self._poller.poll(int(asked * 1000) + 1)
        self._last_poll = now = clock()
        with self._mutex:
            readable = []
            for fd, event in events:
                master = self._by_fd.get(fd)
                if master is None:
                    self._clear_poll()
                    continue
                if event & select.POLLOUT:
                    self._dirty.add(master.index)
                if event != select.POLLOUT:
                    readable.append(master)
            self._send_all(*readable)
            self.lateness.waited(asked, now - began)
            if self._dirty:
                self.flush()

    # Methods that Links requires of a driver.

    def _watch(self, master: Master) -> None:
        assert master.link is not None
        fd = master.link.socket.fileno()
        self._by_fd[fd] = master
        wanted = select.POLLIN | (select.POLLOUT if master.link.blocked else 0)
        self._poller.register(fd, wanted)
        self._wake_poll()  # a poll under way does not notice the change

    def _unwatch(self, master: Master) -> None:
        assert master.link is not None
        fd = master.link.socket.fileno()
        self._by_fd.pop(fd, None)
        with suppress(KeyError, ValueError):
            self._poller.unregister(fd)

    def _wake_poll(self) -> None:
        with suppress(OSError):
            self._wake_sender.send(b"!")

    def _clear_poll(self) -> None:
        with suppress(OSError):
            self._wake_receiver.recv(4096)

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

    # The tender.

    def start(self) -> None:
        """Connect to the masters in the background, and start the tender."""
        if self._tender is None:
            self._start()

    def _start(self) -> None:
        with self._mutex:
            if self._tender is None and not self.closed.is_set():
                self.connect()
                tender = threading.Thread(target=self._tend, name="redlock-tender", daemon=True)
                # The process may have no more threads now: the next round tries again.
                with suppress(RuntimeError):
                    tender.start()
                    # Last: a thread that sees it set does not wait for the mutex.
                    self._tender = tender

    def _tend(self) -> None:
        while not self.closed.is_set():
            # Nothing may end this thread, because no other one reads what nobody waits for.
            try:
                self._tend_until_closed()
            except BaseException:
                with suppress(BaseException):
                    logger.exception("redlock: the tender thread failed, and continues")
                self.closed.wait(self.master_timeout)

    def _tend_until_closed(self) -> None:
        """Read the replies that no thread waits for, and judge which masters are late."""
        pause = self.master_timeout / 2
        dialed = True
        while not self.closed.is_set():
            self._tender_wakeup.wait(None if dialed else REDIAL)
            with self._mutex:
                dialed = self.redial()
            began = clock()
            while not self.closed.wait(pause):
                with self._mutex:
                    if self._reader is None:  # otherwise the reader reads and judges
                        for master in self.owing():
                            self._serve(master)
                        self.lateness.waited(pause, clock() - began)
                    self._send_all()
                    began = clock()
                    if not self.owing():
                        break

    def _serve(self, master: Master) -> None:
        self.read(master)
        if master.link is not None and master.link.blocked:
            self._dirty.add(master.index)  # no thread polls: try again


def _outcome(
    run: Callable[[], Step], index: int, results: dict[int, Result | Exception]
) -> Step | None:
    """Return the next step of a protocol, or None if it ended, with its outcome in `results`."""
    try:
        step = run()
    except StopIteration as done:
        results[index] = done.value
        return None
    except Exception as error:  # noqa: BLE001 - returned in its place
        results[index] = error
        return None
    results[index] = RuntimeError("a protocol of more than one round cannot be run in a batch")
    return step

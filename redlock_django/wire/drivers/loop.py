"""The driver for an event loop: one for each running loop, whose links are closed with it.

What tasks write to a master in one iteration of the loop is sent together; a round is one future.
"""

from __future__ import annotations

import asyncio
import sys
import weakref
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

from redlock_django.engine.run_protocol import is_finished
from redlock_django.engine.steps import Pause, Protocol, Result, Round, Step
from redlock_django.wire.clock import clock
from redlock_django.wire.drivers.dialing import discard
from redlock_django.wire.drivers.sockets import LinkSocket, Sockets
from redlock_django.wire.links.link import Exchange, wake_none
from redlock_django.wire.links.links import Links
from redlock_django.wire.links.master import Master
from redlock_django.wire.links.waiters import Waiter
from redlock_django.wire.notice import Notice
from redlock_django.wire.servers.trust import Joined, Unfit
from redlock_django.wire.wakeup import LoopWakeup

# So many rounds are sent together while the loop goes on to begin others. More would leave the
# masters without work meanwhile, and then the loop while the masters answer.
SENT_TOGETHER = 40


class LoopDriver:
    """The driver of one event loop. Use it in that loop only, except for `post`."""

    def __init__(self, links: Links, notice: Notice) -> None:
        # Weak: the backend keeps this driver by its loop, and a loop that was never closed must
        # still be garbage-collected.
        self._loop = weakref.ref(asyncio.get_running_loop())
        self.links = links
        self.sockets = Sockets(links, self, notice)
        self._begun = 0  # rounds since the last scheduled send; if there are any, one is scheduled
        self._ticking = False
        self._ticked = 0.0
        self._arrivals = [Arrival() for _ in links.masters]
        self._link_waits: set[LoopWakeup] = set()
        self._end: AsyncGenerator[None, None] | None = None
        # Bound once: these are used by every round.
        self._link_wait = links.link_wait
        self._connecting = links.changes.connecting
        self._send = self.sockets.flush
        self._dirty = links.dirty
        links.membership.readers.add(self)  # other threads may use the loop from here on

    def _open_loop(self) -> asyncio.AbstractEventLoop | None:
        """Return the loop; None once it is closed."""
        loop = self._loop()
        return None if loop is None or loop.is_closed() else loop

    async def run(
        self, protocol: Protocol[Result], *, wait_for_links: bool = True,
        waiter: Waiter | None = None,
    ) -> Result:  # fmt: skip
        """Run a protocol to its end and return its result, as `ThreadDriver.run` does."""
        if self._end is None:
            await self.start()
        try:
            step = next(protocol)
        except StopIteration as done:  # there was nothing to send: the extension came too late
            early: Result = done.value
            return early
        while True:
            try:
                await self._take(step, wait_for_links, waiter)
                step = protocol.send(clock())
            except StopIteration as done:
                result: Result = done.value
                return result
            except BaseException as error:
                if is_finished(protocol):
                    raise  # the protocol itself raised this
                if waiter is not None:
                    waiter.end_rest()
                step = protocol.throw(error)

    def waiter(self) -> Waiter:
        """Return a new waiter."""
        return self.links.changes.waiter()

    def post(self, protocol: Protocol[Any]) -> bool:
        """Send a protocol's first round, from any thread; return False if the loop is closed."""
        return self._soon(self._post, protocol)

    def _soon(self, what: Callable[..., None], *arguments: Any) -> bool:
        """Schedule a call in the loop, from any thread; return False if the loop is closed."""
        loop = self._open_loop()
        if loop is None or self.sockets.closed.is_set():
            return False
        try:
            loop.call_soon_threadsafe(what, *arguments)
        except RuntimeError:  # closed in between
            return False
        return True

    def _post(self, protocol: Protocol[Any]) -> None:
        step = next(protocol)
        if isinstance(step, Round):
            self._begin(Exchange(step, wake_none))
            self._flush()

    # One step.

    async def _take(self, step: Step, wait_for_links: bool, waiter: Waiter | None) -> None:
        if isinstance(step, Pause):
            if waiter is None:
                await asyncio.sleep(step.seconds)
            else:
                await self._sleep(waiter, step)
            return
        if not step.awaited:
            self._begin(Exchange(step, wake_none))
            self._flush()  # immediately: the loop may be about to end
            return
        if wait_for_links and self._connecting and self._link_wait.is_needed(step):
            await self._wait_for_links()
        if waiter is not None:
            waiter.ask()
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[None] = loop.create_future()
        exchange = Exchange(step, partial(_complete, answered))
        try:
            self._begin(exchange)
            if not self._begun:
                loop.call_soon(self._flush)
            self._begun += 1
            if self._begun % SENT_TOGETHER == 0:
                self._send()
            await answered
        except BaseException:
            exchange.abandon()
            raise

    async def _sleep(self, waiter: Waiter, pause: Pause) -> None:
        """Sleep until the waiter is called, or its pause is over."""
        wakeup = LoopWakeup()
        waiter.rest(pause)
        waiter.wake = wakeup.wake_here
        while not waiter.decided and (left := waiter.until - clock()) > 0:
            await wakeup.wait(left)
        waiter.end_rest()

    async def _wait_for_links(self) -> None:
        wakeup, began = LoopWakeup(), clock()
        self._link_waits.add(wakeup)
        try:
            while (left := self._link_wait.seconds(began)) > 0:
                await wakeup.wait(left)
        finally:
            self._link_waits.discard(wakeup)

    def _begin(self, exchange: Exchange) -> None:
        self.sockets.read_late()
        self.links.begin(exchange)

    def _flush(self) -> None:
        self._begun = 0
        self._send()
        self._tick_soon()

    # What the links ask of their driver.

    def watch(self, master: Master, connection: LinkSocket) -> None:
        """Watch a connection in the loop, also until it takes more bytes if it is `blocked`."""
        if (loop := self._open_loop()) is None:
            return
        fd = connection.socket.fileno()
        loop.add_reader(fd, self._readable, master)
        if connection.blocked:
            loop.add_writer(fd, self._writable, master)
        else:
            loop.remove_writer(fd)

    def unwatch(self, connection: LinkSocket) -> None:
        """Stop watching a connection, which is about to be closed."""
        if loop := self._open_loop():
            loop.remove_reader(connection.socket.fileno())
            loop.remove_writer(connection.socket.fileno())

    def _readable(self, master: Master) -> None:
        self.sockets.read((master,))
        if self._dirty:
            self._flush()

    def _writable(self, master: Master) -> None:
        self._dirty.add(master)
        self._flush()

    def changed(self) -> None:
        """Wake the tasks that wait for links."""
        for wakeup in self._link_waits:
            wakeup.wake_here()

    def deliver(self, index: int, result: Joined | Unfit) -> bool:
        """Take the result of a connecting thread, in that thread; False ends the thread."""
        arrival = self._arrivals[index]
        arrival.put(result)
        opened = not self.sockets.closed.is_set()
        if opened and not arrival.scheduled:
            arrival.scheduled = True
            opened = self._soon(self._delivered, index)
        if not opened:
            self.sockets.closed.set()
            arrival.drop()
        return opened and isinstance(result, Unfit)

    def _delivered(self, index: int) -> None:
        result = self._arrivals[index].take()
        if result is None:
            return
        if self.sockets.closed.is_set() or self.links.masters[index].link is not None:
            discard(result)
            return
        self.sockets.arrived(index, result)
        self._flush()

    def look_again(self) -> None:
        """Read the marker of every master that has a link again, soon. Any thread may call this."""
        self._soon(self.links.sender.check_all)
        self._soon(self._flush)

    # Lateness. In every iteration a loop runs the reads that are ready before its timers, so a
    # stall of the loop is not mistaken for a silent master.

    def _tick_soon(self) -> None:
        if self._ticking or (loop := self._open_loop()) is None:
            return
        if self.links.owing() or any(master.unfinished for master in self.links.masters):
            self._ticking, self._ticked = True, clock()
            loop.call_later(self.links.master_timeout / 4, self._tick)

    def _tick(self) -> None:
        self._ticking = False
        self.links.changes.retry()
        self.sockets.waited(self.links.master_timeout / 4, (now := clock()) - self._ticked, now)
        self._flush()

    # The end of the loop.

    async def start(self) -> None:
        """Connect to the masters in the background, until the loop ends."""
        if self._end is not None:
            return
        # asyncio.run and asgiref both shut a loop's asynchronous generators down before they close
        # it. This is the only public way to be notified of the end of a loop that other code owns.
        self._end = self._until_the_end()
        hooks = sys.get_asyncgen_hooks()
        # The finalizer is a method of the loop: a generator that holds it would keep the loop
        # alive, and this driver lives as long as the loop.
        sys.set_asyncgen_hooks(finalizer=None)
        try:
            begun = anext(self._end)
        finally:
            sys.set_asyncgen_hooks(*hooks)
        await begun
        self.sockets.connect()

    async def _until_the_end(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            self.shut()

    def shut(self) -> None:
        """Close every link; see `Sockets.shut`."""
        self.sockets.shut()
        # A loop that ends drops the callbacks that are still scheduled.
        for arrival in self._arrivals:
            arrival.drop()

    def abandon(self) -> None:
        """Drop all links without sending a byte."""
        self.sockets.abandon()

    def forked(self) -> None:
        """Drop all links in the child of a fork."""
        self.sockets.forked()

    def __del__(self) -> None:
        self.abandon()

    def __reduce__(self) -> NoReturn:
        # Otherwise a copy without links is made, and deleted.
        raise TypeError("connections to masters cannot be copied or pickled")

    async def aclose(self) -> None:
        """Close every link. The object cannot be used afterwards."""
        self.shut()
        if self._end is not None:
            with suppress(RuntimeError):
                await self._end.aclose()


class Arrival:
    """The latest result of a connecting thread that the loop has not handled yet.

    Only one is kept: a loop that stands still while a master is down would otherwise collect the
    result of every attempt.
    """

    __slots__ = ("_results", "scheduled")

    def __init__(self) -> None:
        self._results: deque[Joined | Unfit] = deque(maxlen=1)
        self.scheduled = False  # a callback of the loop is to handle it

    def put(self, result: Joined | Unfit) -> None:
        """Store a result instead of the last one. The caller looks at `scheduled` afterwards."""
        self.drop()
        self._results.append(result)

    def take(self) -> Joined | Unfit | None:
        """Remove and return the result; None if there is none.

        The flag is reset first: a result that a thread stores meanwhile is either returned here, or
        the thread schedules another callback.
        """
        self.scheduled = False
        with suppress(IndexError):
            return self._results.pop()
        return None

    def drop(self) -> None:
        """Remove the result, and close its connection."""
        with suppress(IndexError):
            discard(self._results.pop())


def _complete(future: asyncio.Future[None]) -> None:
    if not future.done():  # its task may have been cancelled
        future.set_result(None)

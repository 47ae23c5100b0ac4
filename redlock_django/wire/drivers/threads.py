"""The driver for threads, which carry their protocols over links that they share.

How one thread sends and reads for all others is in `combiner`. A tender thread reads the replies
that no thread waits for any more.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

from redlock_django.engine.run_protocol import is_finished
from redlock_django.engine.steps import Pause, Protocol, Result, Round, Step
from redlock_django.wire.clock import clock
from redlock_django.wire.drivers.combiner import Combiner, Poller
from redlock_django.wire.drivers.dialing import discard
from redlock_django.wire.drivers.reentrancy import Interrupting, Running
from redlock_django.wire.drivers.sockets import LinkSocket, Sockets
from redlock_django.wire.links.link import Exchange, wake_none
from redlock_django.wire.links.links import Links
from redlock_django.wire.links.master import IDLE, Master
from redlock_django.wire.links.waiters import Waiter
from redlock_django.wire.notice import Notice
from redlock_django.wire.servers.trust import Joined, Unfit
from redlock_django.wire.wakeup import Wakeup

logger = logging.getLogger("redlock_django")

REDIAL = 0.5  # seconds after which a thread that could not be started is tried again
GIVE_WAY = 0.0002  # seconds for which other threads get the links between two parts of a backlog


class ThreadDriver:
    """The driver of one process, for callers that may block. Thread-safe."""

    def __init__(self, links: Links, notice: Notice) -> None:
        self.poller = Poller()
        self._link_waits: dict[Wakeup, None] = {}
        self.links = links
        self.sockets = Sockets(links, self, notice)
        self.combiner = Combiner(self.sockets, self.poller)
        self.tender = Tender(self.sockets, self.combiner)
        self._running = Running.of_threads()
        self._link_wait = links.link_wait
        self._connecting = links.changes.connecting
        # At the end, because other threads may use the links from there on.
        links.membership.readers.add(self)

    def run(
        self,
        protocol: Protocol[Result],
        *,
        wait_for_links: bool = True,
        waiter: Waiter | None = None,
    ) -> Result:
        """Run a protocol to its end and return its result.

        With `wait_for_links`, a round waits for connections under way; see `LinkWait.seconds`.
        The pauses of a `waiter` end when it is called. Raises Interrupting, and sends nothing,
        if the caller interrupts another lock operation of this thread.
        """
        running = self._running
        if self.combiner.inside() or (
            running.busy and running.is_interrupted(ThreadDriver.run.__code__, self)
        ):
            raise Interrupting
        if self.tender.thread is None:
            self.start()
        running.busy = True
        try:
            step = next(protocol)
        except StopIteration as done:  # there was nothing to send: the extension came too late
            running.busy = False
            early: Result = done.value
            return early
        while True:
            try:
                while True:  # inside the try: an interrupt may strike where a loop repeats
                    self._take(step, wait_for_links, waiter)
                    step = protocol.send(clock())
            except StopIteration as done:
                running.busy = False
                result: Result = done.value
                return result
            except BaseException as error:
                if is_finished(protocol):
                    running.busy = False
                    raise  # the protocol itself raised this
                self.combiner.wake_decided()
                if waiter is not None:
                    waiter.end_rest()
                step = protocol.throw(error)

    def run_all(self, protocols: Sequence[Protocol[Result]]) -> list[Result | Exception]:
        """Run protocols of at most one round each, such as extensions, all at the same time.

        Returns their results in order, or the exceptions that they raised. No round waits for
        connections under way.
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
        if self.combiner.inside() or self._running.is_interrupted(ThreadDriver.run.__code__, self):
            raise Interrupting
        with self.combiner.mutex:
            return self.links.changes.waiter()

    def post(self, protocol: Protocol[Any]) -> None:
        """Send a protocol's first round without waiting for its answers."""
        self.start()
        step = next(protocol)
        if isinstance(step, Round):
            self._post(step)

    # The life of the links.

    def start(self) -> None:
        """Connect to the masters in the background, and start the tender."""
        if not self.tender.is_started:
            self._start()

    def _start(self) -> None:
        with self.combiner.mutex:
            # Another thread may have started it since the caller looked.
            if not self.tender.is_started and not self.sockets.closed.is_set():
                self.sockets.connect()
                self.tender.start()

    def close(self) -> None:
        """Close every link. The object cannot be used afterwards."""
        with self.combiner.mutex:
            self.sockets.shut()
        self.tender.wake()
        self.poller.close()

    def abandon(self) -> None:
        """Drop all links without sending a byte."""
        self.sockets.abandon()
        self.poller.close()

    def forked(self) -> None:
        """Drop all links in the child of a fork."""
        self.sockets.forked()
        self.poller.close()

    def __del__(self) -> None:
        self.abandon()

    def __reduce__(self) -> NoReturn:
        # Otherwise a copy without links is made, and deleted.
        raise TypeError("connections to masters cannot be copied or pickled")

    # One step.

    def _take(self, step: Step, wait_for_links: bool, waiter: Waiter | None) -> None:
        if isinstance(step, Pause):
            if waiter is None:
                time.sleep(step.seconds)
            else:
                self._sleep(waiter, step)
            return
        if not step.awaited:
            self._post(step)
            return
        combiner = self.combiner
        if clock() - combiner.last_look > IDLE:
            combiner.read_idle()
        if wait_for_links and self._connecting and self._link_wait.is_needed(step):
            self._wait_for_links()
        if waiter is not None:
            waiter.ask()
        combiner.carry(Exchange(step, combiner.wake_reader))
        if self.tender.is_asleep:
            self.tender.wake()

    def _post(self, step: Round) -> None:
        self.combiner.send(Exchange(step, wake_none))
        self.tender.wake()

    def _take_all(self, steps: Sequence[Round]) -> None:
        """Send several rounds together, and wait until all of them are decided."""
        if clock() - self.combiner.last_look > IDLE:
            self.combiner.read_idle()
        self.combiner.carry_all([Exchange(step, wake_none) for step in steps])
        self.tender.wake()

    def _sleep(self, waiter: Waiter, pause: Pause) -> None:
        """Sleep until the waiter is called, or its pause is over."""
        waiter.rest(pause)
        self.combiner.sleep(waiter)
        waiter.end_rest()

    def _wait_for_links(self) -> None:
        """Wait for the connections under way; see `LinkWait.seconds`."""
        wakeup, began = Wakeup(), clock()
        self._link_waits[wakeup] = None
        try:
            while True:
                left = self._link_wait.seconds(began)
                if left <= 0:
                    break
                wakeup.wait(left)
        finally:
            del self._link_waits[wakeup]

    # What the links ask of their driver.

    def watch(self, master: Master, connection: LinkSocket) -> None:
        """Poll a connection, also until it takes more bytes if it is `blocked`."""
        self.poller.watch(master, connection)

    def unwatch(self, connection: LinkSocket) -> None:
        """Stop polling a connection, which is about to be closed."""
        self.poller.unwatch(connection)

    def changed(self) -> None:
        """Wake the threads that wait for links."""
        for wakeup in list(self._link_waits):
            wakeup.wake()

    def deliver(self, index: int, result: Joined | Unfit) -> bool:
        """Take the result of a connecting thread, in that thread; False ends the thread."""
        with self.combiner.mutex:
            if self.sockets.closed.is_set() or self.links.masters[index].link is not None:
                discard(result)
                return False
            again = self.sockets.arrived(index, result)
            self.sockets.flush()
            self.tender.wake()
            return again

    def look_again(self) -> None:
        """Read the marker of every master that has a link again, soon. Any thread may call this."""
        with self.combiner.mutex:
            if not self.sockets.closed.is_set():
                self.links.sender.check_all()
                self.combiner.send_all()
        self.tender.wake()


class Tender:
    """The thread that reads replies without a waiting thread, and judges which masters are late."""

    def __init__(self, sockets: Sockets, combiner: Combiner) -> None:
        self.thread: threading.Thread | None = None
        self._sockets = sockets
        self._links = sockets.links
        self._combiner = combiner
        self._wakeup = Wakeup()
        self.wake = self._wakeup.wake
        # Whether a round must wake it. Set with the mutex, once no reply is owed: a round that has
        # begun before is owed one, and any other sees it.
        self.is_asleep = True

    @property
    def is_started(self) -> bool:
        """True once the thread runs."""
        return self.thread is not None

    def start(self) -> None:
        """Start the thread, unless the process may have no more threads now."""
        thread = threading.Thread(target=self._tend, name="redlock-tender", daemon=True)
        with suppress(RuntimeError):  # the next round tries again
            thread.start()
            # Last: a thread that sees it set does not wait for the mutex.
            self.thread = thread

    def _tend(self) -> None:
        closed = self._sockets.closed
        while not closed.is_set():
            # Nothing may end this thread, because no other one reads replies without a caller.
            try:
                self._tend_until_closed()
            except BaseException:
                with suppress(BaseException):
                    logger.exception("redlock: the tender thread failed, and continues")
                closed.wait(self._links.master_timeout)
                self.wake()

    def _tend_until_closed(self) -> None:
        links, combiner, closed = self._links, self._combiner, self._sockets.closed
        pause = links.master_timeout / 2
        dialed = True
        while not closed.is_set():
            self._wakeup.wait(None if dialed else REDIAL)
            self.is_asleep = False
            with combiner.mutex:
                dialed = self._retry()
            began = clock()
            while not closed.wait(pause):
                self.read_backlogs()
                with combiner.mutex:
                    if combiner.reader is None:  # otherwise the reader reads and judges
                        for master in links.owing():
                            self._serve(master)
                        now = clock()
                        self._sockets.waited(pause, now - began, now)
                    combiner.send_all()
                    began = clock()
                    if not links.owing():
                        dialed, self.is_asleep = self._retry(), True
                        break

    def _retry(self) -> bool:
        """Repeat what could not be done for masters; return whether nothing is left to repeat."""
        is_done = self._links.changes.retry()
        self._sockets.flush()
        return is_done

    def read_backlogs(self) -> None:
        """Read all replies that come too late, in parts, so that callers need not wait for all."""
        left = -1
        while not self._sockets.closed.is_set():
            with self._combiner.mutex:
                late = self._late_masters()
                owed = sum(len(master.link.owed) for master in late if master.link is not None)
                if self._combiner.reader is not None or owed in (0, left):
                    return
                left = owed
                self._sockets.read(late)
                self._sockets.flush()
            # Without the pause, this thread would mostly be the next to get the mutex again.
            time.sleep(GIVE_WAY)

    def _late_masters(self) -> list[Master]:
        return [m for m in self._links.owing() if m.link is not None and m.link.expired]

    def _serve(self, master: Master) -> None:
        self._sockets.read((master,))
        self._links.dirty.add(master)  # no thread polls: if it is blocked, try again


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

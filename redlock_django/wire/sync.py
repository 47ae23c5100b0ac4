"""The links of a process for its threads: each carries its protocols over links that all share.

How one thread sends and reads for all others is in `thread_links`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from redlock_django.engine.protocol_steps import Pause, Protocol, Result, Round, Step
from redlock_django.engine.trampoline import is_finished
from redlock_django.wire.clock import clock
from redlock_django.wire.exchange import Batch, wake_none
from redlock_django.wire.link_state import IDLE
from redlock_django.wire.master import Master
from redlock_django.wire.reentry import Interrupting, Running
from redlock_django.wire.thread_links import ThreadLinks
from redlock_django.wire.waiters import Waiter

logger = logging.getLogger("redlock_django")

REDIAL = 0.5  # seconds after which a thread that could not be started is tried again
GIVE_WAY = 0.0002  # seconds for which other threads get the links between two parts of a backlog


class SyncLinks(ThreadLinks):
    """The links of one process, for callers that may block. Thread-safe."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._running = Running.of_threads()

    def run(
        self,
        protocol: Protocol[Result],
        *,
        wait_for_links: bool = True,
        waiter: Waiter | None = None,
    ) -> Result:
        """Run a protocol to its end and return its result.

        With `wait_for_links`, a round without a quorum of links waits for connections under
        way. The pauses of a `waiter` end when it is called. Raises Interrupting, and sends nothing,
        if the caller interrupts another lock operation of this thread.
        """
        running = self._running
        if self.inside() or (running.busy and running.is_interrupted(SyncLinks.run.__code__, self)):
            raise Interrupting
        if self._tender is None:
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
                if waiter is not None:
                    with self._mutex:
                        self.waiters.interrupt(waiter)
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

    def waiter(self, resources: tuple[str, ...]) -> Waiter:
        """Return a new waiter for these resources; call its `leave` at the end."""
        if self.inside() or self._running.is_interrupted(SyncLinks.run.__code__, self):
            raise Interrupting
        with self._mutex:
            return super().waiter(resources)

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
        self._poller.close()

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
        if waiter is not None and waiter.takes_verdict(step):
            self._tender_wakeup.wake()
            return
        if clock() - self._last_look > IDLE:
            self._read_idle()
        if wait_for_links and not self.plan.until and self.may_gain_quorum(step):
            self._wait_for_links()
        if waiter is not None:
            waiter.ask()
        self._await(self.exchange(step, self._wake_reader))
        self._tender_wakeup.wake()

    def _take_all(self, steps: Sequence[Round]) -> None:
        """Send several rounds together, and wait until all of them are decided."""
        if clock() - self._last_look > IDLE:
            self._read_idle()
        batch = Batch(len(steps))
        exchanges = [self.exchange(step, batch.count) for step in steps]
        try:
            self._queue.extend(exchanges)
            with self._mutex:
                self._send_all()
            while True:
                if batch.decided:
                    break
                self._wait(batch, self._waiting, self.master_timeout)
        except BaseException:
            for exchange in exchanges:
                exchange.abandon()
            raise
        finally:
            self._leave(batch)
        self._tender_wakeup.wake()

    def _sleep(self, waiter: Waiter, pause: Pause) -> None:
        """Sleep until the waiter is called or answered; read for all threads if none does."""
        try:
            self.waiters.begin_pause(waiter, pause)
            while True:
                left = waiter.until - clock()
                if waiter.decided or left <= 0:
                    break
                self._wait(waiter, self._sleeping, left)
        finally:
            self._leave(waiter)
        with self._mutex:  # another thread may be sending the next round
            self.waiters.end_pause(waiter)

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
                self._read_backlogs()
                with self._mutex:
                    if self._reader is None:  # otherwise the reader reads and judges
                        for master in self.owing():
                            self._serve(master)
                        now = clock()
                        self.lateness.waited(pause, now - began, now)
                    self._send_all()
                    began = clock()
                    if not self.owing():
                        break

    def _read_backlogs(self) -> None:
        """Read all replies that come too late, in parts, so that callers need not wait for all."""
        left = -1
        while not self.closed.is_set():
            with self._mutex:
                late = self._late_masters()
                owed = sum(len(master.link.owed) for master in late if master.link is not None)
                if self._reader is not None or owed in (0, left):
                    return
                left = owed
                self.read(*late)
            # Without the pause, this thread would mostly be the next to get the mutex again.
            time.sleep(GIVE_WAY)

    def _late_masters(self) -> list[Master]:
        return [m for m in self.owing() if m.link is not None and m.link.expired]

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

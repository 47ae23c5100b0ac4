"""A worker process of the campaign: threads and tasks that acquire locks, and obey commands.

Each has a key of its own, by which availability is measured, or competes for keys that all share,
by which exclusion is checked: locks, two of them at once, and the slots of a name, each of which
has one holder. Events go to stdout, one JSON list a line: the name of the thread, then the fields
of `history.Event`; "own" events have the latency in seconds as `until`. Commands come from stdin;
"end" ends the worker.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import threading
import time
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from redlock_django.engine.errors import LockLost
from redlock_django.wire.clock import clock
from tests.app.ways import AsyncWay, SyncWay
from tests.programs import set_up

if TYPE_CHECKING:
    from redlock_django import Lock

TTL = 1.0
SESSION = 1.0  # seconds for which ZooKeeper keeps the locks of a process that it does not hear
SHARED = 3  # keys that all workers share
PERMITS = "permits"  # the name that they share with a limit
LIMIT = 2
PAUSE = 0.05  # seconds between two tries of a thread, on average
LOOKS = 0.1  # seconds between two looks at a lock that is held


class Tasks(AsyncWay):
    """The calls with which a task uses locks."""

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Threads(SyncWay):
    """The calls with which a thread uses locks. It sleeps only until the worker ends."""

    def __init__(self, ending: threading.Event) -> None:
        self._ending = ending

    async def pause(self, seconds: float) -> None:
        self._ending.wait(seconds)


class Worker:
    """Threads and a loop that acquire one lock after the other, until they are ended."""

    def __init__(self, name: str, *, has_deadlines: bool) -> None:
        self._name = name
        self._has_deadlines = has_deadlines  # a lease lasts until its deadline, as in all but one
        self._ending = threading.Event()
        self._commands: SimpleQueue[str] = SimpleQueue()
        signal.signal(signal.SIGUSR1, lambda *_: None)  # a storm of signals interrupts system calls

    def run(self) -> None:
        """Run until the command "end" or the end of stdin."""
        way = Threads(self._ending)
        threads = [
            threading.Thread(target=self._read_commands, daemon=True),
            threading.Thread(target=way.run, args=(self._compete("a", way),)),
            threading.Thread(target=way.run, args=(self._compete("b", way),)),
            threading.Thread(target=asyncio.run, args=(self._loop(),)),
        ]
        for thread in threads:
            thread.start()
        way.run(self._measure("main", way))
        for thread in threads[1:]:
            thread.join()

    def _read_commands(self) -> None:
        for line in sys.stdin:
            if line.strip() == "end":
                break
            self._commands.put(line.strip())
        self._ending.set()

    async def _loop(self) -> None:
        await asyncio.gather(self._measure("task", Tasks()), self._compete("c", Tasks()))

    async def _measure(self, thread: str, way: Threads | Tasks) -> None:
        """Acquire a key that no other thread wants; the main thread also obeys."""
        from redlock_django import lock

        key, rng = f"own:{self._name}:{thread}", random.Random()
        while not self._ending.is_set():
            if thread == "main":
                with suppress(Empty):
                    self._obey(self._commands.get_nowait())
            began, result = clock(), "granted"
            held = lock(key)
            try:
                await way.acquire(held)
                took = clock() - began
                # No block, whose end raises LockLost after the worker was stopped.
                await way.release(held)
            except Exception as error:  # noqa: BLE001 - reported; an unexpected one is a failure
                took, result = clock() - began, _result_of(error)
            self._report(thread, "own", key, until=took, entry=result)
            await way.pause(rng.uniform(0, 2 * PAUSE))

    async def _compete(self, thread: str, way: Threads | Tasks) -> None:
        rng = random.Random()
        while not self._ending.is_set():
            names, limit = _wanted(rng)
            try:
                await self._take_turn(thread, way, names, limit, rng)
            except Exception as error:  # noqa: BLE001 - reported, and the campaign has failed
                self._report(thread, "error", names[0], entry=repr(error))
            await way.pause(rng.uniform(0, 2 * PAUSE))

    async def _take_turn(
        self,
        thread: str,
        way: Threads | Tasks,
        names: tuple[str, ...],
        limit: int,
        rng: random.Random,
    ) -> None:
        """Acquire, hold and release; neither a look at the lock nor its release may raise."""
        from redlock_django import NotAcquired, lock

        wait, renew = rng.choice((0, 0.2, 1.0)), rng.random() < 0.5
        held = lock(*names, wait=wait, limit=limit, renew=renew)
        self._report_each(thread, "acquire", names)
        try:
            await way.acquire(held)
        except NotAcquired:
            self._report_each(thread, "refused", names)
            return
        self._report_lease(thread, "granted", held)
        left = _hold(rng)
        while left > 0:
            await way.pause(min(left, LOOKS))
            left -= LOOKS
            self._report_lease(thread, "renewed", held)
        self._report_each(thread, "release", names)
        await way.release(held)
        self._report_each(thread, "released", names)

    # Commands, in the main thread.

    def _obey(self, command: str) -> None:
        name, _, seconds = command.partition(" ")
        getattr(self, f"_{name}")(float(seconds))

    def _fork(self, seconds: float) -> None:
        """Fork while threads hold locks; the child holds none of them, and acquires its own."""
        from redlock_django import NotAcquired, lock

        child = os.fork()
        if child == 0:
            status = 1
            with suppress(NotAcquired):
                status = 0
                with lock(f"own:{self._name}:child:{os.getpid()}", wait=seconds):
                    pass
            os._exit(status)
        if os.waitpid(child, 0)[1]:
            self._report("main", "error", "fork", entry="a forked child failed")

    def _no_threads(self, seconds: float) -> None:
        """Make every start of a thread fail, as in a full pids cgroup."""
        start = threading.Thread.start

        def refuse(thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        threading.Thread.start = refuse  # type: ignore[assignment,method-assign]

        def again() -> None:
            threading.Thread.start = start  # type: ignore[method-assign]

        self._later(seconds, again, start)

    def _slow_receivers(self, seconds: float) -> None:
        from redlock_django.signals import lock_acquired, lock_lost

        def sleep(**_: Any) -> None:
            time.sleep(0.1)

        lock_acquired.connect(sleep, weak=False)
        lock_lost.connect(sleep, weak=False)

        def again() -> None:
            lock_acquired.disconnect(sleep)
            lock_lost.disconnect(sleep)

        self._later(seconds, again)

    def _hold_gil(self, seconds: float) -> None:
        until = clock() + seconds
        while clock() < until:
            sum(range(10_000_000))  # one bytecode: no other thread runs meanwhile

    def _later(self, seconds: float, what: Any, start: Any = threading.Thread.start) -> None:
        def wait() -> None:
            time.sleep(seconds)
            what()

        start(threading.Thread(target=wait, daemon=True))

    # Events.

    def _report_lease(self, thread: str, what: str, held: Lock) -> None:
        """Report each name of a lease and its end: the deadline, or else the last moment known.

        A session of ZooKeeper may end before the deadline, which `ensure_held()` then reports.
        """
        if held._held_lease is None:
            return
        lease, until = held._held_lease.lease, clock()
        if self._has_deadlines:
            until = lease.until
        elif what == "granted":
            until = 0.0
        else:
            try:
                held.ensure_held()
            except LockLost:
                return
        # Of permits, the resources are slots.
        for number, (resource, fence) in enumerate(zip(lease.resources, lease.fences, strict=True)):
            self._report(_of_name(thread, number), what, resource, fence, until)

    def _report_each(self, thread: str, what: str, names: tuple[str, ...]) -> None:
        for number, name in enumerate(sorted(names)):
            self._report(_of_name(thread, number), what, name)

    def _report(
        self,
        thread: str,
        what: str,
        key: str,
        fence: int = 0,
        until: float = 0.0,
        entry: str = "",
    ) -> None:
        # One write, so that a killed worker has reported either the whole line or nothing.
        line = json.dumps([f"{self._name}/{thread}", what, clock(), key, fence, until, entry])
        os.write(sys.stdout.fileno(), line.encode() + b"\n")


def _result_of(error: Exception) -> str:
    """Return the result of an acquire that raised an error, as it is reported."""
    from redlock_django import NotAcquired, ResourceLocked

    if not isinstance(error, NotAcquired):
        return f"error: {error!r}"
    return "locked" if isinstance(error, ResourceLocked) else "unreachable"


def _of_name(thread: str, number: int) -> str:
    """Return the worker of a history that has this name of a thread: one has one name at a time."""
    return f"{thread}{'+' * number}"


def _wanted(rng: random.Random) -> tuple[tuple[str, ...], int]:
    """Return names that all workers share, and their limit: 1 for a lock."""
    if rng.random() < 0.3:
        return (PERMITS,), LIMIT
    many = 2 if rng.random() < 0.2 else 1
    return tuple(f"shared:{number}" for number in rng.sample(range(SHARED), many)), 1


def _hold(rng: random.Random) -> float:
    return rng.uniform(0, 0.03) if rng.random() > 0.05 else 1.5 * TTL


if __name__ == "__main__":
    name, given = sys.argv[1:]
    set_up(given)
    Worker(name, has_deadlines="zookeeper" not in given).run()

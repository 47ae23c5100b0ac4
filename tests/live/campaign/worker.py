"""A worker process of the campaign: threads and tasks that acquire locks, and obey commands.

Each has a key of its own, by which availability is measured, or competes for keys that all share,
by which exclusion is checked: locks, and the slots of a name, each of which has one holder. Events
go to stdout, one JSON list a line: the name of the thread, then the fields of `history.Event`;
"own" events have the latency in seconds as `until`. Commands come from stdin; "end" ends the
worker.
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

import django
from django.conf import settings

from redlock_django.wire.clock import clock

if TYPE_CHECKING:
    from redlock_django import Lock

TTL = 1.0
SHARED = 3  # keys that all workers share
PERMITS = "permits"  # the name that they share with a limit
LIMIT = 2
PAUSE = 0.05  # seconds between two tries of a thread, on average


def lock_settings(masters: list[str]) -> dict[str, Any]:
    """Return REDLOCK for the campaign: short TTLs, otherwise the defaults."""
    return {"default": {"MASTERS": masters, "TTL": TTL, "MAX_TTL": TTL}}


class Worker:
    """Threads and a loop that acquire one lock after the other, until they are ended."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._ending = threading.Event()
        self._commands: SimpleQueue[str] = SimpleQueue()
        signal.signal(signal.SIGUSR1, lambda *_: None)  # a storm of signals interrupts system calls

    def run(self) -> None:
        """Run until the command "end" or the end of stdin."""
        threads = [
            threading.Thread(target=self._read_commands, daemon=True),
            threading.Thread(target=self._compete, args=("a",)),
            threading.Thread(target=self._compete, args=("b",)),
            threading.Thread(target=asyncio.run, args=(self._loop(),)),
        ]
        for thread in threads:
            thread.start()
        self._measure("main")
        for thread in threads[1:]:
            thread.join()

    def _read_commands(self) -> None:
        for line in sys.stdin:
            if line.strip() == "end":
                break
            self._commands.put(line.strip())
        self._ending.set()

    # Threads.

    def _measure(self, thread: str) -> None:
        """Acquire a key that no other thread wants, in the main thread, which also obeys."""
        from redlock_django import lock

        key, rng = f"own:{self._name}:{thread}", random.Random()
        while not self._ending.is_set():
            with suppress(Empty):
                self._obey(self._commands.get_nowait())
            began, result = clock(), "granted"
            held = lock(key)
            try:
                held.acquire()
                took = clock() - began
                held.release()  # no block, whose end raises LockLost after the worker was stopped
            except Exception as error:  # noqa: BLE001 - reported; an unexpected one is a failure
                took, result = clock() - began, _result_of(error)
            self._report(thread, "own", key, until=took, entry=result)
            self._ending.wait(rng.uniform(0, 2 * PAUSE))

    def _compete(self, thread: str) -> None:
        from redlock_django import NotAcquired, lock

        rng = random.Random()
        while not self._ending.is_set():
            key, limit = _wanted(rng)
            held = lock(key, wait=rng.choice((0, 0.2, 1.0)), limit=limit)
            self._report(thread, "acquire", key)
            try:
                held.acquire()
            except NotAcquired:
                self._report(thread, "refused", key)
            except Exception as error:  # noqa: BLE001 - reported, and the campaign has failed
                self._report(thread, "error", key, entry=repr(error))
            else:
                self._report_lease(thread, "granted", held)
                self._ending.wait(_hold(rng))
                self._report_lease(thread, "renewed", held)
                self._report(thread, "release", key)
                held.release()
                self._report(thread, "released", key)
            self._ending.wait(rng.uniform(0, 2 * PAUSE))

    # Tasks of a loop.

    async def _loop(self) -> None:
        await asyncio.gather(self._ameasure("task"), self._acompete("c"))

    async def _ameasure(self, task: str) -> None:
        from redlock_django import lock

        key, rng = f"own:{self._name}:{task}", random.Random()
        while not self._ending.is_set():
            began, result = clock(), "granted"
            held = lock(key)
            try:
                await held.aacquire()
                took = clock() - began
                await held.arelease()  # no block, as above
            except Exception as error:  # noqa: BLE001 - reported; an unexpected one is a failure
                took, result = clock() - began, _result_of(error)
            self._report(task, "own", key, until=took, entry=result)
            await asyncio.sleep(rng.uniform(0, 2 * PAUSE))

    async def _acompete(self, task: str) -> None:
        from redlock_django import NotAcquired, lock

        rng = random.Random()
        while not self._ending.is_set():
            key, limit = _wanted(rng)
            held = lock(key, wait=rng.choice((0, 0.2, 1.0)), limit=limit)
            self._report(task, "acquire", key)
            try:
                await held.aacquire()
            except NotAcquired:
                self._report(task, "refused", key)
            except Exception as error:  # noqa: BLE001 - reported, and the campaign has failed
                self._report(task, "error", key, entry=repr(error))
            else:
                self._report_lease(task, "granted", held)
                await asyncio.sleep(_hold(rng))
                self._report_lease(task, "renewed", held)
                self._report(task, "release", key)
                await held.arelease()
                self._report(task, "released", key)
            await asyncio.sleep(rng.uniform(0, 2 * PAUSE))

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
        if held._held_lease is not None:
            lease = held._held_lease.lease
            [resource] = lease.resources  # of a permit, its slot
            self._report(thread, what, resource, lease.fences[0], lease.until)

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


def _wanted(rng: random.Random) -> tuple[str, int]:
    """Return a name that all workers share, and its limit: 1 for a lock."""
    if rng.random() < 0.3:
        return PERMITS, LIMIT
    return f"shared:{rng.randrange(SHARED)}", 1


def _hold(rng: random.Random) -> float:
    return rng.uniform(0, 0.03) if rng.random() > 0.05 else 1.5 * TTL


def use_pymysql(given: str) -> None:
    """Make Django use PyMySQL, if these settings have a database of MySQL."""
    if "backends.mysql" in given:
        import pymysql

        pymysql.install_as_MySQLdb()


def main(name: str, target: str) -> None:
    """Set Django up and run the worker; `target` has the URLs of masters, or settings as JSON."""
    of_masters = {"REDLOCK": lock_settings(target.split(","))}
    given = json.loads(target) if target.startswith("{") else of_masters
    use_pymysql(target)
    settings.configure(**given, INSTALLED_APPS=["redlock_django"])
    django.setup()
    Worker(name).run()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])

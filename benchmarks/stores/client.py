"""The jobs of a client process of a store, with `lock()` and the locks of peers."""

from __future__ import annotations

import importlib.util
import itertools
import logging
import multiprocessing
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.programs import NAME, configure
from benchmarks.stores.servers import Place
from tests.live.campaign.worker import use_pymysql

THREADS = 16
SECONDS = 0.4  # of a measurement
WAITS = 20.0  # seconds that a waiter waits at most
OUTAGE = 5.0  # seconds of pairs around the death of a server

Release = Callable[[], object]
Take = Callable[[str, float], "Release | None"]
"""Takes a lock, waiting for so many seconds at most; returns its release, None if it is refused."""


def ours(place: Place) -> Take:
    """Return what takes a lock by `lock()`."""
    from redlock_django import ResourceLocked, lock

    def take(name: str, wait: float) -> Release | None:
        held = lock(name, wait=wait)
        try:
            held.acquire()
        except ResourceLocked:
            return None
        return held.release

    return take


def redis_py(place: Place) -> Take:
    """Return what takes the lock of redis-py."""
    from redis import Redis

    client = Redis.from_url(place.addresses[0])

    def take(name: str, wait: float) -> Release | None:
        held = client.lock(f"redis-py:{name}", timeout=10)
        taken = held.acquire(blocking=wait > 0, blocking_timeout=wait or None)
        return held.release if taken else None

    return take


def pglock(place: Place) -> Take:
    """Return what takes the lock of django-pglock, on the connection of the thread."""
    from pglock import advisory

    def take(name: str, wait: float) -> Release | None:
        held = advisory(name, timeout=wait)
        return (lambda: held.__exit__(None, None, None)) if held.__enter__() else None

    return take


def kazoo(place: Place) -> Take:
    """Return what takes the lock of kazoo, with one object for all locks of a name."""
    from kazoo.client import KazooClient
    from kazoo.exceptions import LockTimeout

    client = KazooClient(hosts=",".join(place.addresses))
    client.start()
    made: dict[str, Any] = {}

    def take(name: str, wait: float) -> Release | None:
        if name not in made:
            made[name] = client.Lock(f"/kazoo/{name}")
        held = made[name]
        try:
            taken = held.acquire(blocking=wait > 0, timeout=wait or None)
        except LockTimeout:
            return None
        return held.release if taken else None

    return take


PEERS: Mapping[str, tuple[str, Callable[[Place], Take]]] = {
    "redis-py's Lock": ("redis", redis_py),
    "django-pglock": ("pglock", pglock),
    "kazoo's Lock": ("kazoo", kazoo),
}
OURS = "lock()"


class Jobs:
    """The measurements of one client process, by the names that the parent sends."""

    def __init__(self, place: Place) -> None:
        self._takes = {OURS: ours(place)}
        for name in place.peers:
            package, take = PEERS[name]
            if importlib.util.find_spec(package):
                self._takes[name] = take(place)
        self._release: Release | None = None

    def names(self) -> list[str]:
        """Return the contenders."""
        return list(self._takes)

    def pairs(self, contender: str, name: str = NAME) -> list[float]:
        """Acquire and release a lock until the time is over; return the seconds of each pair."""
        take, took = self._takes[contender], []
        until = time.monotonic() + SECONDS
        while (began := time.monotonic()) < until:
            release = take(name, 0)
            assert release is not None
            release()
            took.append(time.monotonic() - began)
        return took

    def threads(self, contender: str) -> float:
        """Return the pairs in a second of threads that lock different names at the same time."""
        done: list[int] = []

        def run(number: int) -> None:
            done.append(len(self.pairs(contender, f"order:{number}")))
            close_connections()

        threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
        began = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(done) == THREADS, "a thread has failed"
        return sum(done) / (time.monotonic() - began)

    def refusals(self, contender: str) -> list[float]:
        """Try to take the lock that another process holds; return the seconds of each try."""
        take, took = self._takes[contender], []
        until = time.monotonic() + SECONDS
        while (began := time.monotonic()) < until:
            assert take(NAME, 0) is None
            took.append(time.monotonic() - began)
        return took

    def hold(self, contender: str) -> None:
        """Take the lock, and keep it."""
        self._release = self._takes[contender](NAME, WAITS)
        assert self._release is not None

    def release(self, contender: str) -> float:
        """Release the lock that `hold` took; return the moment before."""
        assert self._release is not None
        began = time.monotonic()
        self._release()
        return began

    def wait(self, contender: str) -> float:
        """Wait for the lock, and release it; return the moment at which it was held."""
        release = self._takes[contender](NAME, WAITS)
        held_at = time.monotonic()
        assert release is not None
        release()
        return held_at

    def outage(self, contender: str) -> float:
        """Return the longest time between the ends of two pairs, whatever fails in between."""
        take, longest, last = self._takes[contender], 0.0, time.monotonic()
        until = last + OUTAGE
        for number in itertools.count():
            if (now := time.monotonic()) > until:
                return max(longest, now - last)
            with suppress(Exception):  # each library has its own errors for a server that is gone
                # Another name each time: a lock that could not be released is held for its TTL.
                if (release := take(f"{NAME}:{number}", 0)) is not None:
                    release()
                    now = time.monotonic()
                    longest, last = max(longest, now - last), now
                    continue
            time.sleep(0.002)
        raise AssertionError("unreachable")


def close_connections() -> None:
    """Close the connections of this thread to databases."""
    from django.db import connections

    connections.close_all()


def serve(place: Place, first: bool, pipe: Connection) -> None:
    """Set up a client process, and do what the parent sends until it sends None."""
    logging.disable(logging.CRITICAL)  # while a server is down, all libraries log that
    use_pymysql(str(place.settings))
    configure(**place.settings, DATABASE_ROUTERS=[], INSTALLED_APPS=["redlock_django"])
    from redlock_django import locks

    if first:
        from django.core.management import call_command

        call_command("migrate", verbosity=0)
        locks["default"].backend.declare_new()
    jobs = Jobs(place)
    pipe.send(jobs.names())
    while asked := pipe.recv():
        job, *arguments = asked
        try:
            pipe.send(getattr(jobs, job)(*arguments))
        except Exception as error:  # noqa: BLE001 the parent raises it
            pipe.send(error)
    locks.close()


class Client:
    """A client process."""

    def __init__(self, place: Place, stack: ExitStack, *, first: bool = False) -> None:
        spawning = multiprocessing.get_context("spawn")
        self._pipe, theirs = spawning.Pipe()
        process = spawning.Process(target=serve, args=(place, first, theirs), daemon=True)
        process.start()
        stack.callback(process.join, 30)
        stack.callback(self._pipe.send, None)
        self.names: list[str] = self.answer()

    def ask(self, *what: str) -> None:
        """Begin a job."""
        self._pipe.send(what)

    def answer(self) -> Any:
        """Return what the last job returned; raise what it raised."""
        if not self._pipe.poll(120):
            raise TimeoutError("a client process does not answer")
        if isinstance(answer := self._pipe.recv(), Exception):
            raise answer
        return answer

    def run(self, *what: str) -> Any:
        """Do a job, and return its result."""
        self.ask(*what)
        return self.answer()

"""Waiting until a condition holds, instead of sleeping for a guessed time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


def until(
    condition: Callable[[], object],
    what: str = "it",
    *,
    seconds: float = 60.0,
    longest: float = 0.02,
) -> float:
    """Wait until the condition holds, and return how many seconds that took.

    The pauses between two checks grow up to `longest` seconds: checking without a pause would take
    the processor from the code that is waited for. Raise AssertionError with `what` if the
    condition does not hold within `seconds`.
    """
    began, pause = time.monotonic(), 0.001
    while not condition():
        assert time.monotonic() - began < seconds, f"not within {seconds:g} s: {what}"
        time.sleep(pause)
        pause = min(pause * 1.4, longest)
    return time.monotonic() - began


def is_wanted(resource: str) -> bool:
    """Return whether a client waits for a lock in memory: every master has refused it."""
    from redlock_django.backends.memory.backend import MemoryBackend
    from redlock_django.locking.services import locks

    backend = locks["default"].backend
    assert isinstance(backend, MemoryBackend)
    queue = backend.deployment.queue(resource)
    # Before that, its first attempt may still win.
    return all(master.keyspace.sorted_set(queue) for master in backend.masters)


async def until_wanted(resource: str) -> None:
    """Run the loop until a client waits for a lock in memory."""
    async with asyncio.timeout(60):
        while not is_wanted(resource):  # noqa: ASYNC110 - a master calls nobody here
            await asyncio.sleep(0.005)


def hold_until_wanted(resource: str) -> None:
    """Hold a lock in memory until a thread waits for it, and let the thread have it."""
    from redlock_django import lock

    def wait_for_it() -> None:
        with lock(resource, wait=60):
            pass

    waiter = threading.Thread(target=wait_for_it)
    with lock(resource):
        waiter.start()
        until(lambda: is_wanted(resource), "a waiter")
    waiter.join()


@contextmanager
def stalls() -> Iterator[Callable[[], float]]:
    """Measure in seconds how late a thread of this process was woken, in all.

    Add it to a bound on how long something takes: on a busy machine other processes have run.
    """
    over, late = threading.Event(), 0.0

    def sleep_on() -> None:
        nonlocal late
        woken = time.monotonic()
        while not over.wait(0.005):
            late += max(0.0, time.monotonic() - woken - 0.006)
            woken = time.monotonic()

    thread = threading.Thread(target=sleep_on)
    thread.start()
    try:
        yield lambda: late
    finally:
        over.set()
        thread.join()

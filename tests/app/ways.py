"""The two ways to use a lock: sync calls, and coroutines. One scenario describes both.

A scenario is a coroutine that uses its locks through `way`. In the sync way it never waits for
anything, so it runs without a loop, in the thread of the test.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

from redlock_django.locking.lock import Lock


class SyncWay:
    """Uses a lock as a thread does."""

    async def acquire(self, held: Lock) -> Lock:
        return held.acquire()

    async def extend(self, held: Lock, ttl: Any = None) -> float:
        return held.extend(ttl)

    async def verify(self, held: Lock) -> None:
        held.verify()

    async def release(self, held: Lock) -> bool:
        return held.release()

    @asynccontextmanager
    async def block(self, entered: Any) -> AsyncIterator[Any]:
        """Enter a lock, or anything else that both kinds of blocks can enter."""
        with entered as inside:
            yield inside

    async def settle(self) -> None:
        """Wait until the receivers of all signals have been called."""

    def run(self, scenario: Coroutine[Any, Any, None]) -> None:
        with pytest.raises(StopIteration):
            scenario.send(None)


class AsyncWay(SyncWay):
    """Uses a lock as a task does."""

    async def acquire(self, held: Lock) -> Lock:
        return await held.aacquire()

    async def extend(self, held: Lock, ttl: Any = None) -> float:
        return await held.aextend(ttl)

    async def verify(self, held: Lock) -> None:
        await held.averify()

    async def release(self, held: Lock) -> bool:
        return await held.arelease()

    @asynccontextmanager
    async def block(self, entered: Any) -> AsyncIterator[Any]:
        async with entered as inside:
            yield inside

    async def settle(self) -> None:
        while len(asyncio.all_tasks()) > 1:  # noqa: ASYNC110 - receivers run in threads, too
            await asyncio.sleep(0.001)
        await asyncio.sleep(0)  # The callback of the last one logs a failure.

    def run(self, scenario: Coroutine[Any, Any, None]) -> None:
        async def in_time() -> None:
            async with asyncio.timeout(60):
                await scenario

        asyncio.run(in_time())


def in_both_ways(scenario: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Make tests of a scenario, whose first argument is the way."""

    @functools.wraps(scenario)
    def test(way: SyncWay, **fixtures: Any) -> None:
        way.run(scenario(way, **fixtures))

    ways = pytest.mark.parametrize("way", [SyncWay(), AsyncWay()], ids=["sync", "async"])
    tests: Callable[..., None] = ways(test)
    return tests

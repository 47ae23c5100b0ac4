"""The bench that a job works at: a contender, an intruder, and threads or tasks.

A job is a coroutine, written once for both APIs. `Tasks` runs it on a loop. `Threads` runs it
without one: the methods of a contender are called in coroutines that never wait for a loop, which
costs each call 0.1 µs, and what happens at the same time are threads.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from django.db import connections

from benchmarks.worker.figures import Done, Span, clock
from benchmarks.worker.witness import LOOK_EVERY, Intruder

KEYS = 64
"""The number of resources that the pairs of a thread use in turn."""

Work = Callable[[float, Done], Awaitable[None]]
"""Works until a time of `clock`, and notes what was done."""


def name(kind: str, place: int) -> str:
    """Return a resource; all names have the same length, so that all contenders send as much."""
    return f"bench:{kind:>5}:{place:04}".replace(" ", "-")


def complete(job: Coroutine[Any, Any, Any]) -> Any:
    """Run a job that waits for no loop, and return its result."""
    try:
        job.send(None)
    except StopIteration as ended:
        return ended.value
    raise RuntimeError("a job waited for a loop, but the contender has the sync API")


class Bench:
    """The parts of a bench that are common to both APIs."""

    # Of either API: coroutine functions, but for `event`, which is a class, and `start`.
    event: Any
    acquire: Any
    wait: Any
    release: Any
    sleep: Any
    limited: Any
    start: Any
    aside: Any
    ended: Any
    until: Any

    def __init__(self, contender: Any, intruder: Intruder) -> None:
        self.contender, self.intruder = contender, intruder
        self.held: list[Any] = []  # from one job to the next

    async def measured(self, work: Work, *, seconds: float, warm_up: float = 0.2) -> dict[str, Any]:
        """Work to warm up, then for `seconds`, and return the figures."""
        await work(clock() + warm_up, Done())
        done, span = Done(), Span()
        await work(clock() + seconds, done)
        return span.figures(done, self.intruder)

    async def pairs(self, names: list[str], until: float, done: Done) -> None:
        """Acquire and release each of the names in turn; tasks may share `done`."""
        timer = time.perf_counter
        while clock() < until:
            resource, look = names[done.begun % len(names)], done.begun % LOOK_EVERY == 0
            done.begun += 1
            began = timer()
            try:
                held = await self.acquire(resource)
                if held is None:
                    done.fail("refused, but it was free")
                    continue
                taken = timer()
                if look:
                    self.intruder.look(self.contender.key(resource, held))
                leaving = timer()
                await self.release(held)
                done.seconds.append(timer() - leaving + taken - began)
            except Exception as error:  # noqa: BLE001 - any error is a failed pair
                done.fail(error)

    async def refusals(self, resource: str, until: float, done: Done) -> None:
        """Try to acquire a lock that another client holds; success counts as an overlap."""
        while clock() < until:
            began = time.perf_counter()
            held = await self.acquire(resource)
            done.seconds.append(time.perf_counter() - began)
            self.intruder.looks += 1
            if held is not None:
                self.intruder.overlaps += 1
                await self.release(held)

    @asynccontextmanager
    async def holding(self, resource: str) -> AsyncIterator[Any]:
        """Hold a resource in another thread or task until the event is set or the block ends."""
        taken, enough = self.event(), self.event()

        async def hold() -> None:
            held = await self.wait(resource)
            taken.set()
            await self.until(enough)
            await self.release(held)

        holder = self.start(hold())
        await self.until(taken, within=30)
        try:
            yield enough
        finally:
            enough.set()
            await self.ended(holder)


class Threads(Bench):
    """The bench of a contender with the sync API."""

    event = threading.Event

    async def acquire(self, resource: str) -> Any:
        return self.contender.acquire(resource)

    async def wait(self, resource: str) -> Any:
        return self.contender.wait(resource)

    async def release(self, held: Any) -> None:
        self.contender.release(held)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - there is no loop

    @staticmethod
    async def aside(function: Callable[[], Any]) -> Any:
        """Call a function that blocks."""
        return function()

    async def limited(self, work: Coroutine[Any, Any, Any], seconds: float) -> Any:
        """Run a coroutine: nothing can end a call of the sync API."""
        return await work

    @staticmethod
    def finish() -> None:
        """Close the connections of this thread to databases."""
        connections.close_all()

    def start(self, work: Coroutine[Any, Any, Any]) -> threading.Thread:
        """Run a coroutine in a thread."""
        thread = threading.Thread(target=complete, args=(work,), daemon=True)
        thread.start()
        return thread

    async def ended(self, *threads: threading.Thread) -> None:
        """Wait until threads have ended."""
        for thread in threads:
            thread.join()

    async def until(self, event: threading.Event, within: float | None = None) -> None:
        """Wait for an event."""
        if not event.wait(within):
            raise RuntimeError(f"nothing happened within {within} s")

    async def crowd(
        self,
        count: int,
        work: Callable[..., Coroutine[Any, Any, None]],
        *,
        seconds: float,
        warm_up: float = 0.2,
    ) -> dict[str, Any]:
        """Do `work(bench, place, until, done)` in `count` threads; return the figures of all."""
        start, mine = threading.Barrier(count + 1), threading.Lock()
        done, until = Done(), 0.0

        def live(place: int) -> None:
            ours = Done()
            with self.intruder.another() as looker:
                bench = Threads(self.contender, looker)
                complete(work(bench, place, clock() + warm_up, Done()))
                start.wait()
                start.wait()
                complete(work(bench, place, until, ours))
            self.finish()
            with mine:
                done.take(ours)
                self.intruder.take(looker)

        crowd = [threading.Thread(target=live, args=(n,), daemon=True) for n in range(count)]
        for thread in crowd:
            thread.start()
        start.wait()
        until, span = clock() + seconds, Span()
        start.wait()
        for thread in crowd:
            thread.join()
        return span.figures(done, self.intruder)


class Tasks(Bench):
    """The bench of a contender with the async API, on a running loop."""

    event = asyncio.Event
    start = staticmethod(asyncio.ensure_future)
    sleep = staticmethod(asyncio.sleep)
    limited = staticmethod(asyncio.wait_for)

    def __init__(self, contender: Any, intruder: Intruder) -> None:
        super().__init__(contender, intruder)
        self.acquire, self.wait = contender.acquire, contender.wait
        self.release = contender.release

    @staticmethod
    async def aside(function: Callable[[], Any]) -> Any:
        """Call a function that blocks in a thread, so that tasks continue."""
        return await asyncio.get_running_loop().run_in_executor(None, function)

    async def ended(self, *tasks: Any) -> None:
        """Wait until tasks have ended."""
        await asyncio.gather(*tasks)

    async def until(self, event: asyncio.Event, within: float | None = None) -> None:
        """Wait for an event."""
        await asyncio.wait_for(event.wait(), within)

    async def crowd(
        self, count: int, work: Callable[..., Awaitable[None]], **timing: Any
    ) -> dict[str, Any]:
        """Do `work(bench, place, until, done)` in `count` tasks; return the figures of all."""

        async def everywhere(until: float, done: Done) -> None:
            await asyncio.gather(*(work(self, place, until, done) for place in range(count)))

        return await self.measured(everywhere, **timing)

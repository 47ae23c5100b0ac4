"""Try to acquire a lock that another client holds: the cost of a 423 response."""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks.worker.bench import Bench, Tasks, Threads, name
from benchmarks.worker.figures import Done, clock

RESOURCE = name("held", 0)


async def hold(bench: Bench) -> None:
    """Acquire the lock, and keep it."""
    bench.held.append(await bench.wait(RESOURCE))


async def hold_permits(bench: Bench, *, names: list[str], times: int) -> None:
    """Acquire so many permits of each name, until this process ends."""
    for resource in names:
        for _ in range(times):
            (await bench.wait(resource)).disown()  # as that of another client


async def release(bench: Bench) -> float:
    """Release what was kept, and return the moment before."""
    began = clock()
    while bench.held:
        await bench.release(bench.held.pop())
    return began


async def wait(bench: Bench) -> float:
    """Wait for the lock, release it, and return the moment at which it was held."""
    held = await bench.wait(RESOURCE)
    held_at = clock()
    await bench.release(held)
    return held_at


async def refusals(bench: Bench, **timing: Any) -> dict[str, Any]:
    """Try to acquire the lock, which another process holds."""
    return await bench.measured(partial(bench.refusals, RESOURCE), **timing)


async def crowd(bench: Threads | Tasks, **how: Any) -> dict[str, Any]:
    """Try to acquire the lock, which another process holds, in `count` threads or tasks."""

    async def work(bench: Bench, place: int, until: float, done: Done) -> None:
        await bench.refusals(RESOURCE, until, done)

    return await bench.crowd(work=work, **how)

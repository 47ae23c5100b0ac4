"""Pairs in many threads, or in many tasks of one loop, each with its own keys."""

from __future__ import annotations

from typing import Any

from benchmarks.worker.bench import Bench, Tasks, Threads, name
from benchmarks.worker.figures import Done


async def pairs(
    bench: Threads | Tasks, *, keys: int = 4, process: int = 0, **how: Any
) -> dict[str, Any]:
    """Run pairs in `count` threads or tasks, also among several processes."""

    async def own_pairs(bench: Bench, place: int, until: float, done: Done) -> None:
        names = [name(f"{process:02}{key:02}", place) for key in range(keys)]
        await bench.pairs(names, until, done)

    return await bench.crowd(work=own_pairs, **how)

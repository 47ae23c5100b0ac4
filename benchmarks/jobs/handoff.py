"""Turns of waiters: each waits for the lock, holds it for 1 ms and releases it."""

from __future__ import annotations

import os
from typing import Any

from benchmarks.worker.bench import KEYS, Bench, name
from benchmarks.worker.figures import clock, latencies
from benchmarks.worker.witness import Turnstile

HELD = 0.001
"""Seconds that a turn is held."""


async def turn(bench: Bench, gate: Turnstile, resource: str) -> list[float]:
    """Wait for a lock, hold it and release it; return the times [asked, taken, leaving]."""
    asked = clock()
    held = await bench.wait(resource)
    taken = clock()
    with gate:
        await bench.sleep(HELD)
    leaving = clock()
    await bench.release(held)
    return [asked, taken, leaving]


async def drain(bench: Bench, *, folder: str, seconds: float, waiters: int = 8) -> dict[str, Any]:
    """Repeatedly let waiters queue behind a holder and take one turn each."""
    gate = Turnstile(f"{folder}/turn")
    gaps: list[float] = []
    began, drains = clock(), 0

    async def one(resource: str, turns: list[list[float]]) -> None:
        turns.append(await turn(bench, gate, resource))

    while clock() < began + seconds or drains < 2:
        resource, drains = name("drain", drains % KEYS), drains + 1
        turns: list[list[float]] = []
        async with bench.holding(resource) as enough:
            queue = [bench.start(one(resource, turns)) for _ in range(waiters)]
            await bench.sleep(0.05)  # until all of them wait
            left = clock()
            enough.set()
        await bench.ended(*queue)
        for _, taken, leaving in sorted(turns, key=lambda times: times[1]):
            gaps.append(taken - left)
            left = leaving
    counts = {"turns": len(gaps), "looks": len(gaps), "overlaps": gate.overlaps}
    return {**latencies(gaps), **counts}


async def connect(bench: Bench) -> dict[str, Any]:
    """Connect to the masters, by a lock that no other process asks for."""
    await bench.release(await bench.wait(name("turns", os.getpid())))
    return {}


async def take_turns(
    bench: Bench, *, folder: str, start: float, end: float, pause: float
) -> dict[str, Any]:
    """Take turns with other processes; `start` and `end` are times of `clock`."""
    gate, resource = Turnstile(f"{folder}/turn"), name("turns", 0)
    ours: list[list[float]] = []
    await bench.sleep(max(0.0, start - clock()))
    while clock() < end:
        ours.append(await turn(bench, gate, resource))
        if pause:
            await bench.sleep(pause)
    return {"turns": ours, "looks": len(ours), "overlaps": gate.overlaps}

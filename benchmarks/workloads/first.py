"""The first lock of a process: on how many of five masters it is stored.

A new process connects while it asks for the lock. It could have a majority before the other links
are connected, and then the lock would be lost with one of the masters that grant it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from benchmarks.harness.results import Where
from benchmarks.harness.workload import Target, Workload, worst
from benchmarks.worker.bench import Bench, name

if TYPE_CHECKING:
    from benchmarks.harness.plan import Plan

OURS = ("ours", "ours async")
PROCESSES = 5
ARRIVES = 0.5
"""Seconds for which the processor may keep a master from what was sent to it."""


async def acquire(bench: Bench, *, seconds: float) -> dict[str, Any]:
    """Acquire a lock, which is held until the process ends."""
    if await bench.acquire(name("first", 0)) is None:
        raise RuntimeError("refused, but it was free")
    return {}


def measure(plan: Plan, setting: str, case: str, name: str) -> dict[str, Any]:
    """Start processes one after the other, each on empty masters; setting free."""
    counts = []
    for _ in range(PROCESSES):
        with plan.worker(name, setting) as worker:
            worker.do(job="first.acquire", seconds=0.0)
            counts.append(stored(plan))
    return {"masters": sum(counts) / PROCESSES, "fewest": min(counts)}


def stored(plan: Plan) -> int:
    """Return how many of the first five masters have the lock."""
    key, until = f"redlock:lock:{name('first', 0)}", time.monotonic() + ARRIVES
    while True:
        found = 0
        for master in plan.masters.every[:5]:
            with master.client() as client:
                found += bool(client.exists(key))
        if found == 5 or time.monotonic() > until:
            return found


STORED = worst([Where("first", "free", "one", name).own("masters") for name in OURS], most=False)

WORKLOAD = Workload(
    "first",
    settings=("free",),
    cases=lambda setting: [("one", OURS)],
    measure=measure,
    targets=[Target("the first lock of a process", "masters that store it", 5, STORED, most=False,
                    unit="")],
)  # fmt: skip

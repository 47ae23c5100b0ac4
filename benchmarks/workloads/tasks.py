"""Pairs in 1 to 10 000 tasks of one loop, each with its own key."""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks.harness.picture import Chart
from benchmarks.harness.results import Where
from benchmarks.harness.workload import Column, Reason, Table, Target, Workload, of_cases
from benchmarks.worker.bench import Bench, Tasks, name
from benchmarks.worker.figures import Done
from benchmarks.workloads.pairs import IN_C
from benchmarks.workloads.threads import growth

COUNTS = (1, 10, 100, 1_000, 10_000)
ALWAYS = ("ours async", "floor async")
PEERS = ("aioredlock", "pottery async", "node-redlock", "redis-py async")


async def tasks(bench: Tasks, *, process: int = 0, **how: Any) -> dict[str, Any]:
    """Run pairs in `count` tasks, each with its own key, also among several processes."""

    async def own_pairs(bench: Bench, place: int, until: float, done: Done) -> None:
        await bench.pairs([name(f"{process:02}k{place // 1000}", place % 1000)], until, done)

    return await bench.crowd(work=own_pairs, **how)


def cases(setting: str) -> list[tuple[str, tuple[str, ...]]]:
    """Return the numbers of tasks; the peers run with 100 only."""
    if setting == "stub":
        return [("100", ALWAYS)]
    return [(str(count), (*ALWAYS, *(PEERS if count == 100 else ()))) for count in COUNTS]


BYTES = Reason(
    "tasks",
    "The floor writes recorded bytes and decides nothing; redis-py locks on one master.",
    IN_C,
)
WORK = "100 tasks"
BY_FLOOR, BY_REDIS = "client CPU by floor async", "pairs/s by redis-py async"
FREE, STUB = (Where("tasks", setting, "100", "ours async") for setting in ("free", "stub"))

WORKLOAD = Workload(
    "tasks",
    settings=("free", "stub"),
    cases=cases,
    job="tasks.tasks",
    how=lambda case: {"count": int(case)},
    tables=[
        Table(
            "Tasks: pairs/s, distinct keys",
            [
                *of_cases("{}", "free", (1, 100, 10_000), "per_s"),
                Column("client CPU µs a pair at 100", "free", "100", "cpu_us"),
                Column("masters' CPU µs", "free", "100", "servers_us"),
            ],
        )
    ],
    targets=[
        Target(
            f"{WORK}, stub masters", BY_FLOOR, 6, STUB.by("floor async", "cpu_us"), reason=BYTES
        ),
        Target(WORK, "pairs/s", 6_000, FREE.own("per_s"), most=False, unit="", reason=BYTES),
        Target(WORK, BY_REDIS, 1, FREE.by("redis-py async", "per_s"), most=False, reason=BYTES),
    ],
    charts=[Chart("Pairs/s by tasks", "free", "per_s")],
    growth=partial(growth, "tasks"),
)

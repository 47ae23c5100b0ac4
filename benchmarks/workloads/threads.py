"""Pairs in 1 to 64 threads of one process, each with its own keys.

Scheduled freely, because threads should not share one processor, and on stub masters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from benchmarks.harness.picture import Chart
from benchmarks.harness.results import Results, Values, Where
from benchmarks.harness.workload import Column, Reason, Table, Target, Workload, of_cases, worst
from benchmarks.worker.bench import Bench, Threads, name
from benchmarks.worker.figures import Done
from benchmarks.workloads.pairs import IN_C

COUNTS = (1, 4, 16, 32, 64)
ALWAYS = ("ours", "floor", "redis-py")
CEILING = (1, 16, 32)  # with stub masters
PEERS = {1, 16, 32}  # Peers take long, and values in between add nothing.


async def threads(bench: Threads, *, process: int = 0, **how: Any) -> dict[str, Any]:
    """Run pairs in `count` threads, each with its own keys, also among several processes."""

    async def own_pairs(bench: Bench, place: int, until: float, done: Done) -> None:
        names = [name(f"{process:02}t{place:02}", key) for key in range(4)]
        await bench.pairs(names, until, done)

    return await bench.crowd(work=own_pairs, **how)


def cases(setting: str) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield the numbers of threads."""
    if setting == "stub":
        yield from ((str(count), ALWAYS[:2]) for count in CEILING)
        return
    for count in COUNTS:
        yield str(count), (*ALWAYS, "redlock-py", "pottery") if count in PEERS else ALWAYS


def growth(workload: str, results: Results) -> Iterator[str]:
    """Yield a line on connections."""
    cases = results.names("case", workload=workload)
    opened = [
        f"{other} {connections:.0f}"
        for most in cases[-1:]
        for other in results.names("contender", workload=workload, case=most)
        if (connections := results.median(Where(workload, "free", most, other), "connections"))
    ]
    if opened:
        yield (
            f"**Connections** of a process with {cases[-1]} {workload}, to all five masters "
            f"together: {', '.join(opened)}."
        )


TURNS = Reason(
    "threads",
    "One interpreter runs one thread at a time, and a thread that waits for replies sleeps and "
    "is woken for each round.",
    f"{IN_C}; several processes; tasks",
)


FREE_16, FREE_32 = FREE = [Where("threads", "free", case, "ours") for case in ("16", "32")]
STUB_16 = Where("threads", "stub", "16", "ours")


def rate(work: str, what: str, bound: float, *ratios: Values) -> Target:
    """Return the target of a rate beside another one; of several ratios, the lowest one counts."""
    values = worst(ratios, most=False) if len(ratios) > 1 else ratios[0]
    return Target(f"{work}: pairs/s", what, bound, values, most=False, reason=TURNS)


BOTH = "16 and 32 threads"


WORKLOAD = Workload(
    "threads",
    settings=("free", "stub"),
    cases=cases,
    job="threads.threads",
    how=lambda case: {"count": int(case)},
    tables=[
        Table(
            "Threads: pairs/s, distinct keys",
            [
                *of_cases("{}", "free", (1, 16, 32, 64), "per_s"),
                Column("client CPU µs a pair at 32", "free", "32", "cpu_us"),
                Column("masters' CPU µs", "free", "32", "servers_us"),
            ],
        )
    ],
    targets=[
        rate("16 threads, stub masters", "by floor", 0.65, STUB_16.by("floor", "per_s")),
        rate(BOTH, "by floor", 0.65, *(each.by("floor", "per_s") for each in FREE)),
        rate(BOTH, "by redlock-py", 3, *(each.by("redlock-py", "per_s") for each in FREE)),
        rate("32 threads", "by 16 threads", 1, FREE_32.by(FREE_16, "per_s")),
    ],
    charts=[Chart("Pairs/s by threads", "free", "per_s")],
    growth=partial(growth, "threads"),
)

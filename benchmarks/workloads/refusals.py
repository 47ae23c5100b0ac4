"""Try to acquire a lock that another client holds: the cost of a 423 response."""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks.harness.results import Where
from benchmarks.harness.workload import Column, Reason, Table, Target, Workload, latency
from benchmarks.worker.bench import Bench, name
from benchmarks.workloads.pairs import IN_C

ASKED = ("ours", "floor", "floor SET", "pottery", "redlock-py", "redis-py", "ours async",
         "aioredlock", "pottery async", "node-redlock")  # fmt: skip


async def refusals(bench: Bench, *, own: bool = False, **timing: Any) -> dict[str, Any]:
    """Try to acquire a lock that another process holds, or, with `own`, this very process."""
    resource = name("held", 0)
    async with (bench if own else bench.elsewhere()).holding(resource):
        bench.intruder.look(resource)
        return await bench.measured(partial(bench.refusals, resource), **timing)


VOTES = Reason(
    "refusals",
    "A refusal is decided by the third answer, like a grant; the rest is Python code that "
    "counts votes and makes the exception.",
    IN_C,
)
REFUSE = "refuse a held lock"
OTHERS, OWN = (Where("refusals", "pin", case, "ours") for case in ("one", "own"))

WORKLOAD = Workload(
    "refusals",
    settings=("pin", "rtt"),
    cases=lambda setting: [("one", ASKED), ("own", ("ours", "ours async"))],
    job="refusals.refusals",
    how=lambda case: {"own": case == "own"},
    tables=[
        Table(
            "Refusal of a held lock",
            [
                *latency("pin"),
                *latency("rtt", ms=True),
                Column("held by the same process, pin: p50 µs", "pin", "own", "p50_us"),
            ],
        )
    ],
    targets=[
        Target(REFUSE, "pin: p50 by floor", 2, OTHERS.by("floor"), reason=VOTES),
        Target(
            f"{REFUSE} of the same process",
            "pin: p50",
            10,
            OWN.own("p50_us"),
            unit=" µs",
            reason=VOTES,
        ),
    ],
)

"""Acquire and release repeatedly: the cost of an uncontended lock."""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks.harness.picture import Chart
from benchmarks.harness.results import Where
from benchmarks.harness.workload import Column, Reason, Table, Target, Workload, latency
from benchmarks.worker.bench import KEYS, Bench, name

ASKED = ("ours", "floor", "floor SET", "redlock-py", "pottery", "ours async", "aioredlock",
         "node-redlock", "redis-py", "redis-py async", "python-redis-lock")  # fmt: skip
CEILING = ("ours", "floor", "ours async")
"""The contenders that are measured with stub masters."""


async def pairs(bench: Bench, **timing: Any) -> dict[str, Any]:
    """Acquire and release repeatedly."""
    names = [name("pair", place) for place in range(KEYS)]
    return await bench.measured(partial(bench.pairs, names), **timing)


IN_C = "one call into C that sends, polls and reads"
PYTHON = Reason(
    "pairs",
    "A pair is ten sends, ten reads and two polls. Of the Python code around them no part is "
    "large (`python -m benchmarks pair_parts`).",
    IN_C,
)
LOOP = Reason(
    "pairs async",
    "Each answer takes one turn of asyncio's loop.",
    f"uvloop, which saved 6 % and 28 % of the processor's time in two trials, and {IN_C}",
)
PAIR = "acquire + release, one thread"
STUB, PIN, RTT = (Where("pairs", setting, "one", "ours") for setting in ("stub", "pin", "rtt"))
AIO = Where("pairs", "pin", "one", "ours async")

WORKLOAD = Workload(
    "pairs",
    settings=("pin", "rtt", "stub"),
    cases=lambda setting: [("one", CEILING if setting == "stub" else ASKED)],
    job="pairs.pairs",
    tables=[
        Table(
            "Acquire and release without contention",
            [
                *latency(),
                Column("client CPU µs", "pin", "one", "cpu_us"),
                Column("masters' CPU µs", "pin", "one", "servers_us"),
                Column("stub: client CPU µs", "stub", "one", "cpu_us"),
            ],
        )
    ],
    targets=[
        Target(PAIR, "stub: client CPU by floor", 1.5, STUB.by("floor", "cpu_us"), reason=PYTHON),
        Target(PAIR, "pin: client CPU by floor", 1.8, PIN.by("floor", "cpu_us"), reason=PYTHON),
        Target(PAIR, "pin: p50 by floor", 1.2, PIN.by("floor"), reason=PYTHON),
        Target(PAIR, "pin: p50 by node-redlock", 1.15, PIN.by("node-redlock"), reason=PYTHON),
        Target(PAIR, "rtt: p50 by floor", 1.12, RTT.by("floor"), reason=PYTHON),
        Target(
            "the same, asyncio", "pin: p50 by aioredlock", 0.8, AIO.by("aioredlock"), reason=LOOP
        ),
    ],
    charts=[
        Chart(f"p50 of a pair, divided by that of bare sockets ({on})", on, "p50_us", "floor")
        for on in ("pin", "rtt")
    ],
)

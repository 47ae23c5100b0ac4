"""Try to acquire a lock that another client holds: the cost of a 423 response.

By one thread, also beside a pair; by many threads and tasks; and a storm of 200 threads that all
want one lock, which each holds for 1 ms if it gets it.
"""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import Any

from benchmarks.harness.results import Where
from benchmarks.harness.workload import Column, Reason, Table, Target, Workload, latency
from benchmarks.worker.bench import Bench, Tasks, Threads, name
from benchmarks.worker.figures import Done, clock
from benchmarks.workloads.pairs import IN_C

ASKED = ("ours", "floor", "floor SET", "pottery", "redlock-py", "redis-py", "ours async",
         "node-redlock")  # fmt: skip
OURS = ("ours", "ours async")
JOBS: dict[str, dict[str, Any]] = {
    "one": {"job": "refusals.refusals"},
    "own": {"job": "refusals.refusals", "own": True},
    "pair": {"job": "pairs.pairs"},
    "16 threads": {"job": "refusals.crowd", "count": 16},
    "200 threads": {"job": "refusals.crowd", "count": 200},
    "100 tasks": {"job": "refusals.crowd", "count": 100},
    "storm": {"job": "refusals.storm", "count": 200},
}
FAR = {"one": ASKED, "own": OURS}
ALONE = {**FAR, "pair": OURS}
CROWDS = {
    "16 threads": ("ours", "floor SET", "redis-py"),
    "200 threads": ("ours", "redis-py"),
    "100 tasks": ("ours async", "redis-py async"),
    "storm": ("ours", "redis-py"),
}


async def refusals(bench: Bench, *, own: bool = False, **timing: Any) -> dict[str, Any]:
    """Try to acquire a lock that another process holds, or, with `own`, this very process."""
    resource = name("held", 0)
    async with (bench if own else bench.elsewhere()).holding(resource):
        bench.intruder.look(resource)
        return await bench.measured(partial(bench.refusals, resource), **timing)


async def crowd(bench: Threads | Tasks, **how: Any) -> dict[str, Any]:
    """Try to acquire a lock that another process holds, in `count` threads or tasks."""
    resource = name("held", 0)

    async def work(bench: Bench, place: int, until: float, done: Done) -> None:
        await bench.refusals(resource, until, done)

    async with bench.elsewhere().holding(resource):
        return await bench.crowd(work=work, **how)


async def storm(bench: Threads, **how: Any) -> dict[str, Any]:
    """Try to acquire one lock in `count` threads; each that gets it holds it for 1 ms."""
    resource, inside = name("storm", 0), threading.Lock()

    async def work(bench: Bench, place: int, until: float, done: Done) -> None:
        while clock() < until:
            began = time.perf_counter()
            held = await bench.acquire(resource)
            done.seconds.append(time.perf_counter() - began)
            if held is not None:
                alone = inside.acquire(blocking=False)
                bench.intruder.looks += 1
                bench.intruder.overlaps += not alone
                await bench.sleep(0.001)
                if alone:
                    inside.release()
                await bench.release(held)

    return await bench.crowd(work=work, **how)


VOTES = Reason(
    "refusals",
    "A refusal is decided by the third answer, like a grant, and counted from its bytes; the rest "
    "is Python code that sends to five masters, reads five answers, and raises the exception.",
    IN_C,
)
REFUSE, SAME_PROCESS = "refuse a held lock", "refuse a held lock of the same process"
BY_SETS = "pin: client CPU by five refused SETs"
ONE, OWN = (Where("refusals", "pin", case, "ours") for case in ("one", "own"))
BY_PAIR = ONE.by(Where("refusals", "pin", "pair", "ours"), "cpu_us")

WORKLOAD = Workload(
    "refusals",
    settings=("pin", "rtt", "free"),
    cases=lambda setting: {"free": CROWDS, "rtt": FAR}.get(setting, ALONE).items(),
    how=JOBS.__getitem__,
    tables=[
        Table(
            "Refusal of a held lock",
            [
                *latency(),
                Column("client CPU µs", "pin", "one", "cpu_us"),
                Column("16 threads: refusals/s", "free", "16 threads", "per_s"),
                Column("100 tasks: refusals/s", "free", "100 tasks", "per_s"),
            ],
        ),
    ],
    targets=[
        Target(REFUSE, "pin: p50 by floor", 2, ONE.by("floor"), reason=VOTES),
        Target(REFUSE, "pin: client CPU by a pair", 0.5, BY_PAIR, reason=VOTES),
        Target(REFUSE, BY_SETS, 2.2, ONE.by("floor SET", "cpu_us"), reason=VOTES),
        Target(SAME_PROCESS, "pin: p50", 10, OWN.own("p50_us"), unit=" µs", reason=VOTES),
    ],
)

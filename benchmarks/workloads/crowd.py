"""Pairs of 20 processes with 8 threads or 30 tasks each: more than the machine has processors.

Each thread or task has its own keys, so no attempt should fail: a failure is a client that takes
its own busy machine for failed masters.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.harness.results import Results, Where, written
from benchmarks.harness.workload import Reason, Target, Workload

if TYPE_CHECKING:
    from benchmarks.harness.plan import Plan

PROCESSES = 20
CROWDS: dict[str, tuple[str, int, tuple[str, ...]]] = {
    "20 × 8": ("threads.threads", 8, ("ours", "floor", "redis-py")),
    "20 × 30": ("tasks.tasks", 30, ("ours async", "floor async", "redis-py async")),
}
"""The job, how many threads or tasks a process has, and who is asked."""


def measure(plan: Plan, setting: str, case: str, name: str) -> dict[str, Any]:
    """Use five masters and the setting free."""
    (job, count, _), seconds = CROWDS[case], plan.seconds * 4
    with plan.workers(name, setting, PROCESSES) as workers:
        before = plan.masters.cpu()
        for place, worker in enumerate(workers):
            worker.ask(job=job, count=count, seconds=seconds, process=place)
        figures = together([worker.answer(seconds * 2) for worker in workers])
        return figures | plan.of_masters(before, figures["pairs"], seconds)


def together(said: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of all processes: rates and counts are sums, a latency is the worst."""
    done, failed = (sum(one[figure] for one in said) for figure in ("pairs", "failed"))
    return {
        "per_s": sum(one["per_s"] for one in said),
        "cpu_us": sum(one["cpu_us"] * one["pairs"] for one in said) / max(done, 1),
        "p99_us": max(one["p99_us"] for one in said),
        "max_us": max(one["max_us"] for one in said),
        "pairs": done,
        "failed": failed,
        "failed_share": failed / max(done + failed, 1),
        "looks": sum(one["looks"] for one in said),
        "overlaps": sum(one["overlaps"] for one in said),
    }


def of_the_floor(results: Results) -> str:
    """Return what the floor reaches, and the processor time of a pair."""
    said, times = [], []
    where = {name: Where("crowd", "free", "20 × 8", name) for name in CROWDS["20 × 8"][2]}
    if rates := results.ratios(where["floor"], where["redis-py"], "per_s"):
        said.append(
            "The floor itself, bare sockets that send the same scripts to the same masters, "
            f"reached {written(median(rates))} × redis-py in this run."
        )
    for name, place in where.items():
        clients, masters = (results.median(place, each) for each in ("cpu_us", "servers_us"))
        if clients and masters:
            times.append(f"{name} {written(clients)} + {written(masters)} µs")
    if times:
        said.append(f"Processor time of a pair, clients + masters: {', '.join(times)}.")
    return " ".join(said)


SHARED = Reason(
    "crowd",
    "All processes and five masters share the processors, and a pair runs ten scripts on them; "
    "redis-py's Lock uses one master.",
    "slimmer scripts, more processors",
    of_the_floor,
)
THREADS = "20 processes with 8 threads each"
TASKS = "20 processes with 30 tasks each"
BY_REDIS = "pairs/s by redis-py"
OURS = Where("crowd", "free", "20 × 8", "ours")
AIO = Where("crowd", "free", "20 × 30", "ours async")

WORKLOAD = Workload(
    "crowd",
    settings=("free",),
    cases=lambda setting: [(case, asked) for case, (_, _, asked) in CROWDS.items()],
    measure=measure,
    targets=[
        Target(THREADS, "failed, of all", 0.001, OURS.own("failed_share"), unit=""),
        Target(THREADS, BY_REDIS, 0.8, OURS.by("redis-py", "per_s"), most=False, reason=SHARED),
        Target(TASKS, "failed, of all", 0.001, AIO.own("failed_share"), unit=""),
    ],
)

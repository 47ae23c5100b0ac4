"""Pairs of 20 processes with 8 threads or 30 tasks each: more than the machine has processors.

Each thread or task has its own keys, so no attempt should fail: a failure is a client that takes
its own busy machine for failed masters.
"""

from __future__ import annotations

from typing import Any

from benchmarks.conductor import Plan

PROCESSES = 20
CROWDS: dict[str, tuple[str, int, tuple[str, ...]]] = {
    "20 × 8": ("threads", 8, ("ours", "floor", "redis-py")),
    "20 × 30": ("tasks", 30, ("ours async", "floor async", "redis-py async")),
}
"""The job, how many threads or tasks a process has, and who is asked."""


def run(plan: Plan) -> None:
    """Use five masters and the setting free."""

    def measure(setting: str, case: str, name: str) -> dict[str, Any]:
        (job, count, _), seconds = CROWDS[case], plan.seconds * 4
        with plan.workers(name, setting, PROCESSES) as workers:
            before = plan.masters.cpu()
            for place, worker in enumerate(workers):
                worker.ask(job=job, count=count, seconds=seconds, process=place)
            figures = together([worker.answer(seconds * 2) for worker in workers])
            return figures | plan.of_masters(before, figures["pairs"], seconds)

    groups = [
        (setting, case, asked)
        for setting in plan.in_settings("free")
        for case, (_, _, asked) in CROWDS.items()
    ]
    plan.interleaved("crowd", groups, measure)


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

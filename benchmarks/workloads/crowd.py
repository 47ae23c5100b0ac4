"""Pairs of 20 processes with 8 threads each, on more processes than the machine has processors.

Each thread has its own keys, so no attempt should fail: a failure is a client that takes its own
busy machine for failed masters.
"""

from __future__ import annotations

import contextlib
from typing import Any

from benchmarks.conductor import Plan

ASKED = ("ours", "redis-py")
PROCESSES = 20
THREADS = 8


def run(plan: Plan) -> None:
    """Use five masters and the setting free."""

    def measure(setting: str, case: str, name: str) -> dict[str, Any]:
        seconds = plan.seconds * 4
        with contextlib.ExitStack() as stack:
            workers = [
                stack.enter_context(plan.worker(name, setting, first=place == 0))
                for place in range(PROCESSES)
            ]
            for place, worker in enumerate(workers):
                worker.ask(job="threads", count=THREADS, seconds=seconds, process=place)
            return together([worker.answer(seconds * 2) for worker in workers])

    groups = [(setting, "20 × 8", ASKED) for setting in plan.in_settings("free")]
    plan.interleaved("crowd", groups, measure)


def together(said: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of all processes: rates and counts are sums, a latency is the worst."""
    done, failed = (sum(one[figure] for one in said) for figure in ("pairs", "failed"))
    return {
        "per_s": sum(one["per_s"] for one in said),
        "p99_us": max(one["p99_us"] for one in said),
        "max_us": max(one["max_us"] for one in said),
        "pairs": done,
        "failed": failed,
        "failed_share": failed / max(done + failed, 1),
        "looks": sum(one["looks"] for one in said),
        "overlaps": sum(one["overlaps"] for one in said),
    }

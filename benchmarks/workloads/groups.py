"""Pairs of 16 threads over one, two and four groups of three masters."""

from __future__ import annotations

from typing import Any

from benchmarks.conductor import Plan

COUNTS = (1, 2, 4)
SIZE = 3
THREADS = 16


def run(plan: Plan) -> None:
    """Use the setting free, so that more masters can use more processors."""

    def measure(setting: str, case: str, name: str) -> dict[str, Any]:
        with plan.worker(name, setting, n=SIZE * int(case), groups=int(case)) as worker:
            return worker.do(job="threads", count=THREADS, seconds=plan.seconds)

    groups = [(setting, str(n), ("ours",)) for setting in plan.in_settings("free") for n in COUNTS]
    plan.interleaved("groups", groups, measure)

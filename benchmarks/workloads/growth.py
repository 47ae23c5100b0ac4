"""Pairs over 1 to 9 masters: the cost of each further master."""

from __future__ import annotations

from typing import Any

from benchmarks.conductor import Plan

NUMBERS = (1, 3, 5, 7, 9)
ASKED = ("ours", "floor", "floor SET", "ours async", "aioredlock", "redlock-py")


def run(plan: Plan) -> None:
    """Use the setting pin: otherwise the number of processors hides the slope."""

    def measure(setting: str, case: str, name: str) -> dict[str, Any]:
        with plan.worker(name, setting, n=int(case)) as worker:
            return worker.do(job="pairs", seconds=plan.seconds)

    groups = [(setting, str(n), ASKED) for setting in plan.in_settings("pin") for n in NUMBERS]
    plan.interleaved("growth", groups, measure)

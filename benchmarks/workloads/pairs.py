"""Acquire and release repeatedly: the cost of an uncontended lock."""

from __future__ import annotations

from typing import Any

from benchmarks.conductor import Plan

ASKED = (
    "ours",
    "floor",
    "floor SET",
    "redlock-py",
    "pottery",
    "ours async",
    "aioredlock",
    "pottery async",
    "node-redlock",
    "redis-py",
    "redis-py async",
    "python-redis-lock",
)

CEILING = ("ours", "floor", "ours async", "floor async")


def run(plan: Plan) -> None:
    """Use five masters, in each setting."""

    def measure(setting: str, case: str, name: str) -> dict[str, Any]:
        with plan.worker(name, setting) as worker:
            return plan.measured(worker, setting, job="pairs")

    groups = [
        (setting, "one", CEILING if setting == "stub" else ASKED)
        for setting in plan.in_settings("pin", "rtt", "stub")
    ]
    plan.interleaved("pairs", groups, measure)

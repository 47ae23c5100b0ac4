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


def run(plan: Plan) -> None:
    """Use five masters, in each setting."""

    def measure(setting: str, case: str, name: str) -> dict[str, Any]:
        with plan.worker(name, setting) as worker:
            return worker.do(job="pairs", seconds=plan.seconds)

    groups = [(setting, "one", ASKED) for setting in plan.in_settings("pin", "rtt")]
    plan.interleaved("pairs", groups, measure)

"""Acquire and release, one after the other: the price of a lock that nobody contends for."""

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
    """Five masters, each setting by itself."""

    def measure(setting: str, case: str, name: str) -> dict[str, Any]:
        with plan.worker(name, setting) as worker:
            return worker.do(job="pairs", seconds=plan.seconds)

    groups = [(setting, "one", ASKED) for setting in plan.in_settings("pin", "rtt")]
    plan.interleaved("pairs", groups, measure)

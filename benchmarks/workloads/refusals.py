"""Try to acquire a lock that another client holds: the cost of a 423 response."""

from __future__ import annotations

from typing import Any

from benchmarks.conductor import Plan

ASKED = (
    "ours",
    "floor",
    "floor SET",
    "pottery",
    "redlock-py",
    "redis-py",
    "ours async",
    "aioredlock",
    "pottery async",
    "node-redlock",
)


def run(plan: Plan) -> None:
    """Use five masters, in each setting."""

    def measure(setting: str, case: str, name: str) -> dict[str, Any]:
        with plan.worker(name, setting) as worker:
            return worker.do(job="refusals", seconds=plan.seconds)

    groups = [(setting, "one", ASKED) for setting in plan.in_settings("pin", "rtt")]
    plan.interleaved("refusals", groups, measure)

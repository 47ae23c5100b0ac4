"""Ask for what somebody else holds: the way to a 423."""

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
    """Five masters, each setting by itself."""

    def measure(setting: str, case: str, name: str) -> dict[str, Any]:
        with plan.worker(name, setting) as worker:
            return worker.do(job="refusals", seconds=plan.seconds)

    groups = [(setting, "one", ASKED) for setting in plan.in_settings("pin", "rtt")]
    plan.interleaved("refusals", groups, measure)

"""Try to acquire a lock that another client holds: the cost of a 423 response."""

from __future__ import annotations

from collections.abc import Sequence
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
    """Use five masters, in each setting; "own" is a lock that this very process holds."""

    def measure(setting: str, case: str, name: str) -> dict[str, Any]:
        with plan.worker(name, setting) as worker:
            return worker.do(job="refusals", seconds=plan.seconds, own=case == "own")

    groups: list[tuple[str, str, Sequence[str]]] = []
    for setting in plan.in_settings("pin", "rtt"):
        groups += [(setting, "one", ASKED), (setting, "own", ("ours", "ours async"))]
    plan.interleaved("refusals", groups, measure)

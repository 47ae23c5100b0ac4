"""Pairs in 1 to 64 threads of one process, each with its own keys."""

from __future__ import annotations

from typing import Any

from benchmarks.conductor import Plan

COUNTS = (1, 2, 4, 8, 16, 32, 64)
ALWAYS = ("ours", "floor", "redis-py")
PEERS = {1, 4, 16, 32}  # Peers take long, and values in between add nothing.


def run(plan: Plan) -> None:
    """Use the setting free, because threads should not share one processor."""

    def measure(setting: str, case: str, name: str) -> dict[str, Any]:
        before = plan.masters.info("clients", "connected_clients")
        with plan.worker(name, setting) as worker:
            figures = worker.do(job="threads", count=int(case), seconds=plan.seconds)
            clients = plan.masters.info("clients", "connected_clients")
        return {**figures, "connections": clients - before}

    groups = [
        (setting, str(count), (*ALWAYS, "redlock-py", "pottery") if count in PEERS else ALWAYS)
        for setting in plan.in_settings("free")
        for count in COUNTS
    ]
    plan.interleaved("threads", groups, measure)

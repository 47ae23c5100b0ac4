"""Pairs in 1 to 10 000 tasks of one loop, each with its own key."""

from __future__ import annotations

from typing import Any

from benchmarks.conductor import Plan

COUNTS = (1, 10, 100, 1_000, 10_000)
ALWAYS = ("ours async", "floor async")
PEERS = ("aioredlock", "pottery async", "node-redlock", "redis-py async")


def run(plan: Plan) -> None:
    """Use the setting free, and the peers with 100 tasks only."""

    def measure(setting: str, case: str, name: str) -> dict[str, Any]:
        before = plan.masters.info("clients", "connected_clients")
        with plan.worker(name, setting) as worker:
            figures = worker.do(job="tasks", count=int(case), seconds=plan.seconds)
            clients = plan.masters.info("clients", "connected_clients")
        return {**figures, "connections": clients - before}

    groups = [
        (setting, str(count), (*ALWAYS, *PEERS) if count == 100 else ALWAYS)
        for setting in plan.in_settings("free")
        for count in COUNTS
    ]
    plan.interleaved("tasks", groups, measure)

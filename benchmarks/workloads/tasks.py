"""Pairs in 1 to 10 000 tasks of one loop, each with its own key."""

from __future__ import annotations

from typing import Any

from benchmarks.conductor import Plan

COUNTS = (1, 10, 100, 1_000, 10_000)
ALWAYS = ("ours async", "floor async")
PEERS = ("aioredlock", "pottery async", "node-redlock", "redis-py async")


def run(plan: Plan) -> None:
    """Use the setting free, stub masters, and the peers with 100 tasks only."""

    def measure(setting: str, case: str, name: str) -> dict[str, Any]:
        before = plan.masters.info("clients", "connected_clients")
        with plan.worker(name, setting) as worker:
            figures = plan.measured(worker, setting, job="tasks", count=int(case))
            clients = plan.masters.info("clients", "connected_clients")
        return {**figures, "connections": clients - before}

    groups = [
        (setting, str(count), (*ALWAYS, *PEERS) if count == 100 and setting != "stub" else ALWAYS)
        for setting in plan.in_settings("free", "stub")
        for count in (COUNTS if setting != "stub" else (100,))
    ]
    plan.interleaved("tasks", groups, measure)

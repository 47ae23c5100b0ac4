"""Pairs in 1 to 64 threads of one process, each with its own keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.conductor import Plan

COUNTS = (1, 2, 4, 8, 16, 32, 64)
ALWAYS = ("ours", "floor", "redis-py")
CEILING = (1, 16, 32)  # with stub masters
PEERS = {1, 4, 16, 32}  # Peers take long, and values in between add nothing.


def run(plan: Plan) -> None:
    """Use the setting free, because threads should not share one processor, and stub masters."""

    def measure(setting: str, case: str, name: str) -> dict[str, Any]:
        before = plan.masters.info("clients", "connected_clients")
        with plan.worker(name, setting) as worker:
            figures = plan.measured(worker, setting, job="threads", count=int(case))
            clients = plan.masters.info("clients", "connected_clients")
        return {**figures, "connections": clients - before}

    groups: list[tuple[str, str, Sequence[str]]] = []
    for setting in plan.in_settings("free", "stub"):
        for count in CEILING if setting == "stub" else COUNTS:
            with_peers = count in PEERS and setting != "stub"
            names = (*ALWAYS, "redlock-py", "pottery") if with_peers else ALWAYS
            groups.append((setting, str(count), names[:2] if setting == "stub" else names))
    plan.interleaved("threads", groups, measure)

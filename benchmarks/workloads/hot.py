"""Pairs without the kernel and with hot caches: the cost of the project's own code."""

from __future__ import annotations

from typing import Any

from benchmarks.conductor import Plan


def run(plan: Plan) -> None:
    """Use five masters to connect to; they are not asked for the pairs."""

    def measure(setting: str, case: str, name: str) -> dict[str, Any]:
        with plan.worker(name, setting) as worker:
            return worker.do(job="hot", seconds=plan.seconds)

    plan.interleaved("hot", [("pin", "one", ("ours",))], measure)

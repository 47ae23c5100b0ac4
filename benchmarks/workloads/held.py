"""Pairs while 1 to 100 000 other locks are held, and the memory of a held lock."""

from __future__ import annotations

from typing import Any

from benchmarks.conductor import Plan

COUNTS = (1, 100, 1_000, 10_000, 100_000)
TRACED = "1 000 traced"
"""A separate case, because tracemalloc is exact but slows everything down."""


def run(plan: Plan) -> None:
    """Use five masters and the setting free; the locks are not renewed."""

    def measure(setting: str, case: str, name: str) -> dict[str, Any]:
        trace = case == TRACED
        count = 1_000 if trace else int(case)
        with plan.worker(name, setting, renew=False, ttl=60) as worker:
            before = plan.masters.info("memory", "used_memory")
            worker.ask(job="hold_many", count=count, seconds=plan.seconds, trace=trace)
            figures = worker.answer(plan.seconds + 60)
            after = plan.masters.info("memory", "used_memory")
        used = (after - before) / 5 / count
        return {**figures, "master_bytes": used}

    cases = [*map(str, COUNTS), TRACED]
    groups = [
        (setting, case, ("ours async",)) for setting in plan.in_settings("free") for case in cases
    ]
    plan.interleaved("held", groups, measure)

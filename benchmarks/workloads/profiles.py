"""Where the project's own time goes: the jobs that targets are about, under cProfile.

cProfile makes Python's calls dearer than they are, and the kernel's not: read the shares of
our functions as upper bounds.
"""

from __future__ import annotations

from typing import Any

from benchmarks.conductor import Plan

JOBS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "pairs": ("pin", "ours", {"job": "pairs"}),
    "pairs async": ("pin", "ours async", {"job": "pairs"}),
    "refusals": ("pin", "ours", {"job": "refusals"}),
    "threads": ("free", "ours", {"job": "threads", "count": 16}),
    "tasks": ("free", "ours async", {"job": "tasks", "count": 100}),
}


def run(plan: Plan) -> None:
    """Each in the setting that its targets are judged in."""

    def measure(setting: str, case: str, name: str) -> dict[str, Any]:
        with plan.worker(name, setting) as worker:
            return worker.do(seconds=plan.seconds, profile=True, **JOBS[case][2])

    groups = [(setting, case, (name,)) for case, (setting, name, _) in JOBS.items()]
    plan.interleaved("profiles", groups, measure)

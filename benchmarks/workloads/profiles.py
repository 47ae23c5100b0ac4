"""Profiles of the project: the jobs of the targets under cProfile.

cProfile slows down calls of Python functions, but not system calls: the shares of the project's
functions are upper bounds.
"""

from __future__ import annotations

from tempfile import mkdtemp
from typing import Any

from benchmarks.conductor import Plan

JOBS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "pairs": ("pin", "ours", {"job": "pairs"}),
    "pairs async": ("pin", "ours async", {"job": "pairs"}),
    "refusals": ("pin", "ours", {"job": "refusals"}),
    "threads": ("free", "ours", {"job": "threads", "count": 16}),
    "tasks": ("free", "ours async", {"job": "tasks", "count": 100}),
    # With tasks, because a profile covers one thread.
    "handoff": ("free", "ours async", {"job": "drain"}),
}


def run(plan: Plan) -> None:
    """Use the setting of the targets of each job."""

    def measure(setting: str, case: str, name: str) -> dict[str, Any]:
        asked = dict(JOBS[case][2])
        if asked["job"] == "drain":
            asked["folder"] = mkdtemp(dir=plan.processes.directory)
        with plan.worker(name, setting) as worker:
            return worker.do(seconds=plan.seconds, profile=True, **asked)

    groups = [(setting, case, (name,)) for case, (setting, name, _) in JOBS.items()]
    plan.interleaved("profiles", groups, measure)

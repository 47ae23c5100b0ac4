"""Profiles of the project: the jobs of the targets under cProfile.

cProfile slows down calls of Python functions, but not system calls: the shares of the project's
functions are upper bounds. Each case is the name of a `Reason`.
"""

from __future__ import annotations

from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

from benchmarks.harness.workload import Workload

if TYPE_CHECKING:
    from benchmarks.harness.plan import Plan

JOBS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "pairs": ("pin", "ours", {"job": "pairs.pairs"}),
    "pairs async": ("pin", "ours async", {"job": "pairs.pairs"}),
    "refusals": ("pin", "ours", {"job": "refusals.refusals"}),
    "threads": ("free", "ours", {"job": "threads.threads", "count": 16}),
    "tasks": ("free", "ours async", {"job": "tasks.tasks", "count": 100}),
    # With tasks, because a profile covers one thread.
    "handoff": ("free", "ours async", {"job": "handoff.drain"}),
}


def measure(plan: Plan, setting: str, case: str, name: str) -> dict[str, Any]:
    """Use the setting of the targets of each job."""
    asked = dict(JOBS[case][2])
    if case == "handoff":
        asked["folder"] = mkdtemp(dir=plan.processes.directory)
    with plan.worker(name, setting) as worker:
        return worker.do(seconds=plan.seconds, profile=True, **asked)


WORKLOAD = Workload(
    "profiles",
    settings=("pin", "free"),
    cases=lambda setting: [(case, (who,)) for case, (on, who, _) in JOBS.items() if on == setting],
    measure=measure,
    fixed=True,
)

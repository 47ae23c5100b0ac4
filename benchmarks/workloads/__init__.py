"""The workloads, one file each; `WORKLOADS` is the order of a complete run."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.conductor import Plan
from benchmarks.workloads import (
    crowd,
    faults,
    groups,
    growth,
    handoff,
    held,
    hot,
    idempotency,
    pairs,
    profiles,
    refusals,
    scripts,
    tasks,
    threads,
    views,
)

WORKLOADS: dict[str, Callable[[Plan], None]] = {
    "pairs": pairs.run,
    "hot": hot.run,
    "scripts": scripts.run,
    "refusals": refusals.run,
    "growth": growth.run,
    "groups": groups.run,
    "threads": threads.run,
    "crowd": crowd.run,
    "tasks": tasks.run,
    "handoff": handoff.run,
    "faults": faults.run,
    "held": held.run,
    "views": views.run,
    "idempotency": idempotency.run,
    "profiles": profiles.run,
}

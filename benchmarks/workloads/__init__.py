"""The workloads, one file each: its jobs, cases, tables and targets."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.harness.workload import Workload

NAMES = ("pairs", "hot", "scripts", "refusals", "first", "growth", "threads", "crowd", "tasks",
         "handoff", "permits", "handon", "faults", "held", "views", "idempotency",
         "profiles")  # fmt: skip
"""In the order of a complete run, and of the page."""


def load() -> dict[str, Workload]:
    """Return all workloads. Workers import single ones, for they may lack what others need."""
    return {name: import_module(f"{__name__}.{name}").WORKLOAD for name in NAMES}

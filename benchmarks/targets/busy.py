"""Twenty processes at once, on a host that is busy with them: no lock may fail."""

from __future__ import annotations

from typing import Any

from benchmarks.targets.lab import Lab
from benchmarks.targets.results import Target

PROCESSES = 20
CASES = {"20 × 8 threads": ("ours", 8), "20 × 30 tasks": ("ours async", 30)}


def measure(lab: Lab) -> None:
    """Measure a round."""
    for case, (name, count) in CASES.items():
        with lab.trying("busy", case, name) as figures:
            figures |= processes(lab, name, count)


def processes(lab: Lab, name: str, count: int) -> dict[str, Any]:
    """Return the figures of twenty processes together."""
    with lab.workers(name, PROCESSES) as workers:
        for number, worker in enumerate(workers):
            worker.ask("crowds.pairs", count=count, seconds=lab.seconds, process=number)
        said = [worker.answer(lab.seconds) for worker in workers]
    sums = {key: sum(one[key] for one in said) for key in ("pairs", "per_s", "looks", "overlaps")}
    failed = sum(one["failed"] for one in said)
    why = next((one["why"] for one in said if "why" in one), "")
    return {**sums, "failed_share": failed / max(sums["pairs"] + failed, 1), "why": why}


TARGETS = [
    Target(
        "20 processes with 8 threads or 30 tasks each", "failed, of all", 0.001, "busy",
        [*CASES], "failed_share", of=("ours", "ours async"), unit="",
    )
]  # fmt: skip

"""Pairs of 16 threads over one, two and four groups of three masters, scheduled freely.

So more masters can use more processors.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.harness.results import Results, Where, written
from benchmarks.harness.workload import Workload

COUNTS = (1, 2, 4)
SIZE = 3


def growth(results: Results) -> Iterator[str]:
    """Yield a line on pairs over several groups."""
    rates = [
        f"{count}: {written(rate)}"
        for count in COUNTS
        if (rate := results.median(Where("groups", "free", str(count), "ours"), "per_s"))
    ]
    if rates:
        yield f"**Groups** of {SIZE} masters: pairs/s of 16 threads: {', '.join(rates)}."


WORKLOAD = Workload(
    "groups",
    settings=("free",),
    cases=lambda setting: [(str(n), ("ours",)) for n in COUNTS],
    job="threads.threads",
    how=lambda case: {"n": SIZE * int(case), "options": {"groups": int(case)}, "count": 16},
    masters=SIZE * max(COUNTS),
    growth=growth,
)

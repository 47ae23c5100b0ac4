"""Pairs over 1 to 9 masters: the cost of each further master.

Pinned: otherwise the number of processors hides the slope.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from benchmarks.harness.picture import Chart
from benchmarks.harness.results import Results, Where
from benchmarks.harness.workload import Reason, Target, Workload
from benchmarks.workloads.pairs import IN_C

NUMBERS = (1, 5, 9)
ASKED = ("ours", "floor", "floor SET", "ours async", "aioredlock", "redlock-py")
COUNT = Reason("growth", "Each further master costs a send, a read and a vote.", IN_C)


def slopes(results: Results, name: str) -> dict[int, float]:
    """Return the µs of one more master in each round."""
    one = results.values(Where("growth", "pin", "1", name), "p50_us")
    nine = results.values(Where("growth", "pin", "9", name), "p50_us")
    return {number: (nine[number] - one[number]) / 8 for number in one if number in nine}


def by_floor(results: Results) -> list[float]:
    """Return the slope, divided by that of the floor, in each round."""
    ours, theirs = slopes(results, "ours"), slopes(results, "floor")
    return [ours[number] / theirs[number] for number in ours if theirs.get(number)]


def growth(results: Results) -> Iterator[str]:
    """Yield a line on what each further master costs."""
    known = [
        f"{name} {median(each.values()):.0f}"
        for name in results.names("contender", workload="growth")
        if (each := slopes(results, name))
    ]
    if known:
        yield f"**Masters**: linear; µs for each further one, 1 to 9, pinned: {', '.join(known)}."


WORKLOAD = Workload(
    "growth",
    settings=("pin",),
    cases=lambda setting: [(str(n), ASKED) for n in NUMBERS],
    job="pairs.pairs",
    how=lambda case: {"n": int(case)},
    masters=max(NUMBERS),
    targets=[Target("N = 1 to 9, pinned", "slope by floor", 0.75, by_floor, reason=COUNT)],
    charts=[Chart("p50 of a pair in µs by masters, pinned", "pin", "p50_us", log=False)],
    growth=growth,
)

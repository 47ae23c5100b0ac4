"""Pairs in many threads, and in many tasks of one loop."""

from __future__ import annotations

from typing import Any

from benchmarks.targets.lab import Lab
from benchmarks.targets.results import Target


def measure(lab: Lab) -> None:
    """Measure a round; scheduled freely, because threads should not share one processor."""
    for count in (16, 32):
        for name in lab.turns("ours", "floor", "redis-py's Lock", "redlock-py"):
            lab.measure("crowds", f"{count} threads", name, "crowds.pairs", count=count)
    for name in lab.turns("ours async", "redis-py's Lock async"):
        lab.measure("crowds", "100 tasks", name, "crowds.pairs", count=100, keys=1)


ASYNC = ("ours async",)
WAKES = (
    "One interpreter runs one thread at a time, and a thread that waits for replies sleeps and is "
    "woken for each round. Several processes help, and tasks."
)


def rate(work: str, what: str, bound: float, cases: list[str], **more: Any) -> Target:
    """Return the target of a rate: the worst case counts."""
    return Target(work, what, bound, "crowds", cases, "per_s", most=False, why=WAKES, **more)


BOTH = ["16 threads", "32 threads"]
TARGETS = [
    rate("16 and 32 threads", "pairs/s by floor", 0.65, BOTH, by="floor"),
    rate("16 and 32 threads", "pairs/s by redlock-py", 3, BOTH, by="redlock-py"),
    rate("32 threads", "pairs/s by 16 threads", 1, BOTH[1:], by_case=BOTH[0]),
    rate("100 tasks", "pairs/s", 6_000, ["100 tasks"], of=ASYNC, unit=""),
    rate("100 tasks", "pairs/s by redis-py async", 1, ["100 tasks"], of=ASYNC,
         by="redis-py's Lock async"),
]  # fmt: skip

"""The speed and fairness of the hand-off from a holder to a waiter, which holds it for 1 ms.

- drain: eight threads (or tasks) of one process queue up behind a holder, each takes one turn;
- think: eight processes take turns, with a pause of 5 ms after each;
- greedy: the same without a pause.

The eight processes are connected before the first of them asks, and take turns for a while before
the count begins; the count ends while all of them still ask.
"""

from __future__ import annotations

import time
from itertools import pairwise
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.targets.lab import Lab
from benchmarks.targets.results import Target
from benchmarks.worker.bench import KEYS
from benchmarks.worker.bench import name as name_of
from benchmarks.worker.figures import latencies
from benchmarks.worker.process import WorkerFailed

NAMES = ("ours", "python-redis-lock", "redis-py's Lock", "ours async")
PROCESSES = 8
PAUSES = {"think": 0.005, "greedy": 0.0}
LEAD = 0.5
"""Seconds of turns before the count begins."""

COUNTED = 2.0
"""Seconds of turns that are counted, at least: of a few turns, no process gets an equal share."""


def measure(lab: Lab) -> None:
    """Measure a round."""
    for name in lab.turns(*NAMES):
        for case, pause in PAUSES.items():
            with lab.trying("hand-off", case, name) as figures:
                figures |= turns(lab, name, pause)
        for case, limit in (("drain", 1), ("drain a permit", 3)):
            if limit == 1 or name.startswith("ours"):
                with lab.trying("hand-off", case, name) as figures:
                    figures |= drain(lab, name, limit)


def drain(lab: Lab, name: str, limit: int) -> dict[str, Any]:
    """Return the figures of queues that empty, of a lock or of the last permit of a name."""
    with TemporaryDirectory() as folder:
        options: dict[str, Any] = {"limit": limit} if limit > 1 else {}
        with lab.workers(name, 2, **options) as (worker, other):
            if limit > 1:
                names = [name_of("drain", place) for place in range(KEYS)]
                other.do("refusals.hold_permits", names=names, times=limit - 1)
            found: dict[str, Any] = worker.do(
                "handoff.drain", folder=folder, seconds=2 * lab.seconds
            )
            return found


def turns(lab: Lab, name: str, pause: float) -> dict[str, Any]:
    """Return the figures of processes that take turns."""
    counted = max(2 * lab.seconds, COUNTED)
    with TemporaryDirectory() as folder, lab.workers(name, PROCESSES) as workers:
        for worker in workers:
            worker.ask("handoff.connect")
        for worker in workers:
            worker.answer()
        start = time.monotonic() + 0.1  # until all workers have read their job
        begin, end = start + LEAD, start + LEAD + counted
        for worker in workers:
            worker.ask("handoff.take_turns", folder=folder, start=start, end=end, pause=pause)
        said = [worker.answer(LEAD + counted) for worker in workers]
    seen = {count: sum(one[count] for one in said) for count in ("looks", "overlaps")}
    return {**together([one["turns"] for one in said], begin, end), **seen}


def together(turns: list[list[list[float]]], begin: float, end: float) -> dict[str, float]:
    """Return the figures of the turns of all processes, each turn as [asked, taken, leaving].

    Turns that were taken from `begin` to `end` count, and waits that lasted into that time. A
    hand-off counts if the next holder was already waiting at the release. Raises WorkerFailed if
    no turn was taken in that time.
    """
    counts = [sum(begin <= taken < end for _, taken, _ in ours) for ours in turns]
    every = sorted((one for ours in turns for one in ours), key=lambda times: times[1])
    waits = [
        taken - max(asked, begin) for asked, taken, _ in every if asked < end and taken >= begin
    ]
    counted = [one for one in every if begin <= one[1] < end]
    if not counted:
        raise WorkerFailed(f"no process took a turn in {end - begin:g} s")
    gaps = [taken - left for (_, _, left), (asked, taken, _) in pairwise(counted) if asked < left]
    return {
        **latencies(gaps),
        "per_s": len(counted) / (end - begin),
        # A process without a turn counts as half a turn.
        "share": max(counts) / (min(counts) or 0.5),
        "fewest": min(counts),
        "longest_wait_ms": max(waits) * 1e3,
        "turns": len(counted),
    }


ROUND = (
    "A release goes to five masters, which share the processors with the clients, and calls the "
    "next waiter; that asks all of them. python-redis-lock pops a list on one master. Masters with "
    "processors of their own help."
)


def target(work: str, what: str, bound: float, case: str, **more: Any) -> Target:
    """Return a target of hand-offs."""
    return Target(work, what, bound, "hand-off", [case], why=ROUND, **more)


BY_BLPOP, SHARE, LONGEST = "p50 by python-redis-lock", "turns, most by fewest", "longest wait"
THINK, GREEDY = "eight processes, 5 ms between turns", "eight processes, no pause"
TARGETS = [
    target("eight threads drain a queue", BY_BLPOP, 1.6, "drain", by="python-redis-lock"),
    target("the same, a permit of 3", "p50 by a lock", 1.3, "drain a permit", by_case="drain"),
    target(GREEDY, BY_BLPOP, 1.5, "greedy", by="python-redis-lock"),
    target(THINK, SHARE, 1.2, "think", figure="share"),
    target(THINK, LONGEST, 30, "think", figure="longest_wait_ms", unit=" ms"),
    target(GREEDY, SHARE, 2, "greedy", figure="share"),
    target(GREEDY, LONGEST, 300, "greedy", figure="longest_wait_ms", unit=" ms"),
]

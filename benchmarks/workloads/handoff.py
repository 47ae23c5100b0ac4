"""The speed and fairness of the hand-off from a holder to a waiter.

- drain: eight threads (or tasks) of one process queue up behind a holder, each takes one turn;
- think: eight processes take turns, with a pause of 5 ms after each;
- greedy: the same without a pause.

A turn is held for 1 ms. The eight processes are connected before the first of them asks, and take
turns for a while before the count begins; the count ends while all of them still ask.
"""

from __future__ import annotations

import time
from itertools import pairwise
from tempfile import mkdtemp
from typing import Any

from benchmarks.conductor import Plan, WorkerFailed
from benchmarks.worker.figures import latencies

DRAIN = (
    "ours",
    "python-redis-lock",
    "pottery",
    "redlock-py",
    "redis-py",
    "ours async",
    "aioredlock",
    "node-redlock",
)
TURNS = ("ours", "python-redis-lock", "pottery", "redlock-py", "redis-py", "ours async")
PROCESSES = 8
PAUSES = {"think": 0.005, "greedy": 0.0}
LEAD = 0.5
"""Seconds of turns before the count begins."""

COUNTED = 2.0
"""Seconds of turns that are counted, at least: of a few turns, no process gets an equal share."""


def run(plan: Plan) -> None:
    """Use five masters and the setting free."""

    def measure(setting: str, case: str, name: str) -> dict[str, Any]:
        folder = mkdtemp(dir=plan.processes.directory)
        seconds = plan.seconds * 2
        if case == "drain":
            with plan.worker(name, setting) as worker:
                return worker.do(job="drain", folder=folder, seconds=seconds)
        counted = max(seconds, COUNTED)
        with plan.workers(name, setting, PROCESSES) as workers:
            for worker in workers:
                worker.ask(job="connect")
            for worker in workers:
                worker.answer(0.0)
            start = time.monotonic() + 0.1  # until all workers have read their job
            begin, end = start + LEAD, start + LEAD + counted
            for worker in workers:
                worker.ask(job="turns", folder=folder, start=start, end=end, pause=PAUSES[case])
            said = [worker.answer(LEAD + counted) for worker in workers]
        return {
            **together([one["turns"] for one in said], begin, end),
            "looks": sum(one["looks"] for one in said),
            "overlaps": sum(one["overlaps"] for one in said),
        }

    groups = [
        (setting, case, DRAIN if case == "drain" else TURNS)
        for setting in plan.in_settings("free")
        for case in ("drain", *PAUSES)
    ]
    plan.interleaved("handoff", groups, measure)


def together(turns: list[list[list[float]]], begin: float, end: float) -> dict[str, float]:
    """Return the figures of the turns of all processes, each turn as [asked, taken, leaving].

    Turns that were taken from `begin` to `end` count, and waits that lasted into that time. A
    hand-off counts if the next holder was already waiting at the release. Raises WorkerFailed if
    no turn was taken in that time.
    """
    counts = [sum(begin <= taken < end for _, taken, _ in ours) for ours in turns]
    waits = [
        taken - max(asked, begin)
        for ours in turns
        for asked, taken, _ in ours
        if asked < end and taken >= begin
    ]
    in_order = sorted(
        (taken, asked, leaving)
        for ours in turns
        for asked, taken, leaving in ours
        if begin <= taken < end
    )
    if not in_order:
        raise WorkerFailed(f"no process took a turn in {end - begin:g} s")
    gaps = [taken - left for (_, _, left), (taken, asked, _) in pairwise(in_order) if asked < left]
    return {
        **latencies(gaps),
        "per_s": len(in_order) / (end - begin),
        # A process without a turn counts as half a turn.
        "share": max(counts) / (min(counts) or 0.5),
        "fewest": min(counts),
        "longest_wait_ms": max(waits) * 1e3,
        "turns": len(in_order),
    }

"""The speed and fairness of the hand-off from a holder to a waiter.

- drain: eight threads (or tasks) of one process queue up behind a holder, each takes one turn;
- think: eight processes take turns, with a pause of 5 ms after each;
- greedy: the same without a pause.

A turn is held for 1 ms.
"""

from __future__ import annotations

import contextlib
import time
from itertools import pairwise
from tempfile import mkdtemp
from typing import Any

from benchmarks.conductor import Plan
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


def run(plan: Plan) -> None:
    """Use five masters and the setting free."""

    def measure(setting: str, case: str, name: str) -> dict[str, Any]:
        folder = mkdtemp(dir=plan.processes.directory)
        seconds = plan.seconds * 2
        if case == "drain":
            with plan.worker(name, setting) as worker:
                return worker.do(job="drain", folder=folder, seconds=seconds)
        with contextlib.ExitStack() as stack:
            workers = [
                stack.enter_context(plan.worker(name, setting, first=place == 0))
                for place in range(PROCESSES)
            ]
            start = time.monotonic() + 1.0  # until all workers are connected
            for worker in workers:
                worker.ask(
                    job="turns", folder=folder, start=start, seconds=seconds, pause=PAUSES[case]
                )
            said = [worker.answer(seconds) for worker in workers]
        return {
            **together([one["turns"] for one in said], start + seconds),
            "looks": sum(one["looks"] for one in said),
            "overlaps": sum(one["overlaps"] for one in said),
        }

    groups = [
        (setting, case, DRAIN if case == "drain" else TURNS)
        for setting in plan.in_settings("free")
        for case in ("drain", *PAUSES)
    ]
    plan.interleaved("handoff", groups, measure)


def together(turns: list[list[list[float]]], end: float) -> dict[str, float]:
    """Return the figures of the turns of all processes, each [asked, taken, leaving].

    A hand-off counts if the next holder was already waiting at the release.
    """
    counts = [sum(taken < end for _, taken, _ in ours) for ours in turns]
    waits = [taken - asked for ours in turns for asked, taken, _ in ours]
    in_order = sorted((taken, asked, leaving) for ours in turns for asked, taken, leaving in ours)
    gaps = [taken - left for (_, _, left), (taken, asked, _) in pairwise(in_order) if asked < left]
    first, last = in_order[0], in_order[-1]
    return {
        **latencies(gaps),
        "per_s": len(in_order) / (last[2] - first[0]),
        # A process without a turn counts as half a turn.
        "share": max(counts) / (min(counts) or 0.5),
        "longest_wait_ms": max(waits) * 1e3,
        "turns": len(in_order),
    }

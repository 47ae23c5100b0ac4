"""Pairs while masters hang, end and return, with a timeout of 50 ms for each master."""

from __future__ import annotations

import time
from collections import defaultdict
from statistics import median
from typing import Any

from benchmarks.conductor import Plan, Worker, WorkerFailed
from benchmarks.contenders import CONTENDERS
from benchmarks.worker.figures import quantile

ASKED = ("ours", "ours async", "redlock-py", "pottery", "pottery async", "aioredlock",
         "node-redlock")  # fmt: skip
MASTER_TIMEOUT = 0.05
CYCLES = {"ours": 3, "ours async": 3}
"""How often all phases but the last are repeated, of contenders whose phases have targets.

A phase lasts a second, in which other programs may be busy: then it would be the worst.
"""
STRIKE = 0.25
"""Seconds from the start of a phase to its fault, so that it occurs during pairs."""

PHASES: tuple[tuple[str, str, tuple[int, ...]], ...] = (
    # (name, action, masters); each phase continues from the one before, the first from "back again"
    ("healthy", "", ()),
    ("1 hung", "pause", (0,)),
    ("2 hung", "pause", (1,)),
    ("back", "resume", (0, 1)),
    ("1 dead", "kill", (0,)),
    ("2 dead", "kill", (1,)),
    ("back again", "start", (0, 1)),
    ("3 hung", "pause", (0, 1, 2)),
)


def run(plan: Plan) -> None:
    """Run all phases in one process per contender; add a row for each phase."""

    def measure(setting: str, case: str, name: str) -> dict[str, Any]:
        options: dict[str, Any] = {"timeout": MASTER_TIMEOUT} if CONTENDERS[name].patience else {}
        with plan.worker(name, setting, **options) as worker:
            try:
                return _phases(plan, worker, CYCLES.get(name, 1))
            finally:
                for master in plan.masters.every:
                    master.resume()
                    master.start()

    groups = [(setting, "all", ASKED) for setting in plan.in_settings("free")]
    plan.interleaved("faults", groups, measure, parts="case")


def _phases(plan: Plan, worker: Worker, cycles: int) -> dict[str, Any]:
    cases: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    # Less would end before a hung majority is known, whose later refusals are what counts.
    seconds = max(plan.seconds, 1.0)
    for phase, strike, places in (*PHASES[:-1] * cycles, PHASES[-1]):
        down = max(2, len(places))  # The intruder does not use masters that may be down.
        worker.ask(job="under_faults", seconds=STRIKE + seconds, down=down)
        time.sleep(STRIKE)
        for place in places:
            getattr(plan.masters.every[place], strike)()
        struck = time.monotonic()
        try:
            said = worker.answer(STRIKE + seconds)
        except WorkerFailed as failure:
            failed = {"failure": str(failure), "success": 0.0}
            return {**_medians(cases), phase: failed}
        figures = _figures(said["events"], struck, refused=phase == "3 hung")
        cases[phase].append({**figures, "looks": said["looks"], "overlaps": said["overlaps"]})
    return _medians(cases)


def _medians(cases: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return the figures of each phase: the least success, all overlaps, the median of others."""
    by_name: dict[str, Any] = {"success": min, "looks": sum, "overlaps": sum}
    return {
        phase: {
            name: by_name.get(name, median)([each[name] for each in cycles if name in each])
            for name in cycles[0]
        }
        for phase, cycles in cases.items()
    }


def _figures(events: list[list[Any]], struck: float, *, refused: bool) -> dict[str, float]:
    """Return the figures of all pairs that ended after the fault, also if they began before."""
    after = [(took, done) for began, took, done in events if began + took >= struck]
    took = [each for each, done in after if done is not refused]
    figures = {
        "success": sum(done for _, done in after) / max(len(after), 1),
        "max_us": max((each for each, _ in after), default=0.0) * 1e6,
        "pairs": len(after),
    }
    if took:
        figures |= {"p50_us": quantile(took, 0.5) * 1e6, "p99_us": quantile(took, 0.99) * 1e6}
    return figures

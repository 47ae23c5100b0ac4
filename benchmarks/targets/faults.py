"""Pairs while masters hang, end and return."""

from __future__ import annotations

import time
from collections import defaultdict
from contextlib import suppress
from statistics import median
from typing import Any

from benchmarks.jobs.faults import after
from benchmarks.targets.lab import Lab
from benchmarks.targets.results import Row, Target
from benchmarks.worker.process import Worker, WorkerFailed

OURS = ("ours", "ours async")
CYCLES = 3
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
HEALTHY, *FAULTS, LOST = (phase for phase, _, _ in PHASES)


def measure(lab: Lab) -> None:
    """Measure a round: all phases of each contender in one process."""
    for name in lab.turns(*OURS, "redlock-py"):
        options: dict[str, Any] = {"timeout": 0.05} if name == "redlock-py" else {}
        with lab.workers(name, **options) as (worker,):
            try:
                found = phases(lab, worker, CYCLES if name in OURS else 1)
            finally:
                for master in lab.store.masters:
                    master.resume()
                    master.start()
        for phase, figures in found.items():
            lab.results.add(Row("faults", phase, name, lab.round, figures))


def phases(lab: Lab, worker: Worker, cycles: int) -> dict[str, dict[str, Any]]:
    """Return the figures of each phase; a worker that fails ends them."""
    cases: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    # Less would end before a hung majority is known, whose later refusals are what counts.
    seconds = max(lab.seconds, 1.0)
    with suppress(WorkerFailed):
        worker.do("faults.without", down=2)
        for phase, strike, places in (*PHASES[:-1] * cycles, PHASES[-1]):
            if phase == LOST:
                worker.do("faults.without", down=3)
            worker.ask("faults.pairs", seconds=STRIKE + seconds)
            time.sleep(STRIKE)
            for place in places:
                getattr(lab.store.masters[place], strike)()
            struck = time.monotonic()
            said = worker.answer(STRIKE + seconds)
            figures = after(said["events"], struck, refused=phase == LOST)
            cases[phase].append({**figures, "looks": said["looks"], "overlaps": said["overlaps"]})
    by_name: dict[str, Any] = {"success": min, "looks": sum, "overlaps": sum}
    return {
        phase: {
            name: by_name.get(name, median)([each[name] for each in rounds if name in each])
            for name in rounds[0]
        }
        for phase, rounds in cases.items()
    }


SLOWEST = (
    "With two of five masters down, a round waits for the slowest of three, and not for the third "
    "of five. Nothing in the client would help, which sends and reads less then."
)
OWED = (
    "When two hung masters come back, they work off what they owe, on processors that they share "
    "with the client. Processors of their own help."
)
WORK = "one and two of five masters hung, dead, back"
TARGETS = [
    Target(WORK, "success", 1, "faults", FAULTS, "success", OURS, most=False, unit=""),
    Target(WORK, "p50 by all well", 1.1, "faults", FAULTS, of=OURS, by_case=HEALTHY, why=SLOWEST),
    Target(WORK, "longest pair", 10_000, "faults", FAULTS, "max_us", OURS, unit=" µs", why=OWED),
    Target("three of five hung", "a refusal, once known", 1_000, "faults", [LOST], of=OURS,
           unit=" µs"),
]  # fmt: skip

"""Pairs while masters hang, end and return, with a timeout of 50 ms for each master."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.harness.contenders import CONTENDERS
from benchmarks.harness.results import Results, Where, written
from benchmarks.harness.workload import (
    Column,
    Reason,
    Table,
    Target,
    WorkerFailed,
    Workload,
    of_cases,
    worst,
)
from benchmarks.worker.bench import KEYS, Bench, name
from benchmarks.worker.figures import clock, quantile

if TYPE_CHECKING:
    from benchmarks.harness.plan import Plan
    from benchmarks.harness.workers import Worker

ASKED = ("ours", "ours async", "redlock-py", "pottery", "node-redlock")
OURS = ("ours", "ours async")
MASTER_TIMEOUT = 0.05
CYCLES = 3
"""How often all phases but the last are repeated, of contenders whose phases have targets.

A phase lasts a second, in which other programs may be busy: then it would be the worst.
"""
STRIKE = 0.25
"""Seconds from the start of a phase to its fault, so that it occurs during pairs."""

CUT = 5.0
"""Seconds after which a pair counts as failed: some async contenders never return."""

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


async def pairs(bench: Bench, *, seconds: float, down: int = 0) -> dict[str, Any]:
    """Run pairs while the first `down` masters fail; return each as [began, took, done]."""
    events: list[list[Any]] = []
    until, finished = clock() + seconds, 0
    while (began := clock()) < until:
        look = down if finished % KEYS == 0 else None
        one = pair(bench, name("fault", len(events) % KEYS), look)
        try:
            took, done = await bench.limited(one, CUT)
        except TimeoutError:
            took, done = clock() - began, False
        finished += done
        events.append([began, took, done])
    return {"events": events, "looks": bench.intruder.looks, "overlaps": bench.intruder.overlaps}


async def pair(bench: Bench, resource: str, look: int | None) -> tuple[float, bool]:
    """Return the seconds of a pair, and whether it succeeded."""
    timer = time.perf_counter
    began = timer()
    try:
        held = await bench.acquire(resource)
        taken = leaving = timer()
        if held is None:
            return taken - began, False
        if look is not None:
            bench.intruder.look(resource, look)
            leaving = timer()
        await bench.release(held)
    except Exception:  # noqa: BLE001 - any error is a failed pair
        return timer() - began, False
    return timer() - leaving + taken - began, True


def measure(plan: Plan, setting: str, case: str, name: str) -> dict[str, Any]:
    """Run all phases in one process, and return the figures of each phase."""
    options: dict[str, Any] = {"timeout": MASTER_TIMEOUT} if CONTENDERS[name].patience else {}
    with plan.worker(name, setting, **options) as worker:
        try:
            return phases(plan, worker, CYCLES if name in OURS else 1)
        finally:
            for master in plan.masters.every:
                master.resume()
                master.start()


def phases(plan: Plan, worker: Worker, cycles: int) -> dict[str, Any]:
    """Run the phases; a worker that fails ends them."""
    cases: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    # Less would end before a hung majority is known, whose later refusals are what counts.
    seconds = max(plan.seconds, 1.0)
    for phase, strike, places in (*PHASES[:-1] * cycles, PHASES[-1]):
        down = max(2, len(places))  # The intruder does not use masters that may be down.
        worker.ask(job="faults.pairs", seconds=STRIKE + seconds, down=down)
        time.sleep(STRIKE)
        for place in places:
            getattr(plan.masters.every[place], strike)()
        struck = time.monotonic()
        try:
            said = worker.answer(STRIKE + seconds)
        except WorkerFailed as failure:
            return {**medians(cases), phase: {"failure": str(failure), "success": 0.0}}
        figures = after(said["events"], struck, refused=phase == LOST)
        cases[phase].append({**figures, "looks": said["looks"], "overlaps": said["overlaps"]})
    return medians(cases)


def medians(cases: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return the figures of each phase: the least success, all overlaps, the median of others."""
    by_name: dict[str, Any] = {"success": min, "looks": sum, "overlaps": sum}
    return {
        phase: {
            name: by_name.get(name, median)([each[name] for each in cycles if name in each])
            for name in cycles[0]
        }
        for phase, cycles in cases.items()
    }


def after(events: list[list[Any]], struck: float, *, refused: bool) -> dict[str, float]:
    """Return the figures of all pairs that ended after the fault, also if they began before."""
    ended = [(took, done) for began, took, done in events if began + took >= struck]
    took = [each for each, done in ended if done is not refused]
    figures = {
        "success": sum(done for _, done in ended) / max(len(ended), 1),
        "max_us": max((each for each, _ in ended), default=0.0) * 1e6,
        "pairs": len(ended),
    }
    if took:
        figures |= {"p50_us": quantile(took, 0.5) * 1e6, "p99_us": quantile(took, 0.99) * 1e6}
    return figures


def where(phase: str, name: str) -> Where:
    """Return the place of a contender's figures in a phase."""
    return Where("faults", "free", phase, name)


def longest_pairs(results: Results) -> str:
    """Return in which phase the longest pair was."""
    said = []
    for ours in OURS:
        longest = {
            phase: results.median(where(phase, ours), "max_us") or 0.0
            for phase in (HEALTHY, *FAULTS)
        }
        phase = max(FAULTS, key=longest.__getitem__)
        if longest[phase]:
            said.append(
                f"{ours} {written(longest[phase] / 1000)} ms in the phase *{phase}*, and "
                f"{written(longest[HEALTHY] / 1000)} ms with all masters well"
            )
    return f"Longest pairs of this run: {'; '.join(said)}." if said else ""


def scatter(results: Results) -> str:
    """Return how far the phase without faults scatters between rounds."""
    spreads = []
    for ours in OURS:
        values = results.values(where(HEALTHY, ours), "p50_us").values()
        if len(values) > 1:
            spreads.append(f"{written(max(values) / min(values))} × ({ours})")
    if not spreads:
        return ""
    others = where(HEALTHY, "node-redlock")
    ratios = [
        median(each)
        for phase in FAULTS
        if (each := results.ratios(replace(others, case=phase), others, "p50_us"))
    ]
    return (
        "In this run the p50 with all masters well was, in one round by another, "
        f"up to {' and '.join(spreads)}."
    ) + (f" The worst phase of node-redlock: {written(max(ratios))}." if ratios else "")


OWED = Reason(
    "faults",
    "When two hung masters come back, they work off what they owe, on processors that they "
    "share with the client (benchmarks/README.md).",
    "processors of their own",
    longest_pairs,
)
SLOWEST = Reason(
    "phases",
    "With two of five masters down, a round waits for the slowest of three, and not for the "
    "third of five: a pair takes 2.8 polls instead of 2.0.",
    "nothing in the client, which sends and reads less then, on the same path",
    scatter,
)


def targets() -> Iterator[Target]:
    """Yield the targets, each of the worse of both APIs."""
    work, lost = "one and two of five masters hung, dead, back", "three of five hung"
    places = [where(phase, name) for name in OURS for phase in FAULTS]
    success = worst([place.own("success") for place in places], most=False)
    by_healthy = worst([place.by(replace(place, case=HEALTHY)) for place in places])
    longest = worst([place.own("max_us") for place in places])
    known = worst([where(LOST, name).own("p50_us") for name in OURS])
    yield Target(work, "success", 1.0, success, most=False, unit="")
    yield Target(work, "p50, worst phase by healthy", 1.1, by_healthy, reason=SLOWEST)
    yield Target(work, "longest pair", 10_000, longest, unit=" µs", reason=OWED)
    yield Target(lost, "a refusal, once known", 1_000, known, unit=" µs")


def in_ms(heading: str, figure: str, phases: list[str]) -> list[Column]:
    """Return a column for each phase."""
    return [Column(f"{p}: {heading}", "free", p, figure, scale=1e-3) for p in phases]


WORKLOAD = Workload(
    "faults",
    settings=("free",),
    cases=lambda setting: [("all", ASKED)],
    measure=measure,
    parts="case",
    tables=[
        Table(
            "Masters hang and end, 50 ms for each master",
            [
                *in_ms("p50 ms", "p50_us", [HEALTHY, "2 hung", "2 dead", LOST]),
                *of_cases("{}: share that succeeds", "free", ["2 hung"], "success"),
            ],
        ),
    ],
    targets=[*targets()],
)

"""Why targets are missed, if they are, and what would help: the texts of the section "Not met".

A sentence that depends on the machine is made from the figures of the run itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import NamedTuple

from benchmarks.results import Results, Where, written
from benchmarks.targets import FAULTS

IN_C = (
    "one call into C that sends to all masters, polls and reads their answers; or engine/ and "
    "wire/ compiled by Cython, with which a pair without the kernel takes two thirds of its time "
    "(`python -m benchmarks.compiled`)"
)


class Reason(NamedTuple):
    """Why targets are missed, and what would help."""

    why: str
    remedy: str


def reason(profile: str, results: Results) -> str:
    """Return why the targets of a profile are missed, with figures of this run."""
    if profile not in REASONS:
        return "Why was not examined."
    why, remedy = REASONS[profile]
    figures = FIGURES[profile](results) if profile in FIGURES else ""
    return " ".join(filter(None, [why, figures, f"What would help: {remedy}."]))


def _crowd(results: Results) -> str:
    """Return what the floor reaches in a crowd, and the processor time of a pair."""
    said = []
    where = {name: Where("crowd", "free", "20 × 8", name) for name in ("ours", "floor", "redis-py")}
    if rates := results.ratios(where["floor"], where["redis-py"], "per_s"):
        said.append(
            "The floor itself, bare sockets that send the same scripts to the same masters, "
            f"reached {written(median(rates))} × redis-py in this run."
        )
    times = []
    for name, place in where.items():
        clients, masters = (results.median(place, each) for each in ("cpu_us", "servers_us"))
        if clients and masters:
            times.append(f"{name} {written(clients)} + {written(masters)} µs")
    if times:
        said.append(f"Processor time of a pair, clients + masters: {', '.join(times)}.")
    return " ".join(said)


def _scripts(results: Results) -> str:
    """Return how fast this processor is beside the one of the target."""
    took = results.median(Where("scripts", "pin", "one", "floor SET"), "cpu_us")
    return "" if took is None else f"In this run they took {written(took)} µs."


def _views(results: Results) -> str:
    """Return what LockMiddleware adds to a request in this run."""
    said = []
    for how in ("called", "served"):
        times = [
            results.median(Where("views", "free", how, name), "cpu_us")
            for name in ("bare", "bare, no LockMiddleware")
        ]
        if all(times):
            said.append(f"{how} {times[0]:.1f} µs, and {times[1]:.1f} µs without it")
    return f"In this run a request took {'; '.join(said)}." if said else ""


def _faults(results: Results) -> str:
    """Return in which phase the longest pair was."""
    said = []
    for name in ("ours", "ours async"):
        longest = {
            phase: results.median(Where("faults", "free", phase, name), "max_us") or 0.0
            for phase in ("healthy", *FAULTS)
        }
        phase = max(FAULTS, key=longest.__getitem__)
        if longest[phase]:
            said.append(
                f"{name} {written(longest[phase] / 1000)} ms in the phase *{phase}*, and "
                f"{written(longest['healthy'] / 1000)} ms with all masters well"
            )
    return f"Longest pairs of this run: {'; '.join(said)}." if said else ""


def _phases(results: Results) -> str:
    """Return how far the phase without faults scatters between rounds."""
    spreads = []
    for name in ("ours", "ours async"):
        values = results.values(Where("faults", "free", "healthy", name), "p50_us").values()
        if len(values) > 1:
            spreads.append(f"{written(max(values) / min(values))} × ({name})")
    if not spreads:
        return ""
    others = Where("faults", "free", "healthy", "node-redlock")
    ratios = [
        median(each)
        for phase in FAULTS
        if (each := results.ratios(replace(others, case=phase), others, "p50_us"))
    ]
    return (
        "In this run the p50 with all masters well was, in one round by another, "
        f"up to {' and '.join(spreads)}."
    ) + (f" The worst phase of node-redlock: {written(max(ratios))}." if ratios else "")


REASONS = {
    "pairs": Reason(
        "A pair is ten sends, ten reads and at least two polls; the rest is Python code, of which "
        "no part is large: `python -m benchmarks.pair_parts` prints what each step costs, and "
        "benchmarks/README.md has its table.",
        IN_C,
    ),
    "pairs async": Reason(
        "Each answer takes one turn of asyncio's loop.",
        f"uvloop, which saved 6 % and 28 % of the processor's time in two trials, and {IN_C}",
    ),
    "refusals": Reason(
        "A refusal is decided by the third answer, like a grant; the rest is Python code that "
        "counts votes and makes the exception.",
        IN_C,
    ),
    "threads": Reason(
        "One interpreter runs one thread at a time, and a thread that waits for replies sleeps and "
        "is woken for each round.",
        f"{IN_C}; several processes; tasks",
    ),
    "tasks": Reason(
        "The floor writes recorded bytes and decides nothing; redis-py locks on one master.",
        IN_C,
    ),
    "handoff": Reason(
        "A hand-off is a release and a round of the next waiter, in one send to each of five "
        "masters, which share the processors with the client (benchmarks/README.md). "
        "python-redis-lock pops a list on one master.",
        "processors of their own for the masters",
    ),
    "scripts": Reason(
        "The 18 µs were set on a processor on which SET and compare-and-delete took 3.8 µs; they "
        "are a quarter of the scripts, of which benchmarks/README.md shows each part.",
        "no index, or replies without the master's clock; both are promises",
    ),
    "crowd": Reason(
        "All processes and five masters share the processors, and a pair runs ten scripts on them; "
        "redis-py's Lock uses one master.",
        "slimmer scripts, more processors",
    ),
    "faults": Reason(
        "When two hung masters come back, they work off what they owe, on processors that they "
        "share with the client (benchmarks/README.md).",
        "processors of their own",
    ),
    "phases": Reason(
        "With two of five masters down, a round waits for the slowest of three, and not for the "
        "third of five: a pair takes 2.8 polls instead of 2.0. The worst of six phases counts.",
        "nothing in the client, which sends and reads less then, on the same path",
    ),
    "growth": Reason("Each further master costs a send, a read and a vote.", IN_C),
    "views": Reason(
        "LockMiddleware adds a call and an attribute to each request.",
        "longer rounds",
    ),
}
"""By the `profile` of a target."""

FIGURES: dict[str, Callable[[Results], str]] = {
    "crowd": _crowd,
    "faults": _faults,
    "scripts": _scripts,
    "views": _views,
    "phases": _phases,
}
"""Sentences with figures of a run, which follow the `why`."""

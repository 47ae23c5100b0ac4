"""All targets: measured round by round, and judged on the page RESULTS.md."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from statistics import median

from benchmarks import machine
from benchmarks.contenders import CONTENDERS
from benchmarks.targets.lab import opened
from benchmarks.targets.results import Results, Target, markdown, written

NAMES = ["pairs", "scripts", "crowds", "busy", "handoff", "faults", "views"]
"""The files with targets, in the order of a run and of the page."""

FIGURES = {
    "p50_us": "p50 µs",
    "p99_us": "p99 µs",
    "max_us": "longest µs",
    "cpu_us": "CPU µs",
    "servers_us": "masters' CPU µs",
    "per_s": "per second",
    "share": "most by fewest",
    "longest_wait_ms": "longest wait ms",
    "success": "success",
    "failed_share": "failed, of all",
}
"""The columns of the page."""


def targets() -> list[Target]:
    """Return all targets."""
    return [
        target for name in NAMES for target in import_module(f"benchmarks.targets.{name}").TARGETS
    ]


def measure(
    names: Sequence[str], rounds: int, seconds: float, say: Callable[[str], None]
) -> Results:
    """Measure so many rounds; an interrupted run returns what it has."""
    began, others = time.monotonic(), machine.Others()
    with opened(seconds) as lab:
        try:
            for lab.round in range(rounds):
                for name in names:
                    say(f"round {lab.round + 1} of {rounds}: {name} ...")
                    import_module(f"benchmarks.targets.{name}").measure(lab)
        except KeyboardInterrupt:
            lab.results.troubles.append("interrupted: what comes later was not measured")
        lab.results.about = machine.sentence(others.share(), time.monotonic() - began)
        return lab.results


def page(results: Results) -> str:
    """Return RESULTS.md: the targets, and why those that are missed are missed."""
    return "\n".join(_judged(results))


def figures(results: Results) -> str:
    """Return what was measured, one table for each workload, and what each contender is."""
    tables = [
        f"## {workload.capitalize()}\n\n{_table(results, workload)}"
        for workload in dict.fromkeys(row.workload for row in results.rows)
    ]
    measured = {row.contender for row in results.rows}
    about = [f"**{name}**: {CONTENDERS[name].about}" for name in CONTENDERS if name in measured]
    return "\n\n".join([*tables, f"{'; '.join(about)}."])


def _judged(results: Results) -> Iterator[str]:
    shown = [target for target in targets() if target.measured(results)]
    missed = [target for target in shown if target.missed(results)]
    yield "# Targets and figures\n"
    yield f"`uv run python -m benchmarks --all --write` writes this page. {results.about}"
    yield "A ratio is taken within a round; the median over the rounds is shown.\n"
    for trouble in results.troubles:
        yield f"- **trouble**: {trouble}\n"
    heads = ["Work", "Figure", "Target", "Measured (rounds)"]
    yield markdown(heads, [target.row(results) for target in shown])
    yield f"\n{len(shown) - len(missed)} of {len(shown)} met; a figure in bold is not.\n"
    for why in dict.fromkeys(target.why for target in missed):
        works = [f"{each.work} ({each.what})" for each in missed if each.why == why]
        yield f"- {'; '.join(works)}: {why or 'why was not examined.'}"
    yield ""


def _table(results: Results, workload: str) -> str:
    rows = [row for row in results.rows if row.workload == workload]
    figures = [each for each in FIGURES if any(each in row.figures for row in rows)]
    found = []
    for case, name in dict.fromkeys((row.case, row.contender) for row in rows):
        values = (results.values(workload, case, name, each).values() for each in figures)
        found.append([case, name, *(written(median(each)) if each else "" for each in values)])
    found.sort(key=lambda row: row[0])
    return markdown(["case", "contender", *(FIGURES[each] for each in figures)], found)

"""Declarations of workloads: their jobs, cases, tables, charts and targets.

This file is imported by workers too, in Python 3.9 and without the project.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

from benchmarks.harness.picture import Chart
from benchmarks.harness.results import Results, Values, Where, written

if TYPE_CHECKING:
    from benchmarks.harness.plan import Plan


class WorkerFailed(Exception):
    """A worker returned an error or did not answer."""


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table."""
    lines = [" | ".join(cells) for cells in (heads, *rows)]
    lines.insert(1, "|".join(["---"] * len(heads)))
    return "\n".join(
        f"| {line} |" if place != 1 else f"|{line}|" for place, line in enumerate(lines)
    )


@dataclass(frozen=True)
class Column:
    """One column: a figure in a case, or its ratio to another contender's.

    Of the values of all rounds, `reduce` makes the one that is shown.
    """

    heading: str
    setting: str
    case: str
    figure: str
    by: str = ""
    scale: float = 1.0
    reduce: Callable[[Iterable[float]], float] = median

    def cell(self, results: Results, workload: str, name: str) -> str:
        """Return the cell of a contender."""
        where = Where(workload, self.setting, self.case, name)
        if self.by:
            other = Where(workload, self.setting, self.case, self.by)
            values = results.ratios(where, other, self.figure)
        else:
            values = list(results.values(where, self.figure).values())
        if values:
            return written(self.reduce(values) * self.scale)
        return "failed" if results.has_failed(where) and not self.by else ""


@dataclass(frozen=True)
class Table:
    """A table of one workload, or a part of its figures; `note` says what its words mean."""

    title: str
    columns: Sequence[Column]
    note: str = ""

    def page(self, results: Results, workload: str) -> Iterator[str]:
        """Yield the table as Markdown, without rows and columns of which nothing is known."""
        names = results.names("contender", workload=workload)
        failed = [each.contender for each in results.failures if each.workload == workload]
        names = list(dict.fromkeys([*names, *filter(None, failed)]))
        cells = {c: [c.cell(results, workload, name) for name in names] for c in self.columns}
        known = [column for column in self.columns if any(cells[column])]
        if not known:
            return
        yield f"## {self.title}\n"
        if self.note:
            yield f"{self.note}\n"
        rows = [[name, *(cells[c][row] for c in known)] for row, name in enumerate(names)]
        rows = [row for row in rows if any(row[1:])]
        yield markdown(["", *(column.heading for column in known)], rows) + "\n"


def of_cases(heading: str, setting: str, cases: Iterable[object], figure: str) -> list[Column]:
    """Return a column for each case, whose name replaces {} in the heading."""
    return [Column(heading.format(case), setting, str(case), figure) for case in cases]


def latency() -> list[Column]:
    """Return the columns of the latency in the case "one"."""
    return [
        Column("pin: p50 µs", "pin", "one", "p50_us"),
        Column("× floor", "pin", "one", "p50_us", by="floor"),
        Column("rtt: × floor", "rtt", "one", "p50_us", by="floor"),
    ]


@dataclass(frozen=True)
class Reason:
    """Why targets are missed, if they are, and what would help.

    `figures` returns what depends on the machine, from the figures of the run itself. `name` is
    also the case of the workload `profiles` that shows where the time goes.
    """

    name: str
    why: str
    remedy: str
    figures: Callable[[Results], str] = lambda results: ""

    def text(self, results: Results) -> str:
        """Return the reason, with figures of this run."""
        said = (self.why, self.figures(results), f"What would help: {self.remedy}.")
        return " ".join(filter(None, said))


@dataclass(frozen=True)
class Target:
    """One target: an upper (`most`) or lower limit `bound` in `unit`.

    `values` returns the figure of every round; their median counts.
    """

    work: str
    what: str
    bound: float
    values: Values
    most: bool = True
    unit: str = "×"
    reason: Reason | None = None

    def measured(self, results: Results) -> float | None:
        """Return the median over the rounds; None if it was not measured."""
        values = self.values(results)
        return median(values) if values else None

    def has_failed(self, results: Results) -> bool:
        """Return whether a measurement that this target needs has failed."""
        asked = _Asked()
        self.values(asked)
        return any(results.has_failed(where) for where in asked.places)

    def met(self, value: float) -> bool:
        """Return whether a value meets the target."""
        return value <= self.bound if self.most else value >= self.bound

    def missed(self, results: Results) -> bool:
        """Return whether the target was measured and is not met."""
        value = self.measured(results)
        return value is not None and not self.met(value)

    def row(self, results: Results) -> list[str]:
        """Return the row of the table of targets."""
        measured = "**failed**"
        if spread := self.values(results):
            between = f" ({written(min(spread))}–{written(max(spread))})"
            value = median(spread)
            measured = f"{written(value)}{self.unit}{between if len(spread) > 1 else ''}"
            if not self.met(value):
                measured = f"**{measured}**"
        bound = f"{'≤' if self.most else '≥'} {written(self.bound)}{self.unit}"
        return [self.work, self.what, bound, measured]


class _Asked(Results):
    """Results that note where figures are looked for."""

    def __init__(self) -> None:
        super().__init__()
        self.places: list[Where] = []

    def values(self, where: Where, figure: str) -> dict[int, float]:
        self.places.append(where)
        return {}


def worst(parts: Sequence[Values], *, most: bool = True) -> Values:
    """Return the worst of several medians, because all of them must meet the target."""

    def values(results: Results) -> list[float]:
        medians = [median(each) for part in parts if (each := part(results))]
        return [max(medians) if most else min(medians)] if medians else []

    return values


@dataclass(frozen=True)
class Workload:
    """One workload. Its jobs are coroutine functions of the same file (`worker/bench.py`).

    `cases` returns, for a setting, what is varied and which contenders are asked. In a case,
    `job` runs with the arguments that `how` returns: another job, `n` masters, `options` of the
    contender, and those of the job. If there is a `measure`, it returns the figures instead; with
    `parts`, those of several cases or contenders, by name. `settings` are the usual ones, or, if
    `fixed`, the only ones; `masters` is how many it needs, and `growth` yields lines on how its
    costs grow.
    """

    name: str
    settings: Sequence[str]
    cases: Callable[[str], Iterable[tuple[str, Sequence[str]]]]
    job: str = ""
    how: Callable[[str], dict[str, Any]] = lambda case: {}
    measure: Callable[[Plan, str, str, str], dict[str, Any]] | None = None
    parts: str = ""
    fixed: bool = False
    masters: int = 5
    tables: Sequence[Table] = ()
    targets: Sequence[Target] = ()
    charts: Sequence[Chart] = ()
    growth: Callable[[Results], Iterable[str]] = lambda results: ()

    def figures(self, plan: Plan, setting: str, case: str, contender: str) -> dict[str, Any]:
        """Return the figures of a contender in a case."""
        if self.measure:
            return self.measure(plan, setting, case, contender)
        return plan.measured(contender, setting, **{"job": self.job, **self.how(case)})

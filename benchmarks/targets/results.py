"""The figures of a run by workload, case, contender and round, and the targets that judge them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any


@dataclass(frozen=True)
class Row:
    """The figures of one job. `case` is what the workload varies, such as the number of threads."""

    workload: str
    case: str
    contender: str
    round: int
    figures: dict[str, Any]


@dataclass
class Results:
    """All rows of a run, the machine, and the problems that occurred."""

    about: str = ""
    rows: list[Row] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)

    def add(self, row: Row) -> None:
        """Add a row; overlapping holders and failed pairs are recorded as problems."""
        self.rows.append(row)
        where, figures = f"{row.workload}, {row.case}: {row.contender}", row.figures
        if figures.get("failed"):
            why = str(figures.get("why", ""))[:200]
            self.troubles.append(f"{where}: {figures['failed']} pairs failed: {why}")
        if figures.get("overlaps"):
            self.troubles.append(f"{where} did NOT exclude: {figures['overlaps']} overlaps")

    def values(self, workload: str, case: str, contender: str, figure: str) -> dict[int, float]:
        """Return a figure by round."""
        return {
            row.round: row.figures[figure]
            for row in self.rows
            if (row.workload, row.case, row.contender) == (workload, case, contender)
            and figure in row.figures
        }


@dataclass(frozen=True)
class Target:
    """One target: an upper (`most`) or lower limit `bound` in `unit` of a figure.

    With `by`, the figure is divided by that of another contender or case in the same round; a
    dot stands for the same contender, or case. Of several `cases`, the worst one counts. `why` says
    why it may be missed, and what would help.
    """

    work: str
    what: str
    bound: float
    workload: str
    cases: Sequence[str]
    figure: str = "p50_us"
    of: Sequence[str] = ("ours",)
    by: str = ""
    by_case: str = ""
    most: bool = True
    unit: str = "×"
    why: str = ""

    def measured(self, results: Results) -> list[float]:
        """Return the values of all rounds of the case and contender whose median is the worst."""
        every = [
            values
            for case in self.cases
            for name in self.of
            if (values := self._values(results, case, name))
        ]
        return (max if self.most else min)(every, key=median, default=[])

    def _values(self, results: Results, case: str, name: str) -> list[float]:
        own = results.values(self.workload, case, name, self.figure)
        if not (self.by or self.by_case):
            return [*own.values()]
        place = (self.workload, self.by_case or case, self.by or name)
        other = results.values(*place, self.figure)
        return [own[number] / other[number] for number in own if other.get(number)]

    def met(self, value: float) -> bool:
        """Return whether a value meets the target."""
        return value <= self.bound if self.most else value >= self.bound

    def missed(self, results: Results) -> bool:
        """Return whether the target was measured and is not met."""
        values = self.measured(results)
        return bool(values) and not self.met(median(values))

    def row(self, results: Results) -> list[str]:
        """Return the row of the table of targets."""
        values = self.measured(results)
        cell = "not measured"
        if values:
            between = f" ({written(min(values))} to {written(max(values))})"
            cell = f"{written(median(values))}{self.unit}{between if len(values) > 1 else ''}"
            cell = cell if self.met(median(values)) else f"**{cell}**"
        bound = f"{'≤' if self.most else '≥'} {written(self.bound)}{self.unit}"
        return [self.work, self.what, bound, cell]


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table."""
    lines = [f"| {' | '.join(cells)} |" for cells in (heads, *rows)]
    lines.insert(1, f"|{'---|' * len(heads)}")
    return "\n".join(lines)


def written(value: float) -> str:
    """Return a number with three digits at least, as the page shows it."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"

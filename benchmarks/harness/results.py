"""The results: a row per contender, case and round, and ratios within a round.

This file is imported by workers too, in Python 3.9.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

Values = Callable[["Results"], "list[float]"]
"""Returns the values of something in each round."""


@dataclass(frozen=True)
class Row:
    """The figures of one job. `case` is what the workload varies, such as the number of threads."""

    workload: str
    setting: str
    case: str
    contender: str
    round: int
    figures: dict[str, Any]


@dataclass(frozen=True)
class Where:
    """A contender in a case."""

    workload: str
    setting: str
    case: str
    contender: str

    def own(self, figure: str) -> Values:
        """Return what returns a figure in each round."""
        return lambda results: list(results.values(self, figure).values())

    def by(self, other: str | Where, figure: str = "p50_us") -> Values:
        """Return what returns the quotient of this and another contender within each round."""
        theirs = replace(self, contender=other) if isinstance(other, str) else other
        return lambda results: results.ratios(self, theirs, figure)


@dataclass(frozen=True)
class Failure:
    """A measurement that gave no figures. An empty case or contender stands for all of them."""

    workload: str
    setting: str
    case: str
    contender: str
    round: int
    why: str

    def concerns(self, where: Where) -> bool:
        """Return whether the figures of a contender in a case are missing for this reason."""
        return (
            (self.workload, self.setting) == (where.workload, where.setting)
            and self.case in ("", where.case)
            and self.contender in ("", where.contender)
        )


@dataclass
class Results:
    """All rows of a run, the machine, and the problems that occurred."""

    about: dict[str, Any] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)

    def add(self, row: Row) -> None:
        """Add a row; overlapping holders and failed pairs are recorded as problems."""
        self.rows.append(row)
        self.check(row)

    def check(self, row: Row) -> None:
        """Record the problems of a row, which need not be one of the results."""
        if failed := row.figures.get("failed"):
            self.troubles.append(
                f"{row.workload}, {row.setting}, {row.case}: {failed} pairs of {row.contender} "
                f"failed: {row.figures.get('why', '')[:200]}"
            )
        if row.figures.get("overlaps"):
            self.troubles.append(
                f"{row.contender} did NOT exclude in {row.workload} {row.case}: "
                f"{row.figures['overlaps']} overlaps"
            )

    def fail(self, failure: Failure) -> None:
        """Record that a measurement has failed."""
        self.failures.append(failure)
        place = (failure.workload, failure.setting, failure.case, failure.contender)
        words = [*filter(None, place), f"round {failure.round + 1}"]
        self.troubles.append(f"{', '.join(words)}: failed: {failure.why}")

    def has_failed(self, where: Where) -> bool:
        """Return whether a round is missing because its measurement failed."""
        return any(failure.concerns(where) for failure in self.failures)

    def find(self, **wanted: str) -> Iterator[Row]:
        """Yield the rows with these values."""
        for row in self.rows:
            if all(getattr(row, name) == value for name, value in wanted.items()):
                yield row

    def values(self, where: Where, figure: str) -> dict[int, float]:
        """Return a figure by round."""
        found = self.find(
            workload=where.workload,
            setting=where.setting,
            case=where.case,
            contender=where.contender,
        )
        return {row.round: row.figures[figure] for row in found if figure in row.figures}

    def median(self, where: Where, figure: str) -> float | None:
        """Return the median over the rounds; None if it was not measured."""
        values = self.values(where, figure)
        return median(values.values()) if values else None

    def ratios(self, ours: Where, theirs: Where, figure: str) -> list[float]:
        """Return the quotient of two contenders within each round that measured both."""
        mine, other = self.values(ours, figure), self.values(theirs, figure)
        return [mine[number] / other[number] for number in mine if other.get(number)]

    def names(self, attribute: str, **wanted: str) -> list[str]:
        """Return the distinct values of a column, in the order of their first row."""
        return list(dict.fromkeys(getattr(row, attribute) for row in self.find(**wanted)))

    def save(self, path: Path) -> None:
        """Write everything as JSON."""
        rows = ",\n".join(json.dumps(asdict(row)) for row in self.rows)
        said = {
            "about": self.about,
            "failures": [asdict(failure) for failure in self.failures],
            "troubles": self.troubles,
        }
        head = json.dumps(said, indent=1)[:-2]
        path.write_text(f'{head},\n "rows": [\n{rows}\n]}}\n')

    @classmethod
    def load(cls, path: Path) -> Results:
        """Read a file that `save` has written."""
        said = json.loads(path.read_text())
        rows = [Row(**row) for row in said["rows"]]
        failures = [Failure(**failure) for failure in said["failures"]]
        return cls(said["about"], rows, failures, said["troubles"])


def written(value: float) -> str:
    """Return a number with three digits at least, as the page shows it."""
    if value >= 1000:
        return f"{value:,.0f}".replace(",", " ")
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}"

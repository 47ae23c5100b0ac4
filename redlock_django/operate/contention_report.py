"""Contention over the last hour or day: numbers over time, and the most contended resources."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields
from typing import Any, NamedTuple

from django.db.models import F, Sum

from redlock_django.models import ContentionCount
from redlock_django.wire.clock import wall_ns


class Period(NamedTuple):
    """A time up to now, in minutes, and the minutes of one of its steps."""

    minutes: int
    step: int

    @property
    def steps(self) -> int:
        """How many steps the period has; the last one has not ended."""
        return self.minutes // self.step


HOUR, DAY = Period(60, 1), Period(24 * 60, 30)


@dataclass(frozen=True, kw_only=True)
class Contention:
    """The numbers of an alias, a resource or a step; `ContentionCount` describes them."""

    acquired: int = 0
    refused: int = 0
    unavailable: int = 0
    waited: int = 0
    waited_seconds: float = 0.0
    released: int = 0
    lost: int = 0
    held_seconds: float = 0.0

    @property
    def average_wait(self) -> float | None:
        """The seconds of an average wait, None without one."""
        return self.waited_seconds / self.waited if self.waited else None

    @property
    def holds(self) -> int:
        """How many locks were held, and are not any more."""
        return self.released + self.lost

    @property
    def average_hold(self) -> float | None:
        """The seconds for which a lock was held on average, None if none was released."""
        return self.held_seconds / self.holds if self.holds else None


NUMBERS = tuple(field.name for field in fields(Contention))
"""The numbers of a row; all of them are counters of `locking.counters` too."""

SUMS = {f"sum_{name}": Sum(name) for name in NUMBERS}


def total_of(every: Iterable[Contention]) -> Contention:
    """Return the sum of each number."""
    return _contention(map(sum, zip(*(astuple(one) for one in every), strict=True)))


def this_minute() -> int:
    """Return the current minute since 1970."""
    return wall_ns() // 60_000_000_000


def steps(using: str, period: Period, now: int) -> list[Contention]:
    """Return the numbers of an alias in each step of a period that ends in the minute `now`."""
    first = _first(period, now)
    rows = (
        _since(using, first, now)
        .filter(resource="")
        .values_list(F("minute") - F("minute") % period.step)
        .annotate(**SUMS)
    )
    found = {row[0]: _contention(row[1:]) for row in rows}
    nothing = Contention()
    return [found.get(first + index * period.step, nothing) for index in range(period.steps)]


def hottest(using: str, period: Period, now: int, most: int) -> list[tuple[str, Contention]]:
    """Return the resources that were refused or waited for most often, the first one first."""
    rows = (
        _since(using, _first(period, now), now)
        .exclude(resource="")
        .values_list("resource")
        .annotate(**SUMS)
        .order_by(
            (F("sum_refused") + F("sum_waited")).desc(), F("sum_held_seconds").desc(), "resource"
        )
    )
    return [(row[0], _contention(row[1:])) for row in rows[:most]]


def _first(period: Period, now: int) -> int:
    """Return the first minute of a period."""
    return now - now % period.step - (period.steps - 1) * period.step


def _since(using: str, first: int, now: int) -> Any:
    return ContentionCount.objects.filter(using=using, minute__gte=first, minute__lte=now)


def _contention(numbers: Any) -> Contention:
    return Contention(**dict(zip(NUMBERS, numbers, strict=True)))

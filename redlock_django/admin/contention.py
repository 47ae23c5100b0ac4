"""The contention page: refusals, waits and holds of an alias, over the last hour and day.

Charts are drawn as SVG on the server, with nothing that a Content-Security-Policy forbids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.contrib.admin.views.main import SEARCH_VAR
from django.db import DatabaseError
from django.utils.formats import number_format

from redlock_django.admin.labels import duration
from redlock_django.conf.settings import AliasSettings
from redlock_django.locking.names import printable
from redlock_django.operate.contention_report import (
    DAY,
    HOUR,
    Contention,
    Period,
    hottest,
    steps,
    this_minute,
    total_of,
)

MOST = 10
"""The resources that are listed for a period."""


@dataclass(frozen=True, kw_only=True)
class ChartBar:
    """One bar, in hundredths of the chart's height; `x` is the number of its step."""

    x: int
    y: str
    height: str


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A chart with a title, a summary in words, and its highest value."""

    kind: str
    title: str
    summary: str
    peak: str
    bars: list[ChartBar]


@dataclass(frozen=True, kw_only=True)
class ResourceRow:
    """The numbers of one resource as strings to display."""

    resource: str
    link: str
    refused: str
    waited: str
    average_wait: str
    released: str
    average_hold: str


@dataclass(frozen=True, kw_only=True)
class PeriodView:
    """The charts and rows of one period; `steps` is the width of its charts."""

    name: str
    begin: str
    step: str
    steps: int
    charts: list[Chart]
    rows: list[ResourceRow]


def contention_context(settings: AliasSettings, list_url: str) -> dict[str, Any]:
    """Return the context of the page of an alias; `problem` is why it shows nothing, or ""."""
    problem, periods = "", []
    if not settings.record_contention:
        problem = (
            'The contention of this alias is not recorded. To record it, set "RECORD_CONTENTION": '
            f"True in REDLOCK[{settings.alias!r}]."
        )
    else:
        now = this_minute()
        try:
            periods = [_period_view(settings.alias, one, now, list_url) for one in (HOUR, DAY)]
        except DatabaseError:
            problem = "The counts cannot be read from the database. Has it been migrated?"
    return {"problem": problem, "periods": periods}


def _period_view(alias: str, period: Period, now: int, list_url: str) -> PeriodView:
    every = steps(alias, period, now)
    total, hour = total_of(every), period is HOUR
    return PeriodView(
        name="Last hour" if hour else "Last day",
        begin="1 hour ago" if hour else "1 day ago",
        step="each bar is 1 minute" if hour else f"each bar is {period.step} minutes",
        steps=period.steps,
        charts=[_refusals(total, every), _waits(total, every), _holds(total, every, period.step)],
        rows=[
            _row(name, numbers, list_url)
            for name, numbers in hottest(alias, period, now, MOST)
            if numbers.refused or numbers.waited
        ],
    )


def _refusals(total: Contention, every: Sequence[Contention]) -> Chart:
    were = "lock was" if total.refused == 1 else "locks were"
    refused, acquired = number_format(total.refused), number_format(total.acquired)
    summary = f"{refused} {were} refused, {acquired} acquired"
    if total.unavailable:
        summary += f" · {number_format(total.unavailable)} without a quorum"
    return _chart("refused", "Refusals", summary, [one.refused for one in every], number_format)


def _waits(total: Contention, every: Sequence[Contention]) -> Chart:
    callers = "caller" if total.waited == 1 else "callers"
    text = f"{number_format(total.waited)} {callers} waited"
    summary = _with_average(text, total.average_wait)
    waits = [one.average_wait or 0 for one in every]
    return _chart("waited", "Average wait", summary, waits, _seconds)


def _holds(total: Contention, every: Sequence[Contention], step: int) -> Chart:
    were = "lock was" if total.holds == 1 else "locks were"
    summary = _with_average(f"{number_format(total.holds)} {were} held", total.average_hold)
    at_once = [one.held_seconds / (60 * step) for one in every]
    return _chart("held", "Locks held at a time", summary, at_once, _decimal)


def _with_average(summary: str, average: float | None) -> str:
    if average is None:
        return summary
    return f"{summary}, for {_seconds(average)} on average"


def _chart(
    kind: str, title: str, summary: str, values: Sequence[float], shown: Callable[[Any], str]
) -> Chart:
    peak = max(values)
    bars = []
    for x, value in enumerate(values):
        # A value that is not 0 is always visible.
        height = max(3.0, 100 * value / peak) if value else 0.0
        if height:
            bars.append(ChartBar(x=x, y=f"{100 - height:.1f}", height=f"{height:.1f}"))
    return Chart(
        kind=kind, title=title, summary=summary, peak=shown(peak) if peak else "", bars=bars
    )


def _row(name: str, numbers: Contention, list_url: str) -> ResourceRow:
    return ResourceRow(
        resource=printable(name),
        link=f"{list_url}?{urlencode({SEARCH_VAR: name})}",
        refused=number_format(numbers.refused),
        waited=number_format(numbers.waited),
        average_wait=_seconds(numbers.average_wait),
        released=number_format(numbers.released),
        average_hold=_seconds(numbers.average_hold),
    )


def _decimal(number: float) -> str:
    return number_format(number, 1 if number >= 1 else 3)


def _seconds(seconds: float | None) -> str:
    """Return a duration, in ms below a tenth of a second, "–" for none."""
    if seconds is None:
        return "–"
    return duration(seconds, 1) if seconds >= 0.1 else f"{number_format(seconds * 1000, 1)} ms"

"""The main figures as one SVG with small charts.

This file is imported by workers too, in Python 3.9.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from html import escape
from statistics import median

from benchmarks.harness.contenders import CONTENDERS
from benchmarks.harness.results import Results, Where

WIDTH, HEIGHT, EDGE = 440, 280, 16
COLORS = ("#0b6e4f", "#8a8f98", "#c5832b", "#3a6ea5", "#9a4c95", "#b5483d", "#5b8c85", "#6d5b4b")
OURS = ("ours", "ours async")

Line = tuple[str, list[tuple[float, float]]]


@dataclass(frozen=True)
class Chart:
    """A chart of a workload in a setting: lines of a figure by the numbers that are its cases.

    With `by`, one bar for each contender: the figure in the case "one", divided by that of `by`.
    """

    title: str
    setting: str
    figure: str
    by: str = ""
    log: bool = True

    def drawn(self, results: Results, workload: str) -> str:
        """Return the chart, or nothing without data."""
        if self.by:
            return _bars(self.title, _ratios(self, results, workload))
        return _lines(self.title, _series(self, results, workload), log=self.log)


def picture(charts: Iterable[str]) -> str:
    """Return the SVG of drawn charts, two in a row."""
    charts = [chart for chart in charts if chart]
    rows = (len(charts) + 1) // 2
    placed = "".join(
        f'<g transform="translate({EDGE + place % 2 * (WIDTH + EDGE)} '
        f'{EDGE + place // 2 * (HEIGHT + EDGE)})">{chart}</g>'
        for place, chart in enumerate(charts)
    )
    width, height = 2 * WIDTH + 3 * EDGE, rows * (HEIGHT + EDGE) + EDGE
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="system-ui, sans-serif" font-size="11" fill="#222">\n'
        f'<rect width="{width}" height="{height}" fill="#fff"/>\n{placed}</svg>\n'
    )


def _series(chart: Chart, results: Results, workload: str) -> list[Line]:
    lines = []
    for name in results.names("contender", workload=workload, setting=chart.setting):
        points = []
        for case in results.names("case", workload=workload, contender=name):
            value = results.median(Where(workload, chart.setting, case, name), chart.figure)
            if value and case.isdigit():
                points.append((float(case), value))
        if points:
            lines.append((name, sorted(points)))
    return lines


def _ratios(chart: Chart, results: Results, workload: str) -> list[tuple[float, str]]:
    other = Where(workload, chart.setting, "one", chart.by)
    return sorted(
        (median(ratios), name)
        for name in results.names("contender", workload=workload, setting=chart.setting)
        if (ratios := results.ratios(replace(other, contender=name), other, chart.figure))
    )


def _bars(title: str, bars: Sequence[tuple[float, str]]) -> str:
    """Return a chart with one bar per contender, beside a line at 1."""
    if not bars:
        return ""
    left, step = 120, (HEIGHT - 40) / len(bars)
    # Longer bars are cut; the number next to the bar is exact.
    room, most = WIDTH - left - 50, min(bars[-1][0], 6.0)
    one = left + room / most
    drawn = [f'<path d="M{one:.1f} 26V{HEIGHT - 8}" stroke="#222" stroke-dasharray="3 3"/>']
    for place, (value, name) in enumerate(bars):
        top, length = 30 + place * step, min(value, most) / most * room
        color = COLORS[0] if name in OURS else COLORS[1]
        drawn.append(
            f'<text x="{left - 6}" y="{top + step * 0.6:.1f}" text-anchor="end">{escape(name)}'
            f'</text><rect x="{left}" y="{top + 2:.1f}" width="{length:.1f}" '
            f'height="{step - 5:.1f}" fill="{color}"/>'
            f'<text x="{left + length + 5:.1f}" y="{top + step * 0.6:.1f}">{value:.2f} ×</text>'
        )
    return _title(title) + "".join(drawn)


def _lines(title: str, lines: Sequence[Line], *, log: bool = True) -> str:
    """Return a chart with a line per contender; both axes are logarithmic, or none."""
    if not lines:
        return ""
    scale = math.log10 if log else float
    xs = sorted({x for _, points in lines for x, _ in points})
    ys = [y for _, points in lines for _, y in points]
    low, high = (min(ys) / 1.3, max(ys) * 1.3) if log else (0.0, max(ys) * 1.05)
    left, right, top, bottom = 52, WIDTH - 108, 30, HEIGHT - 26
    wide = scale(xs[-1]) - scale(xs[0]) or 1.0
    tall = scale(high) - scale(low)

    def at(x: float, y: float) -> tuple[float, float]:
        return (
            left + (scale(x) - scale(xs[0])) / wide * (right - left),
            bottom - (scale(y) - scale(low)) / tall * (bottom - top),
        )

    drawn = [f'<path d="M{left} {top}V{bottom}H{right}" fill="none" stroke="#999"/>']
    drawn += [
        f'<text x="{at(x, high)[0]:.1f}" y="{bottom + 15}" text-anchor="middle">{_short(x)}</text>'
        for x in xs
    ]
    for y in _ticks(low, high, log):
        height = at(xs[0], y)[1]
        drawn.append(
            f'<text x="{left - 6}" y="{height + 4:.1f}" text-anchor="end">{_short(y)}</text>'
            f'<path d="M{left} {height:.1f}H{right}" stroke="#eee"/>'
        )
    ends = {name: at(*points[-1])[1] + 4 for name, points in lines}
    labels = _apart(ends, bottom)
    for name, points in lines:
        ours = name in OURS
        color = _color(name)
        spots = [at(x, y) for x, y in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
        drawn.append(
            f'<polyline points="{path}" fill="none" stroke="{color}" '
            f'stroke-width="{2.5 if ours else 1.3}"/>'
        )
        drawn += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.2" fill="{color}"/>' for x, y in spots]
        drawn.append(
            f'<text x="{right + 8}" y="{labels[name]:.1f}" fill="{color}">{escape(name)}</text>'
        )
    return _title(title) + "".join(drawn)


def _color(name: str) -> str:
    """Return the color of a contender, the same in all charts and for both APIs of the project."""
    others = [other for other in CONTENDERS if other not in OURS]
    return COLORS[0] if name in OURS else COLORS[1 + others.index(name) % (len(COLORS) - 1)]


def _apart(heights: dict[str, float], bottom: float) -> dict[str, float]:
    """Return the heights of the labels, moved up until none overlaps another."""
    placed: dict[str, float] = {}
    lowest = bottom + 13.0
    for name in sorted(heights, key=lambda each: -heights[each]):
        lowest = placed[name] = min(heights[name], lowest - 13)
    return placed


def _ticks(low: float, high: float, log: bool) -> list[float]:
    if log:
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        each = [digit * 10.0**power for power in powers for digit in (1, 3)]
        return [tick for tick in each if low <= tick <= high]
    step = 10 ** math.floor(math.log10(high))
    step = step / 2 if high / step < 3 else step
    return [step * place for place in range(int(high / step) + 1)]


def _short(value: float) -> str:
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def _title(text: str) -> str:
    return f'<text x="0" y="12" font-size="13" font-weight="600">{escape(text)}</text>'

"""Tables for a terminal: as wide as it is, and with nothing in a cell that could steer it."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence

from redlock_django.locking.names import printable

NARROWEST = 12
"""Columns of the terminal that a cell keeps before its line is cut off."""

_GAP = "  "


def table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    width: int | None = None,
    flexible: Iterable[int] = (),
) -> str:
    """Give lines of columns that line up, or "" without rows.

    With `width`, in columns of the terminal, the widest of the `flexible` columns are made
    narrower until the lines fit; what is cut ends with "…".
    """
    cells = [[printable(cell) for cell in row] for row in rows]
    if not cells:
        return ""
    cells.insert(0, list(heads))
    widths = [max(map(_width, column)) for column in zip(*cells, strict=True)]
    if width is not None:
        _narrow(widths, width, sorted(flexible))
    lines = [
        _GAP.join(_fit(cell, columns) for cell, columns in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]
    return "\n".join(line if width is None else _fit(line, width).rstrip() for line in lines)


def _narrow(widths: list[int], width: int, flexible: Sequence[int]) -> None:
    over = sum(widths) + len(_GAP) * (len(widths) - 1) - width
    while over > 0 and flexible:
        widest = max(flexible, key=lambda place: widths[place])
        if widths[widest] <= NARROWEST:
            return
        widths[widest] -= 1
        over -= 1


def _fit(text: str, columns: int) -> str:
    """Cut or fill a text to so many columns."""
    if _width(text) > columns:
        while text and _width(text) > columns - 1:
            text = text[:-1]
        text += "…"
    return text + " " * (columns - _width(text))


def _width(text: str) -> int:
    return sum(map(_columns, text))


def _columns(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1

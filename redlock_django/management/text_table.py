"""Text tables that fit a terminal and contain no control characters."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence

from redlock_django.locking.names import printable

NARROWEST = 12
"""The number of columns to which a cell may be narrowed; then its line is cut off."""

_GAP = "  "


def text_table(
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    width: int | None = None,
    flexible: Iterable[int] = (),
) -> str:
    """Return the rows as aligned lines below `heads`, or "" if there are no rows.

    If `width` is given, in terminal columns, the widest of the `flexible` columns are narrowed
    until the lines fit. Text that is cut ends with "…".
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
        widest = max(flexible, key=lambda index: widths[index])
        if widths[widest] <= NARROWEST:
            return
        widths[widest] -= 1
        over -= 1


def _fit(text: str, columns: int) -> str:
    """Cut or pad a string to a number of terminal columns."""
    width = _width(text)
    if width > columns:
        while text and width > columns - 1:
            width -= _width(text[-1])
            text = text[:-1]
        text, width = text + "…", width + 1
    return text + " " * (columns - width)


def _width(text: str) -> int:
    # Nearly every cell is ASCII, and a table may have 70,000 of them.
    return len(text) if text.isascii() else sum(map(_columns, text))


def _columns(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1

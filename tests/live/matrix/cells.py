"""The names of what is combined; this module imports no framework."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import NamedTuple

VIEWS = ("function", "dispatch", "handler", "rest", "bare_rest", "ninja_function", "asynchronous")
INNER = ("handler", "bare_rest", "ninja_function")
"""The views that Django calls inside the transaction of ATOMIC_REQUESTS."""

DECORATORS = ("both", "lock-only", "idempotent-only")
DATABASES = ("sqlite", "postgres")


class Kind(NamedTuple):
    """The properties in which the sites of a server differ."""

    database: str
    atomic: bool
    outer: bool


def kinds(databases: Iterable[str]) -> list[Kind]:
    """Return all kinds of sites over these databases."""
    return [Kind(*each) for each in itertools.product(databases, (False, True), (False, True))]


def is_refused(view: str, decorators: str, kind: Kind) -> bool:
    """Return whether a combination must be refused; all others must work."""
    has_key = decorators != "lock-only"
    if view == "asynchronous":
        # Django refuses ATOMIC_REQUESTS itself.
        return kind.atomic or (kind.outer and kind.database == "sqlite")
    if view == "bare_rest" and has_key:
        return True
    inside = kind.outer or (kind.atomic and view in INNER)
    return inside and (has_key or kind.database == "sqlite")

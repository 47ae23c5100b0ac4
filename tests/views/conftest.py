"""The fixtures of views."""

from __future__ import annotations

from tests.app.conftest import (
    happened,
    held_elsewhere,
    is_free,
    lose_locks,
    no_renewals,
    sees_commits,
    urls,
)

__all__ = [
    "happened",
    "held_elsewhere",
    "is_free",
    "lose_locks",
    "no_renewals",
    "sees_commits",
    "urls",
]

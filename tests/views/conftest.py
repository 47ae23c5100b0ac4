"""The fixtures of views."""

from __future__ import annotations

from tests.app.conftest import happened, lose_locks, no_renewals, sees_commits, urls

__all__ = [
    "happened",
    "lose_locks",
    "no_renewals",
    "sees_commits",
    "urls",
]

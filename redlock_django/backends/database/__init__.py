"""Locks in a database of the site."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from redlock_django.backends.database.backend import DatabaseBackend

__all__ = ["DatabaseBackend"]


def __getattr__(name: str) -> object:
    # Imported when it is used: the models need the names of the tables in every site.
    if name != "DatabaseBackend":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from redlock_django.backends.database.backend import DatabaseBackend

    return DatabaseBackend

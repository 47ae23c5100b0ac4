"""Recognize the errors of a database whose tables are missing, and say what to do."""

from __future__ import annotations

from redlock_django.backends.database.dialects import sqlstate

_UNMIGRATED = ("42P01", "42703")  # SQLSTATE: undefined table, undefined column
_OF_SQLITE = ("no such table: redlock_", "no such column: redlock_", "table redlock_django_")


def remedy_of(error: BaseException, database: str) -> str:
    """Return what to do about a table or a column that is missing; "" for any other error.

    `database` is the alias. The error must be that of a statement on tables of this app.
    """
    if sqlstate(error) not in _UNMIGRATED and not str(error).startswith(_OF_SQLITE):
        return ""
    problem = f"the tables are missing or old in the database {database!r}"
    return f"{problem}: run 'manage.py migrate --database {database}'"

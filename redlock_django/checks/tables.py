"""Checks of the tables of the app: a router that forbids them, and tables that are missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django.core.checks import CheckMessage, Error
from django.db import Error as DatabaseError
from django.db import connections, models, router

from redlock_django.backends.database.settings import DatabaseSettings
from redlock_django.checks.aliases import valid_aliases
from redlock_django.exceptions import InvalidRedlock
from redlock_django.idempotency.settings import settings_of
from redlock_django.models import IdempotencyRecord, LockRow, ServerRow, WaiterRow

Model = type[models.Model]
_OF_LOCKS: tuple[Model, ...] = (LockRow, WaiterRow, ServerRow)


def check_routers(**_: Any) -> list[CheckMessage]:
    """Return E017 where a router keeps the tables of locks out of their database."""
    return [
        Error(
            f"REDLOCK[{alias!r}]: a router of DATABASE_ROUTERS does not allow the tables of locks "
            f"in the database {database!r}, so 'manage.py migrate' does not create them.",
            hint="Allow the app 'redlock_django' there in allow_migrate(), or set DATABASE to the "
            "database that the router chooses.",
            id="redlock_django.E017",
        )
        for alias, database in _with_tables_of_locks()
        if not router.allow_migrate_model(database, LockRow)
    ]


def _with_tables_of_locks() -> Iterator[tuple[str, str]]:
    """Yield the aliases whose locks are in tables of Django, each with its database."""
    for options in valid_aliases():
        store = options.store
        if isinstance(store, DatabaseSettings) and not store.sqlite_file:  # it creates its own
            yield options.alias, store.database


def check_tables(*, databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """Return E024 for each table that is missing, or lacks a column, where it is used.

    Like Django's own database checks, it opens connections only if `--database` is given. It needs
    `--deploy`, too: 'manage.py migrate' runs all other checks of the database that it migrates.
    """
    needed = {(database, model) for database, model in _needed() if database in (databases or ())}
    ordered = sorted(needed, key=lambda one: (one[0], one[1]._meta.db_table))
    return [
        Error(
            f"The database {database!r} lacks {what}, which redlock_django uses.",
            hint=f"Run 'manage.py migrate --database {database}'.",
            id="redlock_django.E024",
        )
        for database, model in ordered
        if (what := _lacks(database, model))
    ]


def _needed() -> Iterator[tuple[str, Model]]:
    """Yield the tables of the app, each with the alias of a database in which it is used."""
    for _, database in _with_tables_of_locks():
        yield from ((database, model) for model in _OF_LOCKS)
    for valid in valid_aliases():
        try:
            options = settings_of(valid.alias)
        except InvalidRedlock:
            continue  # E001 reports it.
        yield options.database, IdempotencyRecord


def _lacks(database: str, model: Model) -> str:
    """Return the table, or the columns, that a database lacks; "" if it cannot be asked."""
    if database not in connections or not router.allow_migrate_model(database, model):
        return ""  # E001, E017
    connection, table = connections[database], model._meta.db_table
    try:
        with connection.cursor() as cursor:
            if table not in connection.introspection.table_names(cursor):
                return f"the table {table}"
            found = {
                column.name
                for column in connection.introspection.get_table_description(cursor, table)
            }
    except DatabaseError:
        return ""
    missing = {str(field.column) for field in model._meta.local_concrete_fields} - found
    return f"{', '.join(sorted(missing))} in the table {table}" if missing else ""

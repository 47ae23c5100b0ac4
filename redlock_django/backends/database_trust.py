"""Recognize a database server that may have forgotten locks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.db import Error

from redlock_django.backends.database_dialects import SECOND, dialect_of

if TYPE_CHECKING:
    from django.db.backends.utils import CursorWrapper


def recognize(cursor: CursorWrapper, forgotten: float) -> None:
    """Store the identity of the server's data; if it changed, distrust it for a while.

    After a failover or a restored backup, locks may be held that this server does not have: for
    `forgotten` seconds. A server that does not say its identity is trusted.
    """
    dialect = dialect_of(cursor)
    if not dialect.identity:
        return
    try:
        cursor.execute(f"SELECT {dialect.identity}")
    except Error:
        return  # not allowed, or not PostgreSQL itself; a broken connection fails again
    (identity,) = cursor.fetchone()
    cursor.execute(dialect.sql(dialect.recognize), [identity, round(forgotten * SECOND)])


def ready_in(cursor: CursorWrapper, forgotten: float) -> float:
    """Return the seconds until the server is trusted, 0.0 if it is.

    A server that does not write every commit to disk, or has an UNLOGGED table, may have forgotten
    locks in a crash: it is not trusted for `forgotten` seconds after its start or recovery.
    """
    dialect = dialect_of(cursor)
    left = 0.0
    if dialect.identity:
        cursor.execute(dialect.sql("SELECT ready_at - {now} FROM {servers} WHERE ready_at > {now}"))
        if found := cursor.fetchone():
            left = found[0] / SECOND
    if dialect.is_durable:
        cursor.execute(f"SELECT {dialect.is_durable}")
        if not cursor.fetchone()[0]:
            cursor.execute(dialect.ran_for)
            left = max(left, forgotten - float(cursor.fetchone()[-1]))
    return left

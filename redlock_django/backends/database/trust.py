"""Recognize a database server that may have forgotten locks, and one that is a standby."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from django.db import Error, OperationalError

from redlock_django.backends.database.dialects import (
    SECOND,
    SERVERS,
    dialect_of,
    ignore_identity,
    keep_cluster,
    sqlstate,
)
from redlock_django.backends.database.direct_cursor import is_direct

if TYPE_CHECKING:
    from django.db.backends.utils import CursorWrapper

# SQLSTATE: no such function, no right to call it, not supported. Any other error may pass.
_KEEPS_IDENTITY_SECRET = ("42883", "42501", "0A000")


class FileReplaced(OperationalError):
    """The file of SQLite that is open is not the one that other processes open now."""


def only_in(file: str) -> Callable[..., Any]:
    """Return a wrapper of `execute` that raises FileReplaced when `file` is not the same any more.

    SQLite itself continues to use a file that was deleted.
    """
    opened = _identity_of(file)

    def execute_in_file(execute: Callable[..., Any], *statement: Any) -> Any:
        if _identity_of(file) != opened:
            raise FileReplaced(f"the file of the locks, {file}, was deleted or replaced")
        return execute(*statement)

    return execute_in_file


def _identity_of(file: str) -> tuple[int, int] | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def recognize(cursor: CursorWrapper, forgotten: float) -> None:
    """Store the identity of the server's data; if it changed, distrust it for a while.

    After a failover or a restored backup, locks may be held that this server does not have: for
    `forgotten` seconds. A server that does not report its identity is trusted, unless it is a
    standby.

    Raises the errors of the database, and OperationalError for a standby.
    """
    dialect = dialect_of(cursor)
    if not dialect.identity:
        return
    try:
        cursor.execute(f"SELECT {dialect.identity}")
    except Error as error:
        if sqlstate(error) not in _KEEPS_IDENTITY_SECRET:
            raise
        ignore_identity(cursor)
        return
    (identity,) = cursor.fetchone()
    if identity is None:
        raise OperationalError(
            "the server is a standby (in recovery, or read-only), and only its primary grants locks"
        )
    if is_direct(cursor):
        keep_cluster(cursor, identity)
    cursor.execute(dialect.recognize(), [round(forgotten * SECOND)])


def ready_in(cursor: CursorWrapper, forgotten: float) -> float:
    """Return the seconds until the server is trusted, 0.0 if it is.

    A server that does not write every commit to disk, or has an UNLOGGED table, may have forgotten
    locks in a crash: it is not trusted for `forgotten` seconds after its start or recovery.
    """
    dialect = dialect_of(cursor)
    left = 0.0
    if dialect.identity:
        now = dialect.now
        cursor.execute(f"SELECT ready_at - {now} FROM {SERVERS} WHERE ready_at > {now}")
        if found := cursor.fetchone():
            left = found[0] / SECOND
    if dialect.is_durable:
        cursor.execute(f"SELECT {dialect.is_durable}")
        if not cursor.fetchone()[0]:
            cursor.execute(dialect.ran_for)
            left = max(left, forgotten - float(cursor.fetchone()[-1]))
    return left

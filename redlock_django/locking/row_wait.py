"""A limit on how long a statement waits for a row that another transaction has written."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import OperationalError, connections, transaction

_LOCK_NOT_AVAILABLE = "55P03"  # SQLSTATE of PostgreSQL
_LOCK_WAIT_TIMEOUT = 1205  # error number of MySQL and MariaDB


class RowBusy(Exception):
    """Another transaction has written the row, and has not ended in time."""


@contextmanager
def limited_wait(alias: str, seconds: float) -> Iterator[None]:
    """Limit the waits of the statements in this block; raise RowBusy when the time is over.

    On PostgreSQL the limit is `lock_timeout`. On MySQL and MariaDB it is
    `innodb_lock_wait_timeout`, in whole seconds. SQLite limits every wait for its one write lock
    by the option `timeout`, and fails with "database is locked".
    """
    limits = {"postgresql": _limit_in_postgresql, "mysql": _limit_in_mysql}
    limit = limits.get(connections[alias].vendor, _limit_elsewhere)
    try:
        with limit(alias, seconds):
            yield
    except OperationalError as error:
        if _is_timeout(error):
            raise RowBusy from error
        raise


@contextmanager
def _limit_in_postgresql(alias: str, seconds: float) -> Iterator[None]:
    # The setting is local to a transaction. After an error its rollback restores the setting.
    with transaction.atomic(using=alias, savepoint=False):
        with connections[alias].cursor() as cursor:
            cursor.execute(
                "SELECT current_setting('lock_timeout'), set_config('lock_timeout', %s, true)",
                [f"{max(1, round(seconds * 1000))}ms"],
            )
            before, _ = cursor.fetchone()
        yield
        with connections[alias].cursor() as cursor:
            cursor.execute("SELECT set_config('lock_timeout', %s, true)", [before])


@contextmanager
def _limit_in_mysql(alias: str, seconds: float) -> Iterator[None]:
    connection = connections[alias]
    statement = "SET SESSION innodb_lock_wait_timeout = %s"
    # In a transaction, a proxy that shares connections keeps this one until the limit is restored.
    with transaction.atomic(using=alias, savepoint=False):
        with connection.cursor() as cursor:
            cursor.execute("SELECT @@innodb_lock_wait_timeout")
            (before,) = cursor.fetchone()
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement, [max(1, math.ceil(seconds))])
            yield
        finally:
            # The driver's own cursor: Django refuses statements after an error in a transaction.
            if connection.connection is not None:
                with connection.connection.cursor() as cursor:
                    cursor.execute(statement, [before])


@contextmanager
def _limit_elsewhere(alias: str, seconds: float) -> Iterator[None]:
    yield


def _is_timeout(error: OperationalError) -> bool:
    cause = error.__cause__
    # psycopg 3 and psycopg2 name the SQLSTATE differently.
    state = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
    return state == _LOCK_NOT_AVAILABLE or error.args[:1] == (_LOCK_WAIT_TIMEOUT,)

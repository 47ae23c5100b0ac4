"""How each database locks: checks for `transaction_lock`, limits on waits, errors of busy rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from django.db import OperationalError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from redlock_django.exceptions import InvalidRedlock
from redlock_django.locking.transactions.open_transactions import READ_COMMITTED

STATE = "current_setting('transaction_isolation'), pg_is_in_recovery()"
"""The columns of PostgreSQL that `refuse_snapshot` judges."""

_LOCK_NOT_AVAILABLE = "55P03"  # SQLSTATE of PostgreSQL
_LOCK_WAIT_TIMEOUT = 1205  # error number of MySQL and MariaDB

# also deadlock_detected, and query_canceled (by statement_timeout)
_BUSY_POSTGRESQL = (_LOCK_NOT_AVAILABLE, "40P01", "57014")
# also ER_LOCK_NOWAIT; a deadlock, 1213, is an error: it ends the whole transaction
_BUSY_MYSQL = (_LOCK_WAIT_TIMEOUT, 3572)
_BUSY_SQLITE = (5, 6)


def check_database(alias: str, *, for_names: bool = True) -> None:
    """Raise InvalidRedlock if a database has no lock that ends with a transaction."""
    if alias not in connections:
        known = ", ".join(map(repr, connections))
        raise InvalidRedlock(f"the database {alias!r} is not in DATABASES; there is: {known}")
    vendor = connections[alias].vendor
    if vendor == "sqlite":
        _check_immediate(alias)
    if vendor in ("postgresql", "sqlite"):
        return
    if vendor == "mysql" and not for_names:
        return
    raise InvalidRedlock(
        f"the database {alias!r} ({connections[alias].display_name}) has no lock on a name that "
        "ends with a transaction. "
        + (
            "Lock a row in the view, with transaction_lock(instance), or use lock()"
            if vendor == "mysql"
            else "Use lock()"
        )
    )


def check_isolation(connection: BaseDatabaseWrapper) -> None:
    """Raise InvalidRedlock if an open transaction may not see what the last holder has committed.

    Also if the server is a replica, whose locks its primary does not know.
    """
    if connection.vendor == "postgresql":
        sql = f"SELECT {STATE}"
    elif getattr(connection, "mysql_is_mariadb", False):
        sql = "SELECT @@tx_isolation, 0"
    else:
        sql = "SELECT @@transaction_isolation, 0"
    with connection.cursor() as cursor:
        cursor.execute(sql)
        refuse_snapshot(connection, *cursor.fetchone())


def refuse_snapshot(connection: BaseDatabaseWrapper, level: str, is_replica: bool) -> None:
    """Raise what `check_isolation` raises, for a transaction in this `STATE`."""
    if level.lower().replace("-", " ") not in READ_COMMITTED:
        raise InvalidRedlock(
            f"the transaction of {connection.alias!r} is {level}, so it may not see what the last "
            "holder of the lock has committed. transaction_lock() needs READ COMMITTED: remove the "
            "isolation level from OPTIONS, or use lock() around the transaction"
        )
    if is_replica:
        raise InvalidRedlock(
            f"the database {connection.alias!r} is a replica, whose locks its primary does not "
            "know. Pass the alias of the primary as database="
        )


def _check_immediate(alias: str) -> None:
    mode = connections[alias].settings_dict["OPTIONS"].get("transaction_mode") or ""
    if mode.upper() not in ("IMMEDIATE", "EXCLUSIVE"):
        raise InvalidRedlock(
            f"the database {alias!r} is SQLite, where the lock is the write lock, which a "
            "transaction must take when it begins. Set its OPTIONS['transaction_mode'] to "
            "'IMMEDIATE'"
        )


def check_begun(connection: BaseDatabaseWrapper) -> None:
    """Raise InvalidRedlock if Django has not begun, or will not begin, a transaction of SQLite.

    Without autocommit, sqlite3 does, and not with the write lock.
    """
    connection.ensure_connection()
    if not (connection.commit_on_exit if connection.in_atomic_block else connection.autocommit):
        raise InvalidRedlock(
            f"the database {connection.alias!r} is SQLite without autocommit, whose transactions "
            "do not begin with the write lock. Set AUTOCOMMIT to True"
        )


@contextmanager
def busy_timeout(connection: BaseDatabaseWrapper, seconds: float) -> Iterator[None]:
    """Limit how long SQLite waits for its write lock."""
    driver: Any = connection.connection
    [before] = driver.execute("PRAGMA busy_timeout").fetchone()
    driver.execute(f"PRAGMA busy_timeout = {math.ceil(1000 * seconds)}")
    try:
        yield
    finally:
        driver.execute(f"PRAGMA busy_timeout = {before}")


def is_busy(connection: BaseDatabaseWrapper, error: OperationalError) -> bool:
    """Return whether a statement has failed because another transaction holds a lock."""
    if connection.vendor == "postgresql":
        return _sqlstate(error) in _BUSY_POSTGRESQL
    if connection.vendor == "mysql":
        return bool(error.args) and error.args[0] in _BUSY_MYSQL
    return getattr(error.__cause__, "sqlite_errorcode", 0) & 0xFF in _BUSY_SQLITE


def _sqlstate(error: OperationalError) -> object:
    # psycopg 3 and psycopg2 name it differently.
    return getattr(error.__cause__, "sqlstate", None) or getattr(error.__cause__, "pgcode", None)


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
    limit = limits.get(connections[alias].vendor)
    try:
        with limit(alias, seconds) if limit else nullcontext():
            yield
    except OperationalError as error:
        if _sqlstate(error) == _LOCK_NOT_AVAILABLE or error.args[:1] == (_LOCK_WAIT_TIMEOUT,):
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

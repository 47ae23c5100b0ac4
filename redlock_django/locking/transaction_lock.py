"""`transaction_lock()`: the lock that is a transaction, for work that is all in one database.

The database itself releases it with COMMIT or rollback, also of a client that died, so it has no
TTL, no fence and no renewal. docs/how-to/transaction-lock.md compares it with `lock()`.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from datetime import timedelta
from typing import Any

from django.db import OperationalError, connections, models, router, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.asyncio import async_unsafe

from redlock_django.backends.values import LONGEST_WAIT, duration
from redlock_django.exceptions import BadName, BadResource, InvalidRedlock, ResourceLocked
from redlock_django.locking.caller import open_transactions
from redlock_django.locking.names import check_resource
from redlock_django.locking.transactions import READ_COMMITTED

NAMESPACE = "redlock_django:transaction:"
"""Precedes the resource in what is hashed, so that a site's own advisory locks have other ids."""

_IN_LOOP = (
    "A transaction belongs to a thread, so transaction_lock() does not work in a running event "
    "loop. Write the transaction as a sync function and await sync_to_async(function)(), or use "
    "'async with lock(...)'."
)
_BUSY = frozenset(
    # PostgreSQL: lock_not_available, deadlock_detected, query_canceled (by statement_timeout)
    # MySQL and MariaDB: ER_LOCK_WAIT_TIMEOUT, ER_LOCK_NOWAIT; a deadlock is an error there, since
    # it ends the whole transaction. SQLite: SQLITE_BUSY and SQLITE_LOCKED, with their variants
    ("55P03", "40P01", "57014", 1205, 3572, 5, 6, 261, 262, 517, 518, 773)
)
_LIMIT_IS_OVER = ("55P03", 1205)


def transaction_lock(
    *resources: str | models.Model,
    database: str | None = None,
    wait: float | timedelta = 0,
) -> TransactionLock:
    """Return a transaction that holds a lock until it has ended, for one `with` block.

    It is `transaction.atomic(using=database)` whose first statement takes the lock. Inside another
    transaction of the database, the lock is held until the COMMIT or rollback of that one.

    Names are locked on PostgreSQL, by advisory locks; two names whose 64-bit hashes are equal also
    exclude each other. A single instance of a model is locked by its row (SELECT FOR UPDATE) and
    reloaded, on PostgreSQL, MySQL and MariaDB. On SQLite the transaction is the lock on the whole
    database, and must be IMMEDIATE. `database` is an alias of DATABASES; None is "default", or the
    one that the instance is written to. `wait` is in seconds.

    The block raises ResourceLocked if another transaction holds the lock, and InvalidRedlock where
    the lock would not be held until everything under it is committed, or may not see what its last
    holder has committed. Raises BadName, InvalidRedlock, ValueError.
    """
    return TransactionLock(resources, database, wait)


class TransactionLock:
    """A transaction that holds a lock; see `transaction_lock`."""

    def __init__(self, resources: tuple[Any, ...], database: str | None, wait: Any) -> None:
        self._instance: models.Model | None = None
        self._keys: list[int] = []
        if len(resources) == 1 and isinstance(instance := resources[0], models.Model):
            self._instance = instance
            self._name = _instance_name(instance)
            database = database or router.db_for_write(type(instance), instance=instance)
        else:
            self._name = ", ".join(names := _checked(resources))
            # All clients lock in the same order, so two of them do not wait for each other.
            self._keys = sorted({advisory_key(name) for name in names})
        self._database = database or "default"
        self._wait = duration(wait, "wait", least=0, most=LONGEST_WAIT)
        self._blocks: list[ExitStack] = []  # several, if the block is entered again inside itself
        _check_database(self._database, for_names=self._instance is None)

    @async_unsafe(_IN_LOOP)
    def __enter__(self) -> None:
        connection = connections[self._database]
        _check_is_last(connection)
        with ExitStack() as blocks:
            if connection.vendor == "sqlite":
                _check_begun(connection)
                with self._refused(), _busy_timeout(connection, self._wait):
                    blocks.enter_context(transaction.atomic(using=self._database))
            else:
                blocks.enter_context(transaction.atomic(using=self._database))
                self._lock_names(connection)
            if self._instance is not None:
                self._lock_row(connection, self._instance)
            self._blocks.append(blocks.pop_all())

    def __exit__(self, *error: Any) -> None:  # noqa: PYI036
        self._blocks.pop().__exit__(*error)

    def _lock_names(self, connection: BaseDatabaseWrapper) -> None:
        until = time.monotonic() + self._wait
        for key in self._keys:
            # One round trip. A lock that is refused afterwards ends with the transaction.
            if _checked_select(connection, "pg_try_advisory_xact_lock(%s)", [key]):
                continue
            left = until - time.monotonic()
            with self._refused(left), connection.cursor() as cursor:
                if left <= 0:
                    raise RowBusy
                cursor.execute("SELECT pg_advisory_xact_lock(%s)", [key])

    def _lock_row(self, connection: BaseDatabaseWrapper, instance: models.Model) -> None:
        # SQLite has no SELECT FOR UPDATE, and Django leaves it out there: all rows are locked.
        if connection.vendor != "sqlite":
            _checked_select(connection)
        rows = type(instance)._base_manager.using(self._database)
        with self._refused(self._wait):
            locked = rows.select_for_update(nowait=not self._wait)
            instance.refresh_from_db(from_queryset=locked)

    @contextmanager
    def _refused(self, seconds: float = 0) -> Iterator[None]:
        """Raise ResourceLocked for a lock of another transaction; wait for it so many seconds."""
        began = time.monotonic()
        try:
            with limited_wait(self._database, seconds) if seconds > 0 else nullcontext():
                yield
        except (RowBusy, OperationalError) as error:
            if not isinstance(error, RowBusy) and _code(error) not in _BUSY:
                raise
            raise ResourceLocked(
                f"{self._name}: another transaction of {self._database!r} holds it",
                resource=self._name,
                waited=time.monotonic() - began if self._wait else 0.0,
            ) from error


def advisory_key(resource: str) -> int:
    """Return the id of a resource's advisory lock: 64 bits of a hash, as a signed integer."""
    digest = hashlib.sha256((NAMESPACE + resource).encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def _checked(resources: tuple[Any, ...]) -> list[str]:
    if not resources or any(isinstance(resource, models.Model) for resource in resources):
        raise InvalidRedlock("transaction_lock() needs one or several names, or one model instance")
    try:
        return [check_resource(resource) for resource in resources]
    except BadResource as error:
        raise BadName(str(error), resource=error.resource) from None


def _instance_name(instance: models.Model) -> str:
    if instance._state.adding or instance.pk is None:
        raise InvalidRedlock(
            f"transaction_lock() needs a row to lock, and this {instance._meta.label} has not been "
            "saved. Lock a name instead"
        )
    return f"{instance._meta.label} {instance.pk}"


def _check_database(alias: str, *, for_names: bool) -> None:
    """Raise InvalidRedlock if a database has no lock that ends with a transaction."""
    if alias not in connections:
        known = ", ".join(map(repr, connections))
        raise InvalidRedlock(f"the database {alias!r} is not in DATABASES; there is: {known}")
    connection = connections[alias]
    if connection.vendor == "sqlite":
        mode = connection.settings_dict["OPTIONS"].get("transaction_mode") or ""
        if mode.upper() not in ("IMMEDIATE", "EXCLUSIVE"):
            raise InvalidRedlock(
                f"the database {alias!r} is SQLite, where the lock is the write lock, which a "
                "transaction must take when it begins. Set its OPTIONS['transaction_mode'] to "
                "'IMMEDIATE'"
            )
    elif connection.vendor != "postgresql" and (for_names or connection.vendor != "mysql"):
        row = "Lock a row in the view, with transaction_lock(instance), or use lock()"
        raise InvalidRedlock(
            f"the database {alias!r} ({connection.display_name}) has no lock on a name that ends "
            f"with a transaction. {row if connection.vendor == 'mysql' else 'Use lock()'}"
        )


def _check_is_last(connection: BaseDatabaseWrapper) -> None:
    """Raise InvalidRedlock if another database would be committed after the lock has ended."""
    others = [other.alias for other in open_transactions() if other.alias != connection.alias]
    if others:
        raise InvalidRedlock(
            f"a transaction of {others[0]!r} is open around transaction_lock() on "
            f"{connection.alias!r}, and would be committed when the lock may be held by another "
            f"client. Begin the transaction of {others[0]!r} inside the block, or use lock()"
        )


def _check_begun(connection: BaseDatabaseWrapper) -> None:
    """Raise InvalidRedlock if Django has not begun, or will not begin, a transaction of SQLite.

    Without autocommit, sqlite3 does, and not with the write lock.
    """
    connection.ensure_connection()
    if not (connection.commit_on_exit if connection.in_atomic_block else connection.autocommit):
        raise InvalidRedlock(
            f"the database {connection.alias!r} is SQLite without autocommit, whose transactions "
            "do not begin with the write lock. Set AUTOCOMMIT to True"
        )


def _checked_select(connection: BaseDatabaseWrapper, column: str = "0", values: Any = ()) -> Any:
    """Return a column, selected by the first statement of a transaction that is a lock.

    Raises InvalidRedlock if the transaction may not see what the last holder has committed, or if
    the server is a replica, whose locks its primary does not know.
    """
    if connection.vendor == "postgresql":
        state = "current_setting('transaction_isolation'), pg_is_in_recovery()"
    else:
        name = "tx" if getattr(connection, "mysql_is_mariadb", False) else "transaction"
        state = f"@@{name}_isolation, 0"
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {column}, {state}", values)
        value, level, is_replica = cursor.fetchone()
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
    return value


def _code(error: OperationalError) -> object:
    """Return the SQLSTATE of PostgreSQL, or the error number of another database."""
    if error.args and isinstance(error.args[0], int):
        return error.args[0]  # MySQL and MariaDB
    # psycopg 3 and psycopg2 name it differently.
    codes = (getattr(error.__cause__, n, None) for n in ("sqlstate", "pgcode", "sqlite_errorcode"))
    return next(filter(None, codes), None)


@contextmanager
def _busy_timeout(connection: BaseDatabaseWrapper, seconds: float) -> Iterator[None]:
    """Limit how long SQLite waits for its write lock."""
    driver: Any = connection.connection
    [before] = driver.execute("PRAGMA busy_timeout").fetchone()
    driver.execute(f"PRAGMA busy_timeout = {math.ceil(1000 * seconds)}")
    try:
        yield
    finally:
        driver.execute(f"PRAGMA busy_timeout = {before}")


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
        if is_limit_over(error):
            raise RowBusy from error
        raise


def is_limit_over(error: OperationalError) -> bool:
    """Return whether a statement has waited for another transaction as long as it may."""
    return _code(error) in _LIMIT_IS_OVER


@contextmanager
def _limit_in_postgresql(alias: str, seconds: float) -> Iterator[None]:
    # The setting is local to a transaction. After an error its rollback restores the setting.
    with transaction.atomic(using=alias, savepoint=False), connections[alias].cursor() as cursor:
        cursor.execute(
            "SELECT current_setting('lock_timeout'), set_config('lock_timeout', %s, true)",
            [f"{max(1, round(seconds * 1000))}ms"],
        )
        before, _ = cursor.fetchone()
        yield
        cursor.execute("SELECT set_config('lock_timeout', %s, true)", [before])


@contextmanager
def _limit_in_mysql(alias: str, seconds: float) -> Iterator[None]:
    connection = connections[alias]
    statement = "SET SESSION innodb_lock_wait_timeout = %s"
    # In a transaction, a proxy that shares connections keeps this one until the limit is restored.
    with transaction.atomic(using=alias, savepoint=False), connection.cursor() as cursor:
        cursor.execute("SELECT @@innodb_lock_wait_timeout")
        (before,) = cursor.fetchone()
        try:
            cursor.execute(statement, [max(1, math.ceil(seconds))])
            yield
        finally:
            # The driver's own cursor: Django refuses statements after an error in a transaction.
            if connection.connection is not None:
                with connection.connection.cursor() as cursor:
                    cursor.execute(statement, [before])

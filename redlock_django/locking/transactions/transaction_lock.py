"""`transaction_lock()`: the lock that is a transaction, for work that is all in one database.

The database itself releases it with COMMIT or rollback, also of a client that died, so it has no
TTL, no fence and no renewal. docs/explanation/which-lock.md compares it with `lock()`.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from datetime import timedelta
from types import TracebackType
from typing import Any

from django.db import OperationalError, connections, models, router, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.asyncio import async_unsafe

from redlock_django.backends.values import LONGEST_WAIT, duration
from redlock_django.conf.arguments import helps_with_arguments
from redlock_django.exceptions import BadName, BadResource, InvalidRedlock, ResourceLocked
from redlock_django.locking.names import check_resource
from redlock_django.locking.transactions.databases import (
    STATE,
    RowBusy,
    busy_timeout,
    check_begun,
    check_database,
    check_isolation,
    is_busy,
    limited_wait,
    refuse_snapshot,
)
from redlock_django.locking.transactions.open_transactions import open_transactions

NAMESPACE = "redlock_django:transaction:"
"""Precedes the resource in what is hashed, so that a site's own advisory locks have other ids."""

_IN_LOOP = (
    "A transaction belongs to a thread, so transaction_lock() does not work in a running event "
    "loop. Write the transaction as a sync function and await sync_to_async(function)(), or use "
    "'async with lock(...)'."
)

Waiting = Callable[[], AbstractContextManager[bool]]
"""Entered before the lock is waited for; returns whether it may be."""


def _unlimited() -> AbstractContextManager[bool]:
    return nullcontext(True)


@helps_with_arguments
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
    return TransactionLock(*resources, database=database, wait=wait)


class TransactionLock:
    """A transaction that holds a lock; see `transaction_lock`."""

    def __init__(
        self,
        *resources: str | models.Model,
        database: str | None = None,
        wait: float | timedelta = 0,
        durable: bool = False,
        waiting: Waiting = _unlimited,
    ) -> None:
        self._instance = None
        self._keys: list[int] = []
        if len(resources) == 1 and isinstance(resources[0], models.Model):
            self._instance = resources[0]
            self._name = _instance_name(self._instance)
            database = database or router.db_for_write(
                type(self._instance), instance=self._instance
            )
        else:
            self._name = ", ".join(names := _checked(resources))
            # All clients lock in the same order, so two of them do not wait for each other.
            self._keys = sorted({advisory_key(name) for name in names})
        self.database = database or "default"
        self._wait = duration(wait, "wait", least=0, most=LONGEST_WAIT)
        self._durable = durable
        self._waiting = waiting
        self._blocks: list[ExitStack] = []  # several, if the block is entered again inside itself
        check_database(self.database, for_names=self._instance is None)

    def __enter__(self) -> None:
        self._begin()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._blocks.pop().__exit__(kind, error, trace)

    @async_unsafe(_IN_LOOP)
    def _begin(self) -> None:
        connection = connections[self.database]
        _check_is_last(connection)
        with ExitStack() as blocks:
            if connection.vendor == "sqlite":
                self._begin_sqlite(connection, blocks)
            else:
                blocks.enter_context(self._atomic())
                self._lock(connection)
            if self._instance is not None:
                self._lock_row(connection, self._instance)
            self._blocks.append(blocks.pop_all())

    def _atomic(self) -> AbstractContextManager[Any]:
        atomic: AbstractContextManager[Any] = transaction.atomic(
            using=self.database, durable=self._durable
        )
        return atomic

    def _busy(self, waited: float = 0.0) -> ResourceLocked:
        return ResourceLocked(
            f"{self._name}: another transaction of {self.database!r} holds it",
            resource=self._name,
            waited=waited,
        )

    @contextmanager
    def _may_wait(self) -> Iterator[None]:
        """Raise ResourceLocked unless the lock may be waited for."""
        if not self._wait:
            raise self._busy()
        with self._waiting() as may_wait:
            if not may_wait:
                raise self._busy()
            yield

    def _lock(self, connection: BaseDatabaseWrapper) -> None:
        if self._instance is not None:
            check_isolation(connection)
        until = time.monotonic() + self._wait
        for key in self._keys:
            with connection.cursor() as cursor:
                # One round trip. A lock that is refused afterwards ends with the transaction.
                cursor.execute(f"SELECT pg_try_advisory_xact_lock(%s), {STATE}", [key])
                granted, *state = cursor.fetchone()
                refuse_snapshot(connection, *state)
                if granted:
                    continue
                with self._may_wait(), self._limited(connection, until - time.monotonic()):
                    cursor.execute("SELECT pg_advisory_xact_lock(%s)", [key])

    def _lock_row(self, connection: BaseDatabaseWrapper, instance: models.Model) -> None:
        # SQLite has no SELECT FOR UPDATE, and Django leaves it out there: all rows are locked.
        rows = type(instance)._base_manager.using(self.database)
        if not self._wait or connection.vendor == "sqlite":
            with self._limited(connection, 0):
                instance.refresh_from_db(from_queryset=rows.select_for_update(nowait=True))
            return
        with self._may_wait(), self._limited(connection, self._wait):
            instance.refresh_from_db(from_queryset=rows.select_for_update())

    @contextmanager
    def _limited(self, connection: BaseDatabaseWrapper, seconds: float) -> Iterator[None]:
        """Limit how long a statement waits for a lock; raise ResourceLocked when that is over."""
        began = time.monotonic()
        try:
            with limited_wait(self.database, seconds) if seconds else nullcontext():
                yield
        except (RowBusy, OperationalError) as error:
            if not (isinstance(error, RowBusy) or is_busy(connection, error)):
                raise
            raise self._busy(time.monotonic() - began if seconds else 0.0) from error

    def _begin_sqlite(self, connection: BaseDatabaseWrapper, blocks: ExitStack) -> None:
        check_begun(connection)
        if connection.in_atomic_block:
            blocks.enter_context(self._atomic())
            return
        with busy_timeout(connection, 0):
            try:
                blocks.enter_context(self._atomic())
                return
            except OperationalError as error:
                if not is_busy(connection, error):
                    raise
        with (
            self._may_wait(),
            self._limited(connection, 0),
            busy_timeout(connection, self._wait),
        ):
            blocks.enter_context(self._atomic())


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


def _check_is_last(connection: BaseDatabaseWrapper) -> None:
    """Raise InvalidRedlock if another database would be committed after the lock has ended."""
    others = [other.alias for other in open_transactions() if other.alias != connection.alias]
    if others:
        raise InvalidRedlock(
            f"a transaction of {others[0]!r} is open around transaction_lock() on "
            f"{connection.alias!r}, and would be committed when the lock may be held by another "
            f"client. Begin the transaction of {others[0]!r} inside the block, or use lock()"
        )

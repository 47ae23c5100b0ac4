"""Locks in MariaDB: what differs from the other databases."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from django.db import OperationalError, connections, transaction

from redlock_django.backends.database.backend import DatabaseBackend
from redlock_django.backends.database.dialects import LOCKS, SERVERS, sqlstate
from redlock_django.exceptions import StoreUnavailable
from redlock_django.locking.services import locks
from redlock_django.locking.transaction_lock import limited_wait
from tests import inspecting
from tests.contract.stores import DATABASE, HOLDER, MariaDB, Started, database_of, taken
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_django import Settings

    Databases = Callable[[str, dict[str, Any]], None]


@pytest.fixture(params=["mariadb"])
def backend(request: pytest.FixtureRequest, settings: Settings) -> Iterator[DatabaseBackend]:
    """Return the store, by the settings of a site at the time of the call."""
    MariaDB(request, settings)
    yield database_of()
    connections["maria"].close()


def connection_id(cursor: Any) -> int:
    """Return the number that the server gave to a connection."""
    cursor.execute("SELECT CONNECTION_ID()")
    number: int = cursor.fetchone()[0]
    return number


def waiting_statements() -> int:
    """Return the number of transactions that wait for a row."""
    with connections["maria"].cursor() as cursor:
        cursor.execute("SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'")
        return int(cursor.fetchone()[1])


def test_mysql_is_refused(backend: DatabaseBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections["maria"].__class__, "mysql_is_mariadb", False)
    with pytest.raises(StoreUnavailable, match="'maria' is MySQL, not MariaDB"):
        backend.acquire(("order:1",), 30, 0, HOLDER)


def test_a_deadlock_is_tried_again(backend: DatabaseBackend, settings: Settings) -> None:
    settings.REDLOCK = {"default": {"BACKEND": DATABASE, "DATABASE": "maria", "CONNECTIONS": 1}}
    backend, names = database_of(), ("a:1", *(f"b:{number}" for number in range(10)))
    connection = backend.connections.run(connection_id)
    backend.release(backend.acquire(names, 30, 0, HOLDER))
    with transaction.atomic("maria"), connections["maria"].cursor() as cursor:
        # The server gives up the transaction that changed less.
        cursor.execute(f"UPDATE {LOCKS} SET fence = fence + 1 WHERE resource > 'a:1'")
        started = Started(lambda: backend.acquire(("a:1", "b:2"), 30, 0, HOLDER))
        until(waiting_statements, what="the statement waits for the row")
        cursor.execute(f"UPDATE {LOCKS} SET fence = fence + 1 WHERE resource = 'a:1'")
    assert started.lease().resources == ("a:1", "b:2")
    assert backend.connections.run(connection_id) == connection, "it connected again"


@pytest.mark.slow
def test_an_attempt_that_is_given_up_leaves_nothing(
    backend: DatabaseBackend, settings: Settings
) -> None:
    backend.release(backend.acquire(("order:1",), 30, 0, HOLDER))
    settings.REDLOCK = {
        "default": {"BACKEND": DATABASE, "DATABASE": "maria", "DATABASE_TIMEOUT": 1}
    }
    with transaction.atomic("maria"), connections["maria"].cursor() as cursor:
        cursor.execute(f"SELECT 1 FROM {LOCKS} FOR UPDATE")  # so that the statement waits
        with pytest.raises(StoreUnavailable, match="no answer within"):
            database_of().acquire(("order:1",), 30, 0, HOLDER)

    def is_free() -> bool:
        try:
            return not taken("order:1")
        except StoreUnavailable:  # on a busy machine, a second is short
            return False

    until(is_free, what="the lock is free", seconds=30)


def test_a_server_that_may_lose_commits_is_not_trusted_after_its_start(
    backend: DatabaseBackend, settings: Settings
) -> None:
    settings.REDLOCK = {
        "default": {"BACKEND": DATABASE, "DATABASE": "maria", "MAX_TTL": 90_000},
    }
    assert not taken("order:1")
    with connections["maria"].cursor() as cursor:
        cursor.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 2")
        try:
            locks.close()  # a crash ends all connections
            with pytest.raises(StoreUnavailable, match="restarted, failed over") as refused:
                database_of().acquire(("order:1",), 30, 0, HOLDER)
            (server,) = inspecting.health(database_of())
        finally:
            cursor.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 1")
    assert (refused.value.retry_after or 0) > 80_000
    assert server.faults[0].code == "untrusted"
    locks.close()
    assert not taken("order:1")


def test_a_replica_grants_nothing_before_and_after_its_promotion(backend: DatabaseBackend) -> None:
    # The user of these tests may write in spite of `read_only`.
    assert not taken("order:1")
    with connections["maria"].cursor() as cursor:
        cursor.execute("SET GLOBAL read_only = 1")
        try:
            for _ in range(2):  # on the connection that it has, and on a new one
                with pytest.raises(StoreUnavailable, match="is a standby"):
                    database_of().acquire(("order:1",), 30, 0, HOLDER)
                with pytest.raises(StoreUnavailable, match="is a standby"):
                    database_of().acquire(("order:1", "order:2"), 30, 0, HOLDER)
                locks.close()
            (server,) = inspecting.health(database_of())
            database_of().connect()
            cursor.execute(f"UPDATE {SERVERS} SET identity = '7:primary:3306'")  # by replication
        finally:
            cursor.execute("SET GLOBAL read_only = 0")
    assert server.faults[0].code == "unreachable"
    with pytest.raises(StoreUnavailable, match="failed over or restored") as refused:
        database_of().acquire(("order:1",), 30, 0, HOLDER)
    assert (refused.value.retry_after or 0) > 50


@pytest.mark.parametrize("error", [None, KeyboardInterrupt, OperationalError])
def test_a_limit_of_waits_stays_in_its_transaction(
    backend: DatabaseBackend, error: type[BaseException] | None
) -> None:
    def limit() -> int:
        with connections["maria"].cursor() as cursor:
            cursor.execute("SELECT @@innodb_lock_wait_timeout")
            return int(cursor.fetchone()[0])

    before = limit()
    with suppress(KeyboardInterrupt, OperationalError), limited_wait("maria", 7):
        # A proxy that shares connections gives this one to no other client meanwhile.
        assert connections["maria"].in_atomic_block
        assert limit() == 7 != before
        if error is not None:
            raise error
    assert not connections["maria"].in_atomic_block
    assert limit() == before


@pytest.mark.parametrize(
    ("number", "state"), [(1213, "40P01"), (1205, "40001"), (1146, "42P01"), (1048, "23502")]
)
def test_errors_are_known_by_their_number(number: int, state: str) -> None:
    error = OperationalError(number, "as mysqlclient raises it")
    error.__cause__ = Exception(number, "as mysqlclient raises it")
    assert sqlstate(error) == state

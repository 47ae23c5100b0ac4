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
from tests.contract.stores import HOLDER, MariaDB, Started, change, database_of, taken
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_django import Settings

    Databases = Callable[[str, dict[str, Any]], None]


@pytest.fixture(params=["mariadb"])
def store(request: pytest.FixtureRequest, settings: Settings) -> Iterator[MariaDB]:
    yield MariaDB(request, settings)
    connections["maria"].close()


@pytest.fixture
def backend(store: MariaDB) -> DatabaseBackend:
    """Return the store, by the settings of a site at the time of the call."""
    return store.backend


def test_mysql_is_refused(backend: DatabaseBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections["maria"].__class__, "mysql_is_mariadb", False)
    with pytest.raises(StoreUnavailable, match="'maria' is MySQL, not MariaDB"):
        backend.acquire(("order:1",), 30, 0, HOLDER)


def test_a_deadlock_is_tried_again(store: MariaDB, settings: Settings) -> None:
    change(settings, CONNECTIONS=1)
    backend, names = database_of(), ("a:1", *(f"b:{number}" for number in range(10)))
    connection = backend.connections.run(store.number)
    backend.release(backend.acquire(names, 30, 0, HOLDER))
    with transaction.atomic("maria"), connections["maria"].cursor() as cursor:
        # The server gives up the transaction that changed less.
        cursor.execute(f"UPDATE {LOCKS} SET fence = fence + 1 WHERE resource > 'a:1'")
        started = Started(lambda: backend.acquire(("a:1", "b:2"), 30, 0, HOLDER))
        until(store.waiting, what="the statement waits for the row")
        cursor.execute(f"UPDATE {LOCKS} SET fence = fence + 1 WHERE resource = 'a:1'")
    assert started.lease().resources == ("a:1", "b:2")
    assert backend.connections.run(store.number) == connection, "it connected again"


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

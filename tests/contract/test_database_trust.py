"""Database servers that may have forgotten locks, and how a server is recognized."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from django.db import (
    Error,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    connections,
)

from redlock_django import lock
from redlock_django.backends.database.dialects import LOCKS, SERVERS, WAITERS, dialect_of
from redlock_django.backends.database.trust import recognize
from redlock_django.engine.validity import LeaseState
from redlock_django.exceptions import ResourceLocked, StoreUnavailable
from redlock_django.locking.services import locks
from redlock_django.models import LockRow, ServerRow, WaiterRow
from tests import inspecting
from tests.contract.stores import (
    DATABASE,
    HOLDER,
    Database,
    change,
    database_of,
    taken,
)
from tests.inspecting import look
from tests.postgres import local_postgres
from tests.waiting import until

if TYPE_CHECKING:
    from pytest_django import Settings

    from redlock_django.engine.validity import Lease

Databases = Callable[[str, dict[str, Any]], None]


class Failing:
    """A cursor on which every statement fails."""

    def __init__(self, error: Error, state: str) -> None:
        error.__cause__ = Exception()
        error.__cause__.sqlstate = state  # type: ignore[attr-defined]
        self.error, self.db = error, SimpleNamespace(vendor="postgresql")

    def execute(self, statement: str, values: Any = ()) -> None:
        """Raise the error."""
        raise self.error


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (ProgrammingError("pg_control_system() does not exist"), "42883"),
        (ProgrammingError("permission denied for function"), "42501"),
        (NotSupportedError("not supported by this server"), "0A000"),
    ],
)
def test_a_server_may_have_no_identity(error: Error, state: str) -> None:
    cursor: Any = Failing(error, state)
    recognize(cursor, 60)
    assert not dialect_of(cursor).identity


@pytest.mark.parametrize("state", ["57014", "55000", "25006", "XX000", "08006", ""])
def test_any_other_error_leaves_the_server_unrecognized(state: str) -> None:
    cursor: Any = Failing(OperationalError("it failed"), state)
    with pytest.raises(OperationalError, match="it failed"):
        recognize(cursor, 60)
    assert dialect_of(cursor).identity


@pytest.mark.postgres
def test_the_cluster_is_read_once_for_a_connection_but_with_each_lock_behind_a_pooler(
    pooled: None, settings: Settings
) -> None:
    for alias, is_read in (("pg", False), ("pooled", True)):
        settings.REDLOCK = {"default": {"BACKEND": DATABASE, "DATABASE": alias}}
        backend = database_of()
        assert backend.release(backend.acquire(("order:1",), 30, 0, HOLDER)) is True
        statement = backend.connections.run(lambda cursor: dialect_of(cursor).take(1))
        assert ("pg_control_system()" in statement) is is_read
        assert "pg_walfile_name(" in statement


def test_connections_without_an_identity_share_their_statements() -> None:
    """Each dialect keeps its statements for ever, and connections are made again and again."""
    cursors: list[Any] = [Failing(OperationalError(), "42501") for _ in range(2)]
    for cursor in cursors:
        recognize(cursor, 60)
    first, second = map(dialect_of, cursors)
    assert first is second


@pytest.mark.parametrize("is_connected", [False, True], ids=["again", "still"])
def test_a_server_that_may_have_forgotten_locks_is_not_trusted(
    server: Database, is_connected: bool
) -> None:
    lease = database_of().acquire(("order:1",), 30, 0, HOLDER)
    with connections[server.alias].cursor() as cursor:
        cursor.execute(f"UPDATE {SERVERS} SET identity = '7123:00000001'")  # as before a failover
        assert cursor.rowcount == 1
    if not is_connected:  # a pooler or a proxy may keep a connection
        locks.close()
    with pytest.raises(StoreUnavailable, match="failed over or restored: trusted in ") as told:
        database_of().acquire(("order:2",), 30, 0, HOLDER)
    assert told.value.retry_after is not None
    assert 50 < told.value.retry_after < 61
    assert database_of().extend(lease, 30)[0] is LeaseState.RENEWED
    assert database_of().release(lease) is True
    (health,) = inspecting.health(database_of())
    assert health.counted is False
    assert health.faults[0].code == "untrusted"
    locks.close()
    with pytest.raises(StoreUnavailable, match="failed over"):  # a process that starts then
        database_of().acquire(("order:2",), 30, 0, HOLDER)
    with connections[server.alias].cursor() as cursor:
        cursor.execute(f"UPDATE {SERVERS} SET ready_at = 0")  # as after that time
    locks.close()
    assert not taken("order:2")


def test_a_server_that_another_process_has_recognized_is_not_trusted_either(
    server: Database,
) -> None:
    lease = database_of().acquire(("order:1",), 30, 0, HOLDER)
    database_of().release(lease)
    with connections[server.alias].cursor() as cursor:
        now = database_of().settings.dialect.now
        cursor.execute(f"UPDATE {SERVERS} SET ready_at = {now} + 50000000")
        for wanted in (("order:1",), ("order:2",), ("order:3", "order:4")):
            with pytest.raises(StoreUnavailable, match="failed over or restored") as refused:
                database_of().acquire(wanted, 30, 0, HOLDER)
            assert 0 < (refused.value.retry_after or 0) <= 50
            # As in a process that has not noticed it yet.
            database_of().connections.trusted_from = 0.0
        cursor.execute(f"UPDATE {SERVERS} SET ready_at = 0")
    locks.close()  # What it still does in another thread may have read the earlier time.
    assert not taken("order:1", "order:2", "order:3", "order:4")


@pytest.mark.postgres
def test_aliases_of_one_database_distrust_the_database_for_the_longest_of_their_locks(
    postgres_store: Database, settings: Settings
) -> None:
    section = {"BACKEND": DATABASE, "DATABASE": "pg"}
    settings.REDLOCK = {
        "default": {**section, "MAX_TTL": 60},
        "long": {**section, "MAX_TTL": 3600, "MAX_HOLD": 3600},
        "elsewhere": {**section, "DATABASE": "default", "MAX_TTL": 90_000, "MAX_HOLD": 90_000},
    }
    held = database_of("long").acquire(("order:1",), 3600, 0, HOLDER)
    with connections["pg"].cursor() as cursor:  # a failover that loses the lock
        cursor.execute(f"UPDATE {SERVERS} SET identity = '7123:00000001'; DELETE FROM {LOCKS}")
    with pytest.raises(StoreUnavailable, match="failed over or restored") as refused:
        database_of().acquire(("order:1",), 30, 0, HOLDER)
    assert held.ttl < (refused.value.retry_after or 0) < 4000


@pytest.mark.postgres
def test_a_server_that_keeps_its_identity_secret_is_trusted(
    postgres_store: Database, settings: Settings, databases: Databases
) -> None:
    with connections["pg"].cursor() as cursor:
        cursor.execute(
            "CREATE ROLE restricted LOGIN;"
            "REVOKE EXECUTE ON FUNCTION pg_control_system FROM PUBLIC;"
            f"GRANT ALL ON {LOCKS}, {SERVERS}, {WAITERS} TO restricted"
        )
        try:
            databases("restricted", {**connections.settings["pg"], "USER": "restricted"})
            settings.REDLOCK = {"default": {"BACKEND": DATABASE, "DATABASE": "restricted"}}
            assert not taken("order:1")
            with lock("order:1"):
                assert taken("order:1")
            locks.close()
        finally:
            cursor.execute(
                "GRANT EXECUTE ON FUNCTION pg_control_system TO PUBLIC;"
                f"REVOKE ALL ON {LOCKS}, {SERVERS}, {WAITERS} FROM restricted; DROP ROLE restricted"
            )


@pytest.mark.postgres
def test_a_connection_whose_server_was_not_recognized_is_not_used(
    postgres_store: Database, settings: Settings
) -> None:
    settings.REDLOCK = {"default": {**settings.REDLOCK["default"], "CONNECTIONS": 1}}
    assert not taken("order:1")
    locks.close()
    with connections["pg"].cursor() as cursor:
        cursor.execute(
            f"UPDATE {SERVERS} SET identity = '7123:1'; ALTER TABLE {SERVERS} RENAME TO away"
        )
        try:
            with pytest.raises(StoreUnavailable, match="tables are missing"):
                database_of().acquire(("order:1",), 30, 0, HOLDER)
        finally:
            cursor.execute(f"ALTER TABLE away RENAME TO {SERVERS}")
    with pytest.raises(StoreUnavailable, match="failed over or restored"):
        database_of().acquire(("order:1",), 30, 0, HOLDER)


UNSAFE = {
    "pg": (f"ALTER TABLE {LOCKS} SET UNLOGGED", f"ALTER TABLE {LOCKS} SET LOGGED"),
    "maria": tuple(f"SET GLOBAL innodb_flush_log_at_trx_commit = {n}" for n in (2, 1)),
}
"""Statements after which a crash may undo a commit, and that undo them."""


def test_a_server_that_may_lose_commits_is_not_trusted_after_its_start(
    server: Database, settings: Settings
) -> None:
    change(settings, MAX_TTL=90_000)
    assert not taken("order:1")
    locks.close()  # a crash ends all connections
    unsafe, safe = UNSAFE[server.alias]
    with connections[server.alias].cursor() as cursor:
        cursor.execute(unsafe)
        try:
            with pytest.raises(StoreUnavailable, match="restarted, failed over") as refused:
                database_of().acquire(("order:1",), 30, 0, HOLDER)
            (health,) = inspecting.health(database_of())
        finally:
            locks.close()
            cursor.execute(safe)
    assert (refused.value.retry_after or 0) > 80_000
    assert health.faults[0].code == "untrusted"
    assert not taken("order:1")


@pytest.fixture
def crashing(databases: Databases, database_access: None) -> Iterator[Callable[[], None]]:
    """Add the alias "crashing", a PostgreSQL server of its own with tables; yield what kills it."""
    with local_postgres() as entry:  # with fsync and synchronous_commit off
        databases("crashing", entry)
        with connections["crashing"].schema_editor() as editor:
            for model in (LockRow, ServerRow, WaiterRow):
                editor.create_model(model)
        target = {name: entry[name.upper()] for name in ("host", "port", "user")}

        def crash() -> None:
            # A killed process of the server makes the others quit, and it recovers from disk.
            connections["crashing"].close()
            with psycopg.connect(**target, dbname=entry["NAME"], autocommit=True) as connection:
                os.kill(connection.info.backend_pid, signal.SIGKILL)

        yield crash


@pytest.mark.postgres
@pytest.mark.slow
def test_a_crash_of_postgresql_forgets_no_lock(
    crashing: Callable[[], None], settings: Settings
) -> None:
    settings.REDLOCK = {"default": {"BACKEND": DATABASE, "DATABASE": "crashing"}}
    with connections["crashing"].cursor() as cursor:
        cursor.execute("SHOW synchronous_commit")
        assert cursor.fetchone() == ("off",)
    lease = database_of().acquire(("order:1",), 60, 0, HOLDER)
    state, lease = database_of().extend(lease, 600)
    assert state is LeaseState.RENEWED
    crashing()
    locks.close()
    held: list[bool] = []

    def is_taken() -> bool:
        try:
            held.append(taken("order:1"))
        except StoreUnavailable:
            return False
        return True

    until(is_taken, what="PostgreSQL has recovered")
    assert held == [True]
    holding = look(database_of(), ["order:1"]).locks[0]
    assert holding.ttl is not None
    assert holding.ttl > 500, "the extension was forgotten"


@pytest.mark.postgres
@pytest.mark.nightly
def test_a_crash_that_empties_an_unlogged_table_makes_no_second_holder(
    crashing: Callable[[], None], settings: Settings
) -> None:
    section = {"BACKEND": DATABASE, "DATABASE": "crashing", "TTL": 6, "MAX_TTL": 6}
    settings.REDLOCK = {"default": section}
    with connections["crashing"].cursor() as cursor:
        cursor.execute(f"ALTER TABLE {LOCKS} SET UNLOGGED")

    def lease() -> Lease | None:
        try:
            return database_of().acquire(("order:1",), 6, 0, HOLDER)
        except StoreUnavailable:
            return None

    until(lease, what="the new server is trusted", seconds=30)
    with connections["crashing"].cursor() as cursor:
        cursor.execute(f"UPDATE {LOCKS} SET expires_at = 0")
    held = lease()
    assert held is not None
    crashing()
    later: list[Lease | None] = []

    def granted_again() -> bool:
        with suppress(ResourceLocked):  # the server has not noticed yet that a process died
            later.append(lease())
        return bool(later) and later[-1] is not None

    until(granted_again, what="the recovered server is trusted", seconds=30)
    assert later[-1] is not None
    assert later[-1].fences > held.fences
    assert later[-1].started > held.until
    with connections["crashing"].cursor() as cursor:
        cursor.execute(f"SELECT count(*) FROM {LOCKS}")
        assert cursor.fetchone() == (1,), "the crash has emptied the table"

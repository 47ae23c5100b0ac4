"""Locks in a database: what the settings of requests cannot weaken, faults, settings, checks."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from django.db import OperationalError, connections, transaction

from redlock_django import lock
from redlock_django.backends.database.dialects import LOCKS, SERVERS, WAITERS
from redlock_django.engine.validity import LeaseState
from redlock_django.exceptions import ResourceLocked, StoreUnavailable
from redlock_django.locking.services import locks
from redlock_django.testing import memory_masters
from redlock_django.web.answers import problem_of
from tests import inspecting
from tests.app.checking import found
from tests.contract.interrupting import after_each_interrupt
from tests.contract.stores import (
    DATABASE,
    DATABASES,
    HOLDER,
    AsyncCaller,
    Database,
    MariaDB,
    Postgres,
    Sqlite,
    Started,
    Store,
    SyncCaller,
    answers,
    change,
    database_of,
    granted,
    taken,
)
from tests.inspecting import look
from tests.programs import Program, started
from tests.waiting import until

if TYPE_CHECKING:
    from pytest_django import Settings

    from redlock_django.engine.validity import Lease

Databases = Callable[[str, dict[str, Any]], None]
TABLES = (LOCKS, SERVERS, WAITERS)
SQLITE = "django.db.backends.sqlite3"


WEAK: dict[str, dict[str, Any]] = {
    "pg": {
        "options": "-c synchronous_commit=off -c default_transaction_isolation=serializable",
        "isolation_level": psycopg.IsolationLevel.SERIALIZABLE,
        "pool": {"min_size": 1, "max_size": 1},
        "server_side_binding": True,
    },
    "maria": {
        "isolation_level": "repeatable read",
        "sql_mode": "",
        "init_command": "SET autocommit = 0, time_zone = '-11:00'",
        "client_flag": 0,
    },
}


@pytest.fixture
def weak(server: Database, settings: Settings, databases: Databases) -> Iterator[None]:
    """Keep locks in the same database by an alias with all that could weaken a lock."""
    entry = {**connections.settings[server.alias], "OPTIONS": WEAK[server.alias]}
    databases("weak", {**entry, "ATOMIC_REQUESTS": True})
    settings.REDLOCK = {"default": {"BACKEND": DATABASE, "DATABASE": "weak"}}
    yield
    if "pool" in WEAK[server.alias]:
        connections["weak"].close_pool()  # type: ignore[attr-defined]


# What DATABASES says for requests.


def test_no_option_of_requests_applies(weak: None, server: Database) -> None:
    with transaction.atomic("weak"), connections["weak"].cursor() as cursor:
        cursor.execute("SELECT 1")  # has the only connection of the pool
        lease = database_of().acquire(("b:2", "a:1"), 30, 0, HOLDER)
        with connections[server.alias].cursor() as other:
            other.execute(f"SELECT count(*) FROM {LOCKS} WHERE token_hash <> ''")
            assert other.fetchone() == (2,)
        transaction.set_rollback(True, "weak")
    assert taken("a:1")
    for ttl in (40, 10):  # the second extension changes no row
        assert database_of().extend(lease, ttl)[0] is LeaseState.RENEWED
    assert 30 < (look(database_of(), ["a:1"]).locks[0].ttl or 0) <= 40
    assert database_of().release(lease) is True


@pytest.mark.postgres
def test_pgbouncer_in_transaction_mode(pooled: None, settings: Settings) -> None:
    settings.REDLOCK = {"default": {"BACKEND": DATABASE, "DATABASE": "pooled"}}
    backend, served = database_of(), []
    held = backend.acquire(("a:1", "b:2"), 30, 0, HOLDER)

    def work(number: int) -> Lease:
        lease = backend.acquire((("a:1", "b:2")[number % 2],), 30, 20, HOLDER)
        served.append(lease.resources[0])
        backend.release(lease)
        return lease

    waiters = [Started(partial(work, number)) for number in range(8)]
    time.sleep(0.1)  # so that they wait
    assert not served
    assert backend.extend(held, 30)[0] is LeaseState.RENEWED
    assert backend.release(held) is True
    fences = sorted((waiter.lease().resources, waiter.lease().fences) for waiter in waiters)
    assert len(set(fences)) == 8
    assert not taken("a:1", "b:2")


@pytest.mark.postgres
def test_statements_are_prepared_but_not_behind_a_pooler(pooled: None, settings: Settings) -> None:
    def prepared(cursor: Any) -> bool:
        wanted = f"strpos(statement, 'INSERT INTO {LOCKS}') > 0"
        cursor.execute(f"SELECT count(*) FROM pg_prepared_statements WHERE {wanted}")
        return bool(cursor.fetchone()[0])

    for alias, expected in (("pg", True), ("pooled", False)):
        one = {"BACKEND": DATABASE, "DATABASE": alias, "CONNECTIONS": 1}
        settings.REDLOCK = {"default": one}
        assert not taken("order:1")
        assert not taken("order:2")
        assert database_of().connections.run(prepared) is expected


@pytest.mark.postgres
def test_a_table_that_was_altered_needs_no_restart(
    postgres_store: Database, settings: Settings
) -> None:
    settings.REDLOCK = {"default": {"BACKEND": DATABASE, "DATABASE": "pg", "CONNECTIONS": 1}}
    assert not taken("order:1")
    with connections["pg"].cursor() as cursor:
        cursor.execute(f"ALTER TABLE {LOCKS} ALTER resource TYPE text")
        try:
            assert not taken("order:1")
        finally:
            cursor.execute(f"ALTER TABLE {LOCKS} ALTER resource TYPE varchar(512)")
    assert not taken("order:1")


def test_a_write_transaction_of_sqlite_delays_no_lock(sqlite: Database) -> None:
    connections["locks"].ensure_connection()
    with connections["locks"].cursor() as cursor:
        cursor.execute("CREATE TABLE work (id integer)")
        with transaction.atomic("locks"):
            cursor.execute("INSERT INTO work VALUES (1)")
            lease = database_of().acquire(("order:1",), 30, 0, HOLDER)
            assert database_of().extend(lease, 30)[0] is LeaseState.RENEWED
    assert database_of().release(lease) is True


def test_sqlite_in_memory_excludes_threads(
    settings: Settings, databases: Databases, database_access: None
) -> None:
    databases("memory", {"ENGINE": SQLITE, "NAME": ":memory:"})
    settings.REDLOCK = {"default": {"BACKEND": DATABASE, "DATABASE": "memory"}}
    with transaction.atomic("memory"):  # as a TestCase does
        lease = database_of().acquire(("order:1",), 30, 0, HOLDER)
        refused = []
        thread = threading.Thread(target=lambda: refused.append(taken("order:1")))
        thread.start()
        thread.join()
        (listed,) = inspecting.held(database_of()).locks
        assert listed.fingerprint == lease.fingerprint
    assert refused == [True]
    assert database_of().release(lease) is True
    assert not database_of().is_shared


def test_aliases_that_name_one_file_exclude_each_other(
    settings: Settings, databases: Databases, database_access: None, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "site.sqlite3")
    databases("one", {"ENGINE": SQLITE, "NAME": str(tmp_path / "site.sqlite3")})
    databases("two", {"ENGINE": SQLITE, "NAME": tmp_path / "link"})
    settings.REDLOCK = {
        "default": {"BACKEND": DATABASE, "DATABASE": "one"},
        "other": {"BACKEND": DATABASE, "DATABASE": "two"},
    }
    with lock("order:1"), pytest.raises(ResourceLocked), lock("order:1", using="other"):
        pass


# Faults.


def process(settings: Settings, folder: Path, lines: str) -> AbstractContextManager[Program]:
    """Start a process in a folder; its locks are in the database of the default alias."""
    database = connections.settings[settings.REDLOCK["default"]["DATABASE"]]
    entry = {name: str(database[name]) for name in ("ENGINE", "NAME", "HOST", "PORT", "USER")}
    redlock = {"default": {"BACKEND": DATABASE, "DATABASE_TIMEOUT": 20}}
    return started(lines, ready="", cwd=folder, redlock=redlock, DATABASES={"default": entry})


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.nightly)])
def test_many_processes_take_turns(
    request: pytest.FixtureRequest, settings: Settings, tmp_path: Path, kind: str
) -> None:
    {"sqlite": Sqlite, "postgres": Postgres}[kind](request, settings)
    lines = """
for _ in range(10):
    with lock("order:1", ttl=20, wait=60) as held:
        marker = os.open("inside", os.O_CREAT | os.O_EXCL)  # fails if another process is inside
        with open("fences", "a") as fences:
            fences.write(f"{held.fence}\\n")
        os.close(marker)
        os.unlink("inside")
"""
    with ExitStack() as stack:
        children = [stack.enter_context(process(settings, tmp_path, lines)) for _ in range(3)]
        assert [child.wait(60) for child in children] == [0] * 3
    fences = [int(line) for line in (tmp_path / "fences").read_text().split()]
    assert len(fences) == 30
    assert fences == sorted(set(fences))


def test_other_processes_are_excluded_and_a_killed_process_is_outlived(
    sqlite: Database, settings: Settings, tmp_path: Path
) -> None:
    lines = """
lock("order:1", ttl=30).acquire()
print("held", flush=True)
sys.stdin.read()
"""
    with process(settings, tmp_path, lines) as child:
        assert child.hear() == "held"
        child.kill()
        child.wait()
        assert taken("order:1")
        sqlite.pass_time(30)
        assert not taken("order:1")


CONNECTIONS = {
    "pg": (
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database()",
        "SELECT pg_terminate_backend({})",
    ),
    "maria": (
        "SELECT id FROM information_schema.processlist WHERE db = DATABASE()",
        "KILL {}",
    ),
}
"""Statements that return the numbers of all connections, and that kill one."""


def test_a_killed_connection_is_replaced(server: Database) -> None:
    every, kill = CONNECTIONS[server.alias]
    lease = database_of().acquire(("order:1",), 30, 0, HOLDER)
    with connections[server.alias].cursor() as cursor:
        ours = server.number(cursor)
        cursor.execute(every)
        others = {one for (one,) in cursor.fetchall()} - {ours}
        assert database_of().connections.run(server.number) in others
        for one in others:
            with suppress(OperationalError):  # one of an earlier test has ended by now
                cursor.execute(kill.format(one))
    assert database_of().extend(lease, 30)[0] is LeaseState.RENEWED
    assert taken("order:1")
    assert database_of().release(lease) is True


@pytest.mark.slow
@pytest.mark.parametrize(
    ("server", "kind"),
    [
        pytest.param(Postgres, SyncCaller, marks=pytest.mark.postgres, id="postgres"),
        pytest.param(Postgres, AsyncCaller, marks=pytest.mark.postgres, id="postgres from a loop"),
        pytest.param(MariaDB, SyncCaller, id="mariadb"),
    ],
    indirect=["server"],
)
def test_an_attempt_that_is_given_up_leaves_nothing(
    server: Database, settings: Settings, kind: type[SyncCaller]
) -> None:
    database_of().release(database_of().acquire(("order:1",), 30, 0, HOLDER))
    change(settings, DATABASE_TIMEOUT=1)
    with transaction.atomic(server.alias), connections[server.alias].cursor() as cursor:
        cursor.execute(f"SELECT 1 FROM {LOCKS} FOR UPDATE")  # so that the statement waits
        caller = kind(server)
        with closing(caller), pytest.raises(StoreUnavailable, match="no answer within"):
            caller.acquire("order:1", ttl=120)
        until(answers, what="the database answers after the release that was posted")
    until(lambda: not server.waiting(), what="the statement has ended")
    until(granted, what="the lock is free, before its TTL", seconds=30)


@pytest.mark.parametrize("server", DATABASES[1:2], indirect=True)
def test_a_conflict_of_serializable_transactions_is_tried_again(
    weak: None, server: Database
) -> None:
    database_of().release(database_of().acquire(("order:1",), 30, 0, HOLDER))
    with transaction.atomic("pg"), connections["pg"].cursor() as cursor:
        cursor.execute(f"UPDATE {LOCKS} SET fence = fence + 1")
        started = Started(lambda: database_of().acquire(("order:1",), 30, 0, HOLDER))
        until(server.waiting, what="the statement waits for the row")
    assert started.lease().resources == ("order:1",)


@pytest.mark.postgres
def test_several_locks_are_taken_together_under_contention(postgres_store: Database) -> None:
    backend = database_of()
    held: set[str] = set()
    overlaps: list[str] = []

    def work(number: int) -> None:
        names = (("a:1", "b:2"), ("b:2", "c:3"), ("c:3", "a:1"))[number % 3]
        for _ in range(15):
            try:
                lease = backend.acquire(names, 30, 0, HOLDER)
            except ResourceLocked:
                continue
            overlaps.extend(held.intersection(names))
            held.update(names)
            held.difference_update(names)
            assert backend.release(lease) is True

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not overlaps
    assert not taken("a:1", "b:2", "c:3")


@pytest.mark.slow
@pytest.mark.parametrize("what", ["acquire", "release"])
@pytest.mark.parametrize("limit", [1, 3])
def test_an_interrupt_at_any_line_leaves_nothing(sqlite: Database, what: str, limit: int) -> None:
    for place in after_each_interrupt(what, limit, least=10):
        until(
            lambda: not inspecting.held(database_of()).locks, what=f"nothing is held after {place}"
        )


def test_a_waiter_that_died_is_passed_over(
    sqlite: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    sqlite.keep_turns(monkeypatch)
    backend = database_of()
    lease = backend.acquire(("order:1",), 30, 0, HOLDER)

    def add_dead(cursor: Any) -> None:
        cursor.execute(
            f"INSERT INTO {WAITERS} (name, resource, arrived_at, alive_until) "
            "VALUES ('dead', 'order:1', 0, 9000000000000000)"
        )

    backend.connections.run(add_dead)
    backend.release(lease)
    with pytest.raises(ResourceLocked, match="reserved for a waiter") as refused:
        backend.acquire(("order:1",), 30, 0, HOLDER)
    assert refused.value.retry_after is not None
    assert 0 < refused.value.retry_after <= 10
    sqlite.pass_time(10)
    assert backend.acquire(("order:1",), 30, 0, HOLDER).resources == ("order:1",)


def test_waiters_that_died_are_deleted_when_a_process_starts(sqlite: Database) -> None:
    def add_dead(cursor: Any) -> None:
        cursor.execute(
            f"INSERT INTO {WAITERS} (name, resource, arrived_at, alive_until) "
            "VALUES ('dead', 'order:1', 0, 0), ('alive', 'order:1', 0, 9000000000000000)"
        )

    def names(cursor: Any) -> list[str]:
        cursor.execute(f"SELECT name FROM {WAITERS}")
        return [name for (name,) in cursor.fetchall()]

    database_of().connections.run(add_dead)
    locks.close()
    assert database_of().connections.run(names) == ["alive"]


def test_a_database_that_is_down_is_reported(
    settings: Settings, databases: Databases, database_access: None
) -> None:
    entry = {"ENGINE": "django.db.backends.postgresql", "NAME": "x", "HOST": "127.0.0.1"}
    databases("down", {**entry, "PORT": "1", "USER": "u", "PASSWORD": "secret-password"})
    settings.REDLOCK = {"default": {"BACKEND": DATABASE, "DATABASE": "down"}}
    with pytest.raises(StoreUnavailable, match="refused") as refused:
        database_of().acquire(("order:1",), 30, 0, HOLDER)
    assert "secret-password" not in str(refused.value)
    (server,) = inspecting.health(database_of())
    assert server.counted is False
    assert server.faults[0].code == "unreachable"
    assert "E028" in found(deploy=True, tag="redlock_masters", databases=["default"])


@pytest.mark.postgres
def test_a_server_that_is_read_only_is_unavailable(
    postgres_store: Database, databases: Databases, settings: Settings
) -> None:
    options = {"options": "-c default_transaction_read_only=on"}
    databases("read", {**connections.settings["pg"], "OPTIONS": options})
    settings.REDLOCK = {"default": {"BACKEND": DATABASE, "DATABASE": "read"}}
    with pytest.raises(StoreUnavailable, match="read-only transaction"):
        database_of().acquire(("order:1",), 30, 0, HOLDER)


@pytest.mark.parametrize("debug", [True, False])
def test_missing_tables_are_named(
    server: Database,
    databases: Databases,
    settings: Settings,
    caplog: pytest.LogCaptureFixture,
    debug: bool,
) -> None:
    settings.DEBUG = debug
    other = {"pg": "template1", "maria": "mysql"}[server.alias]
    databases("empty", {**connections.settings[server.alias], "NAME": other})
    settings.REDLOCK = {"default": {"BACKEND": DATABASE, "DATABASE": "empty"}}
    command = "manage.py migrate --database empty"
    with pytest.raises(StoreUnavailable, match=command) as refused:
        lock("order:1").acquire()
    assert "order:1: not acquired: database empty: the tables are missing" in caplog.text
    assert command in caplog.text
    problem = problem_of(refused.value)
    assert (command in problem["detail"]) is debug
    assert problem["retryable"] is False
    text = found(deploy=True, tag="database", databases=["empty"])["E024"]
    assert all(f"The database 'empty' lacks the table {table}" in text for table in TABLES)
    assert command in text
    # Nothing that needs a table is in this one.
    assert "E024" not in found(deploy=True, tag="database", databases=[server.alias])


@pytest.mark.parametrize("kind", DATABASES)
def test_a_clock_that_is_set_back_keeps_no_released_lock(
    request: pytest.FixtureRequest, settings: Settings, kind: type[Store]
) -> None:
    store = kind(request, settings)
    backend = database_of()
    names = ("a:1", "b:2", "c:3")
    first = backend.acquire(names, 30, 0, HOLDER)
    held = backend.acquire(("held:1",), 30, 0, HOLDER)
    backend.release(first)
    store.pass_time(-3600)
    assert [one.resource for one in inspecting.held(backend).locks] == ["held:1"]
    single = backend.acquire(names[:1], 30, 0, HOLDER)
    backend.release(single)
    store.pass_time(-3600)
    second = backend.acquire(names, 30, 5, HOLDER)
    assert second.waited == 0
    assert all(map(int.__gt__, second.fences, first.fences))
    assert taken("held:1")
    assert backend.extend(held, 30)[0] is LeaseState.RENEWED


# Fences, secrets.


def test_a_fence_survives_another_clock(sqlite: Database) -> None:
    backend = database_of()
    first = backend.acquire(("order:1",), 30, 0, HOLDER)
    backend.release(first)
    ahead = first.fences[0] + 10**9

    def step(cursor: Any) -> None:
        cursor.execute(f"UPDATE {LOCKS} SET fence = %s", [ahead])

    backend.connections.run(step)
    assert backend.acquire(("order:1",), 30, 0, HOLDER).fences == (ahead + 1,)


@pytest.mark.attack
def test_the_table_has_no_token(sqlite: Database, tmp_path: Path) -> None:
    lease = database_of().acquire(("order:1",), 30, 0, HOLDER)
    with closing(sqlite3.connect(tmp_path / "site.sqlite3.locks")) as connection:
        (row,) = connection.execute(f"SELECT * FROM {LOCKS}").fetchall()
    assert lease.token not in str(row)


def test_the_test_kit_replaces_a_database(sqlite: Database) -> None:
    with memory_masters() as backend, lock("order:1"):
        assert [held.resource for held in inspecting.held(backend).locks] == ["order:1"]

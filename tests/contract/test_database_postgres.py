"""Connections to PostgreSQL: statements that a caller executes itself, and the cursor for them."""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from django.db import OperationalError, ProgrammingError, connections, transaction

from redlock_django.backends.database import connections as database_connections
from redlock_django.backends.database import direct_cursor
from redlock_django.backends.database import sql as database_sql
from redlock_django.backends.database.backend import DatabaseBackend
from redlock_django.backends.database.dialects import LOCKS, sqlstate
from redlock_django.backends.database.direct_cursor import (
    DirectCursor,
    can_be_direct,
    cancels_in_time,
)
from redlock_django.backends.database.jobs import Job
from redlock_django.backends.database.settings import prepare_statements
from redlock_django.exceptions import StoreUnavailable
from redlock_django.locking.services import locks
from tests.contract.interrupting import after_each_interrupt
from tests.contract.stores import DATABASE, HOLDER, Database, Started, answers, change, database_of
from tests.waiting import until

if TYPE_CHECKING:
    from django.db.backends.utils import CursorWrapper
    from pytest_django import Settings


pytestmark = pytest.mark.postgres
limited = pytest.mark.skipif(not cancels_in_time(), reason="needs libpq 17")


@pytest.fixture
def backend(postgres_store: Database, settings: Settings) -> Iterator[DatabaseBackend]:
    """Return a store on one connection, which was made."""
    change(settings, CONNECTIONS=1)
    pair(postgres_store.backend)
    yield postgres_store.backend
    locks.close()


def pair(backend: DatabaseBackend) -> None:
    """Acquire and release a lock."""
    assert backend.release(backend.acquire(("order:1",), 30, 0, HOLDER)) is True


def is_whole(backend: DatabaseBackend) -> bool:
    """Return whether no connection is borrowed, and no job is left."""
    connections = backend.connections
    return connections._free.qsize() == len(connections._threads) and connections._jobs.empty()


def held(backend: DatabaseBackend) -> int:
    """Return the number of locks that are held."""

    def count(cursor: Any) -> int:
        cursor.execute(f"SELECT count(*) FROM {LOCKS} WHERE token_hash <> ''")
        return int(cursor.fetchone()[0])

    return backend.connections.run(count)


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """Return the list of the threads that execute statements from now on."""
    seen: list[threading.Thread] = []
    execute = DirectCursor.execute

    def noted(self: DirectCursor, *arguments: Any) -> None:
        seen.append(threading.current_thread())
        execute(self, *arguments)

    monkeypatch.setattr(DirectCursor, "execute", noted)
    return seen


def test_a_caller_executes_its_statements_itself(
    backend: DatabaseBackend, threads: list[threading.Thread]
) -> None:
    pair(backend)
    assert threads == [threading.current_thread()] * 2
    assert is_whole(backend)


def test_a_caller_executes_its_statements_itself_behind_a_pooler(
    pooled: None, settings: Settings, threads: list[threading.Thread]
) -> None:
    settings.REDLOCK = {"default": {"BACKEND": DATABASE, "DATABASE": "pooled", "CONNECTIONS": 1}}
    backend = database_of()
    pair(backend)
    threads.clear()
    pair(backend)
    assert threads == [threading.current_thread()] * 2


def test_a_caller_leaves_its_job_to_a_thread_if_the_connection_broke(
    backend: DatabaseBackend,
) -> None:
    with connections["pg"].cursor() as cursor:
        cursor.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND datname = current_database()"
        )
    pair(backend)
    assert is_whole(backend)


def test_a_caller_that_gives_up_leaves_nothing(
    backend: DatabaseBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    with transaction.atomic("pg"), connections["pg"].cursor() as cursor:
        cursor.execute(f"SELECT FROM {LOCKS} FOR UPDATE")  # so that the statement waits
        monkeypatch.setattr(backend.connections, "_timeout", 0.2)
        with pytest.raises(StoreUnavailable, match="no answer within"):
            backend.acquire(("order:1",), 30, 0, HOLDER)
        monkeypatch.undo()
    until(lambda: is_whole(backend), what="a thread has done the rest")
    pair(backend)


@pytest.mark.slow
@limited
@pytest.mark.parametrize("is_lent", [True, False], ids=["of a caller", "of a thread"])
def test_a_connection_on_which_no_answer_arrives_is_replaced(
    postgres_store: Database,
    backend: DatabaseBackend,
    monkeypatch: pytest.MonkeyPatch,
    is_lent: bool,
) -> None:
    server = backend.connections.run(postgres_store.number)
    monkeypatch.setattr(backend.connections, "_lends", is_lent)
    os.kill(server, signal.SIGSTOP)
    try:
        monkeypatch.setattr(backend.connections, "_timeout", 0.2)
        with pytest.raises(StoreUnavailable, match="no answer within"):
            backend.acquire(("order:2",), 30, 0, HOLDER)
        until(answers, what="another connection is used")
        monkeypatch.undo()
        pair(backend)
    finally:
        os.kill(server, signal.SIGCONT)


@pytest.mark.slow
@limited
def test_statements_of_connections_that_were_replaced_do_not_stay_in_the_server(
    backend: DatabaseBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, connect = [], backend.connections._connect

    def noted() -> Any:
        made.append(connect())
        return made[-1]

    monkeypatch.setattr(backend.connections, "_connect", noted)
    monkeypatch.setattr(backend.connections, "_timeout", 0.2)
    with transaction.atomic("pg"), connections["pg"].cursor() as cursor:
        cursor.execute(f"SELECT FROM {LOCKS} FOR UPDATE")  # so that each of them waits

        def waiting() -> int:
            cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
            return int(cursor.fetchone()[0])

        while len(made) < 2:
            with suppress(StoreUnavailable):
                backend.acquire(("order:1",), 30, 0, HOLDER)
        until(lambda: waiting() <= 1, what="only that of the connection in use waits")
    monkeypatch.undo()
    until(lambda: is_whole(backend), what="a thread has done the rest")
    pair(backend)


def test_a_release_whose_answer_is_late_is_done_later(
    backend: DatabaseBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = backend.acquire(("order:1",), 30, 0, HOLDER)
    with transaction.atomic("pg"), connections["pg"].cursor() as cursor:
        cursor.execute(f"SELECT FROM {LOCKS} FOR UPDATE")
        monkeypatch.setattr(backend.connections, "_timeout", 0.2)
        assert backend.release(lease) is None
        monkeypatch.undo()
    pair(backend)


@pytest.mark.parametrize("freed", [None, False], ids=["after", "before"])
def test_an_answer_that_is_lost_makes_a_release_unknown(
    backend: DatabaseBackend, monkeypatch: pytest.MonkeyPatch, freed: bool | None
) -> None:
    """The caller has executed the statement; the thread that takes over finds no row."""
    release, errors = database_sql.release, [OperationalError("the answer was lost")]

    def breaking(cursor: Any, *arguments: Any) -> bool:
        done = release(cursor, *arguments)
        if errors and freed is None:
            raise errors.pop()
        return done

    monkeypatch.setattr(database_sql, "release", breaking)
    lease = backend.acquire(("order:1",), 30, 0, HOLDER)
    if freed is False:
        release_all(backend)
    assert backend.release(lease) is freed


def release_all(backend: DatabaseBackend) -> None:
    """Make all locks end."""
    backend.connections.run(lambda cursor: cursor.execute(f"UPDATE {LOCKS} SET expires_at = 0"))


def test_a_lock_that_a_finalizer_releases_inside_a_job_is_posted(
    backend: DatabaseBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = backend.acquire(("order:2",), 30, 0, HOLDER)
    released: list[bool | None] = []
    answer = DirectCursor._wait

    def collect(self: DirectCursor) -> None:
        if not released:
            released.append(False)
            released[0] = backend.release(other)
        answer(self)

    monkeypatch.setattr(DirectCursor, "_wait", collect)
    pair(backend)
    assert released == [None]
    until(lambda: not held(backend), what="it was released")


def test_nothing_is_kept_of_the_job_of_a_thread_that_has_ended(backend: DatabaseBackend) -> None:
    jobs: list[weakref.ref[Job[int]]] = []

    def work() -> None:
        job = Job(lambda cursor: 1)
        jobs.append(weakref.ref(job))
        backend.connections.perform(job)

    for _ in range(3):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(60)
    gc.collect()
    assert [job() for job in jobs] == [None] * 3


def test_a_caller_is_in_its_job_again_after_one_of_a_signal_handler(
    backend: DatabaseBackend,
) -> None:
    seen: list[bool] = []

    def interrupted(cursor: Any) -> None:
        seen.append(backend.connections.is_inside())
        inner = Job(lambda cursor: backend.connections.is_inside())
        with pytest.raises(StoreUnavailable):  # the caller has the only connection
            backend.connections.perform(inner)
        seen.append(backend.connections.is_inside())

    backend.connections._timeout = 0.2
    backend.connections.perform(Job(interrupted))
    assert seen == [True, True]
    assert not backend.connections.is_inside()


@pytest.mark.parametrize("error", [OperationalError, TimeoutError, KeyboardInterrupt])
def test_a_thread_that_waits_for_a_connection_does_the_job_that_has_it(
    backend: DatabaseBackend, error: type[BaseException]
) -> None:
    """Its caller has begun that job, and leaves it to the thread with the connection."""
    posted = threading.Event()
    calls: list[threading.Thread] = []

    def work(cursor: Any) -> None:
        calls.append(threading.current_thread())
        if len(calls) == 1:
            backend.connections.post(lambda cursor: posted.set())
            until(lambda: backend.connections._waiting, what="the thread waits for the connection")
            raise error

    with suppress(StoreUnavailable, KeyboardInterrupt):
        backend.connections.perform(Job(work))
    assert posted.wait(60), "as before, both jobs wait for each other"
    until(lambda: is_whole(backend), what="the connection is free")
    assert [one is threading.current_thread() for one in calls] == [True, False]
    pair(backend)


def test_many_threads_share_one_connection(backend: DatabaseBackend) -> None:
    def work(number: int) -> Callable[[], Any]:
        def pairs() -> Any:
            for _ in range(20):
                lease = backend.acquire((f"order:{number}",), 30, 0, HOLDER)
                assert backend.release(lease) is True
            return lease

        return pairs

    for call in [Started(work(number)) for number in range(8)]:
        call.lease()
    until(lambda: is_whole(backend), what="the connection was returned")


@pytest.mark.slow
@pytest.mark.parametrize("what", ["acquire", "release"])
@pytest.mark.parametrize("limit", [1, pytest.param(3, marks=pytest.mark.nightly)])
def test_an_interrupt_at_any_line_leaves_nothing(
    backend: DatabaseBackend, what: str, limit: int
) -> None:
    for place in after_each_interrupt(what, limit, least=30):
        until(lambda: is_whole(backend), what=f"no connection is lost after {place}")
        until(lambda: not held(backend), what=f"nothing is held after {place}")


@pytest.fixture
def cursor(postgres_store: Database) -> Iterator[CursorWrapper]:
    """Return a cursor of Django on a connection as the store makes it."""
    with closing(postgres_store.backend.settings.connect()) as connection:
        found = connection.cursor()
        prepare_statements(found)
        yield found


@pytest.mark.parametrize(
    ("statement", "values"),
    [
        ("SELECT 1, 2::bigint, 3::smallint, true, false, NULL, 'a''b', 'ä'::varchar(9)", ()),
        ("SELECT strpos('a%%b', %s), %s || '$1', 1.5::float8", ("%", "x")),
        ("SELECT 'a%b'", ()),
        ("SELECT name FROM (VALUES ('a'), ('b')) AS found (name) WHERE name > %s", ("",)),
        ("SELECT 1 WHERE false", ()),
    ],
)
def test_results_are_those_of_django(
    cursor: CursorWrapper, statement: str, values: tuple[str, ...]
) -> None:
    ours = DirectCursor(cursor)
    for _ in range(2):
        cursor.execute(statement, values or None)
        ours.execute(statement, values)
        assert ours.rowcount == cursor.rowcount
        expected = cursor.fetchall()
        assert ours.fetchall() == expected
        assert ours.fetchone() == (expected[0] if expected else None)


def test_a_statement_is_prepared_once_and_rare_ones_are_not(
    cursor: CursorWrapper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct_cursor, "_MOST", 3)
    ours = DirectCursor(cursor)
    for number in [*range(6), *range(6)]:
        ours.execute(f"SELECT {number}, %s", ("a",))
        assert ours.fetchall() == [(number, "a")]
    cursor.execute("SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'redlock%'")
    assert cursor.fetchone() == (3,)


def test_errors_are_those_of_django(cursor: CursorWrapper) -> None:
    ours = DirectCursor(cursor)
    with pytest.raises(ProgrammingError) as missing:
        ours.execute("SELECT * FROM nowhere")
    assert sqlstate(missing.value) == "42P01"
    ours.execute("SELECT pg_backend_pid()")
    with connections["pg"].cursor() as other:
        other.execute("SELECT pg_terminate_backend(%s)", ours.fetchone())
    with pytest.raises(OperationalError):
        ours.execute("SELECT 1")


def test_a_statement_that_could_not_be_cancelled_in_time_has_no_limit(
    cursor: CursorWrapper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A libpq before 17 might never return from the cancellation, with all threads waiting."""
    ours = DirectCursor(cursor)
    old_libpq = SimpleNamespace(has_cancel_safe=lambda: False)
    for capabilities in (old_libpq, None):  # psycopg before 3.2 has none
        monkeypatch.setattr(psycopg, "capabilities", capabilities)
        with ours.within(0.01):
            ours.execute("SELECT pg_sleep(0.05), 7")
        assert ours.fetchone() == ("", 7)
    monkeypatch.undo()
    if cancels_in_time():
        with pytest.raises(OperationalError, match="no answer within"), ours.within(0.01):
            ours.execute("SELECT pg_sleep(600)")


def test_a_server_that_has_vanished_is_noticed_although_nothing_is_sent(
    cursor: CursorWrapper,
) -> None:
    with socket.socket(fileno=os.dup(cursor.db.connection.pgconn.socket)) as link:
        names = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_USER_TIMEOUT")
        options = [link.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in names]
    assert options == [10, 10, 40_000]  # of a DATABASE_TIMEOUT of 10 s


@limited
def test_a_server_that_hangs_while_a_connection_is_set_up_is_noticed(
    postgres_store: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = postgres_store.backend
    monkeypatch.setattr(backend.connections, "_timeout", 0.1)
    monkeypatch.setattr(
        database_connections,
        "prepare_statements",
        lambda cursor: cursor.execute("SELECT pg_sleep(600)"),
    )
    with pytest.raises(OperationalError, match=r"no answer within 0\.4 s"):
        backend.connections._new_cursor()


def test_gevent_and_psycopg2_keep_the_cursor_of_django(
    cursor: CursorWrapper, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert can_be_direct(cursor)
    patched: Any = SimpleNamespace(is_module_patched=lambda name: name == "select")
    monkeypatch.setitem(sys.modules, "gevent.monkey", patched)
    assert not can_be_direct(cursor)
    monkeypatch.undo()
    psycopg2: Any = SimpleNamespace(db=SimpleNamespace(connection=object()))
    assert not can_be_direct(psycopg2)

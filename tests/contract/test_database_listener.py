"""The thread that listens for notifications of PostgreSQL: what it leaves, and how it ends."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import psycopg
import pytest
from django.db import connections

from redlock_django.backends.database import listener as database_listener
from redlock_django.backends.database import sql as database_sql
from redlock_django.backends.database.listener import Listener
from redlock_django.locking.services import locks
from tests.contract.stores import (
    DATABASE,
    HOLDER,
    AsyncCaller,
    Database,
    Started,
    SyncCaller,
    database_of,
    listen,
    wait_for_waiters,
)
from tests.inspecting import look
from tests.waiting import until

if TYPE_CHECKING:
    from pytest_django import Settings

pytestmark = pytest.mark.postgres


@pytest.fixture
def store(postgres_store: Database) -> Iterator[Database]:
    yield postgres_store
    locks.close()


def listeners() -> int:
    """Return the number of threads that listen."""
    return sum(thread.name == "redlock-listener" for thread in threading.enumerate())


def wait_for_a_lock() -> None:
    """Acquire a lock as a waiter does, which another client releases."""
    backend = database_of()
    held = backend.acquire(("order:1",), 30, 0, HOLDER)
    waiter = Started(lambda: backend.acquire(("order:1",), 30, 30, HOLDER))
    until(lambda: look(backend, ["order:1"]).locks[0].waiters == 1, what="a waiter waits")
    backend.release(held)
    backend.release(waiter.lease())


def is_listening() -> bool:
    """Return whether waiters are woken."""
    listener = database_of().listener
    return listener is not None and listener.is_listening


def listening() -> list[int]:
    """Return the connections that listen; one that was closed may not have ended yet."""
    with connections["pg"].cursor() as cursor:
        cursor.execute(
            "SELECT pid FROM pg_stat_activity "
            "WHERE query LIKE 'LISTEN%' AND datname = current_database()"
        )
        return [pid for (pid,) in cursor.fetchall()]


@pytest.mark.parametrize("kind", [SyncCaller, AsyncCaller])
def test_a_notification_wakes_a_waiter(
    store: Database, monkeypatch: pytest.MonkeyPatch, kind: type[SyncCaller]
) -> None:
    # Without notifications, a waiter that is woken by them would look again after 60 s.
    monkeypatch.setattr(database_sql, "ALIVE", 180.0)
    backend, caller = database_of(), kind(store)
    with closing(caller):
        held = backend.acquire(("order:1",), 30, 0, HOLDER)
        listen(backend)
        waiter = caller.start("order:1", wait=100)
        wait_for_waiters(store, 1)
        backend.release(held)
        assert waiter.lease().waited < 30
        caller.release(waiter.lease())


@pytest.mark.slow
def test_a_killed_listener_is_replaced(store: Database) -> None:
    until(lambda: not listening(), what="those of earlier tests have ended")
    listen(database_of())
    (killed,) = listening()
    with connections["pg"].cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(%s)", [killed])
    until(lambda: listening() not in ([killed], []), what="another connection listens")
    until(is_listening, what="it is heard")


def test_closing_writes_nothing_to_descriptors_that_others_use(
    pooled: None, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.REDLOCK = {"default": {"BACKEND": DATABASE, "DATABASE": "pooled"}}
    monkeypatch.setattr(database_listener, "_PROOF", 0.1)
    wait_for_a_lock()
    until(lambda: not listeners(), what="it has ended")
    with ExitStack() as files:
        for number in range(64):  # they get the descriptors that were closed
            upload = files.enter_context((tmp_path / str(number)).open("wb", buffering=0))
            upload.write(b"DATA")
            upload.seek(0)
        locks.close()
    assert {path.read_bytes() for path in tmp_path.iterdir()} == {b"DATA"}


def test_no_connection_of_a_pooler_listens(pooled: None, settings: Settings) -> None:
    settings.REDLOCK = {"default": {"BACKEND": DATABASE, "DATABASE": "pooled"}}
    wait_for_a_lock()
    until(lambda: not listeners(), what="it has ended")
    entry = connections.settings["pooled"]
    target = {name: entry[name.upper()] for name in ("host", "port", "user")}
    with ExitStack() as open_transactions:  # all connections that the pooler has
        for _ in range(2):
            site = open_transactions.enter_context(psycopg.connect(**target, dbname=entry["NAME"]))
            assert site.execute("SELECT pg_listening_channels()").fetchall() == []


def test_with_psycopg2_waiters_look(
    store: Database, monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    monkeypatch.setattr("django.db.backends.postgresql.psycopg_any.is_psycopg3", False)
    locks.close()
    wait_for_a_lock()
    assert not listeners()


def test_a_database_that_is_slow_at_first_is_listened_to_later(
    store: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_listener, "_PROOF", 0.01)
    backend = database_of()
    dropped: list[Callable[[Any], object]] = []

    def post(work: Callable[[Any], object]) -> None:
        if len(dropped) < 4:
            dropped.append(work)
        else:
            backend.connections.post(work)

    listener = Listener(backend.settings.connect, post)
    listener.watch("waiter", print)
    until(lambda: listener.is_listening, what="it listens")
    assert len(dropped) == 4
    listener.close()
    listener.join()
    assert not listeners()
    assert not listener.is_listening


def test_our_own_notification_is_sent_again_ever_more_rarely(
    store: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float | None] = []

    class Selector:
        """A database that never answers, and a clock that runs at once."""

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *error: object) -> None:
            pass

        def register(self, descriptor: int, events: int) -> None:
            """Watch nothing."""

        def select(self, timeout: float | None) -> list[Any]:
            waits.append(timeout)
            if len(waits) == 8:
                listener.close()
            return []

    monkeypatch.setattr(f"{database_listener.__name__}.selectors.DefaultSelector", Selector)
    listener = Listener(database_of().settings.connect, lambda work: None)
    listener.watch("waiter", print)
    until(lambda: len(waits) == 8, what="it has waited")
    assert waits == [2, 4, 8, 16, 32, 60, 60, 60]
    listener.join()


def test_closing_leaves_no_thread_descriptor_and_connection(store: Database) -> None:
    until(lambda: not listening(), what="those of earlier tests have ended")
    gc.collect()
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(3):
        database_of().connections.run(lambda cursor: None)
        listen(database_of())
        assert len(listening()) == 1
        locks.close()
        assert not listeners()
        until(lambda: not listening(), what="the server has closed the connection")
    assert set(os.listdir("/proc/self/fd")) <= before  # those of earlier tests may be closed late


def test_a_forked_child_that_ends_does_not_disturb_the_listener(
    store: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_sql, "ALIVE", 180.0)  # else a waiter looks again soon
    wait_for_a_lock()
    until(is_listening, what="it listens")
    pid = os.fork()
    if pid == 0:  # pragma: no cover - another process
        status = 1
        try:
            assert not is_listening()
            gc.collect()
            wait_for_a_lock()
            until(is_listening, what="the child listens")
            locks.close()
            gc.collect()
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert is_listening()
    held = database_of().acquire(("order:1",), 30, 0, HOLDER)
    waiter = Started(lambda: database_of().acquire(("order:1",), 100, 100, HOLDER))
    until(lambda: look(database_of(), ["order:1"]).locks[0].waiters == 1, what="a waiter waits")
    database_of().release(held)
    assert waiter.lease().waited < 30


def test_a_hanging_database_does_not_delay_the_end(
    store: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_listener, "_ENDING", 0.01)
    answers = threading.Event()

    def connect() -> Any:
        assert answers.wait(60)
        return database_of().settings.connect()

    listener = Listener(connect, database_of().connections.post)
    listener.watch("waiter", print)
    listener.close()
    listener.join()
    assert listeners(), "it was waited for"
    answers.set()
    until(lambda: not listeners(), what="it has ended")

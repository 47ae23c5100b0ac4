"""How many statements the database store sends: each is a round trip."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from redlock_django.backends.database import sql as database_sql
from redlock_django.backends.database.backend import DatabaseBackend
from redlock_django.backends.database.connections import Connections
from redlock_django.exceptions import LimitReached, ResourceLocked
from tests.contract.stores import HOLDER, Database, Postgres, Started, listen
from tests.waiting import until

if TYPE_CHECKING:
    from pytest_django import Settings


@pytest.fixture
def backend(database: Database, settings: Settings) -> DatabaseBackend:
    """Return a store on one connection."""
    settings.REDLOCK = {"default": {**settings.REDLOCK["default"], "CONNECTIONS": 1, "POLL": 0.5}}
    return database.backend


class Counted:
    """A cursor that appends the first word of each statement to a list."""

    def __init__(self, cursor: Any, statements: list[str]) -> None:
        self._cursor = cursor
        self._statements = statements

    def execute(self, statement: str, *values: Any) -> None:
        """Count the statement, and execute it."""
        self._statements.append(statement.split()[0])
        self._cursor.execute(statement, *values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of the statements that are sent from now on."""
    statements: list[str] = []
    new_cursor = Connections._new_cursor
    monkeypatch.setattr(
        Connections, "_new_cursor", lambda self: Counted(new_cursor(self), statements)
    )
    return statements


def test_a_pair(sent: list[str], backend: DatabaseBackend) -> None:
    backend.release(backend.acquire(("order:1",), 30, 0, HOLDER))
    sent.clear()
    backend.release(backend.acquire(("order:1",), 30, 0, HOLDER))
    backend.release(backend.acquire(("order:2",), 30, 20, HOLDER))
    assert sent == ["INSERT", "UPDATE"] * 2


def test_a_refusal(sent: list[str], backend: DatabaseBackend) -> None:
    backend.acquire(("order:1",), 30, 0, HOLDER)
    sent.clear()
    with pytest.raises(ResourceLocked):
        backend.acquire(("order:1",), 30, 0, HOLDER)
    assert sent == ["INSERT", "SELECT"]


def test_several_locks_are_acquired_without_a_look(
    sent: list[str], backend: DatabaseBackend
) -> None:
    names = ("a:1", "b:2", "c:3")
    backend.release(backend.acquire(names, 30, 0, HOLDER))
    sent.clear()
    backend.release(backend.acquire(names, 30, 0, HOLDER))
    dialect = backend.settings.dialect
    if dialect.takes_all:
        assert sent == ["WITH", "UPDATE"]
    else:
        assert sent == [dialect.begin.split()[0], "INSERT", "COMMIT", "UPDATE"]


def test_a_slot_takes_one_statement_if_the_guess_is_right_and_three_if_not(
    sent: list[str], backend: DatabaseBackend
) -> None:
    backend.connections.run(lambda cursor: None)
    sent.clear()
    held = [backend.acquire(("export",), 30, 0, HOLDER, 2)]
    assert sent == ["INSERT"]
    while len(held) < 9:
        sent.clear()
        held.append(backend.acquire(("export",), 30, 0, HOLDER, 9))
        assert sent in (["INSERT"], ["INSERT", "SELECT", "INSERT"])
    sent.clear()
    with pytest.raises(LimitReached):
        backend.acquire(("export",), 30, 0, HOLDER, 9)
    assert sent == ["INSERT", "SELECT"]


@pytest.mark.postgres
@pytest.mark.parametrize("database", [Postgres], ids=["postgres"], indirect=True)
@pytest.mark.parametrize("names", [("order:1",), ("a:1", "b:2")], ids=["one", "several"])
def test_a_wait_takes_five_statements(
    sent: list[str],
    backend: DatabaseBackend,
    monkeypatch: pytest.MonkeyPatch,
    names: tuple[str, ...],
) -> None:
    monkeypatch.setattr(database_sql, "ALIVE", 180.0)  # else a waiter looks again soon
    listen(backend)
    held = backend.acquire(names, 30, 0, HOLDER)
    sent.clear()
    waiter = Started(lambda: backend.acquire(names, 30, 20, HOLDER))
    until(lambda: len(sent) == 3, what="it has asked, joined and looked")
    backend.release(held)
    waiter.lease()
    sent.remove("UPDATE")
    backend.release(waiter.lease())
    assert sent == ["INSERT" if len(names) == 1 else "WITH", "INSERT", "SELECT", "WITH", "UPDATE"]


@pytest.mark.postgres
@pytest.mark.parametrize("database", [Postgres], ids=["postgres"], indirect=True)
def test_a_wait_for_a_permit_takes_six_statements(
    sent: list[str], backend: DatabaseBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It tries one slot, looks at all, joins the queue, looks, and takes what it is called for."""
    monkeypatch.setattr(database_sql, "ALIVE", 180.0)  # else a waiter looks again soon
    listen(backend)
    held = [backend.acquire(("export",), 30, 0, HOLDER, 3) for _ in range(3)]
    sent.clear()
    waiter = Started(lambda: backend.acquire(("export",), 30, 20, HOLDER, 3))
    until(lambda: len(sent) == 4, what="it has joined and looked")
    backend.release(held[2])
    assert waiter.lease().slot == held[2].slot
    sent.remove("UPDATE")
    backend.release(waiter.lease())
    assert sent == ["INSERT", "SELECT", "INSERT", "SELECT", "WITH", "UPDATE"]


def test_a_waiter_that_looks_takes_few_statements(
    sent: list[str], backend: DatabaseBackend
) -> None:
    """Without notifications there is a look before the statement that takes the lock."""
    backend.listener = None

    def sends_few() -> bool:
        held = backend.acquire(("order:1",), 30, 0, HOLDER)
        sent.clear()
        waiter = Started(lambda: backend.acquire(("order:1",), 30, 20, HOLDER))
        until(lambda: "SELECT" in sent, what="it has joined and looked")
        backend.release(held)
        sent.remove("UPDATE")
        backend.release(waiter.lease())
        return len(sent) - sent.count("SELECT") <= 5

    # A waiter that a busy machine stops for longer than its turn joins the queue again.
    until(sends_few, what="few statements")

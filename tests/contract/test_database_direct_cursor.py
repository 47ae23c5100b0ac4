"""The cursor of PostgreSQL for the statements of locks: as Django's, with less work for each."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from django.db import OperationalError, ProgrammingError, connections

from redlock_django.backends.database import connections as database_connections
from redlock_django.backends.database import direct_cursor
from redlock_django.backends.database.dialects import sqlstate
from redlock_django.backends.database.direct_cursor import (
    DirectCursor,
    can_be_direct,
    cancels_in_time,
)
from redlock_django.backends.database.settings import prepare_statements
from tests.contract.stores import Database

if TYPE_CHECKING:
    from django.db.backends.utils import CursorWrapper

pytestmark = pytest.mark.postgres


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


def test_a_server_that_hangs_while_a_connection_is_set_up_is_noticed(
    postgres_store: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not cancels_in_time():
        pytest.skip("without a libpq that can cancel in time there is no limit")
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

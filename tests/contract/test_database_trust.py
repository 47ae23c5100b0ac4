"""How a database server is recognized, and which errors may leave it without an identity."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from django.db import Error, NotSupportedError, OperationalError, ProgrammingError

from redlock_django.backends.database.dialects import dialect_of
from redlock_django.backends.database.trust import recognize
from tests.contract.stores import DATABASE, HOLDER, database_of

if TYPE_CHECKING:
    from pytest_django import Settings


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

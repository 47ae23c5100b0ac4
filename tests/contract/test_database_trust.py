"""Which errors of a database server may leave it without an identity."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from django.db import Error, NotSupportedError, OperationalError, ProgrammingError

from redlock_django.backends.database.dialects import dialect_of
from redlock_django.backends.database.trust import recognize


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

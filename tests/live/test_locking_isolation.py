"""PostgreSQL: how a transaction ends, and which isolation level it really has."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.utils import OperationalError
from pytest_django import Settings

from redlock_django import lock
from redlock_django.exceptions import InvalidRedlock
from redlock_django.locking.transactions import sees_commits
from tests.aliases import database_alias
from tests.app.conftest import MEMORY, no_renewals  # noqa: F401 - fixtures
from tests.inspecting import is_free

pytestmark = [pytest.mark.live, pytest.mark.postgres]


@pytest.fixture
def pg(postgres: dict[str, Any], settings: Settings) -> Iterator[BaseDatabaseWrapper]:
    """A connection to PostgreSQL as the alias "pg", as a new role."""
    settings.REDLOCK = {"default": {"BACKEND": MEMORY}}
    role = f"role_{uuid.uuid4().hex[:8]}"
    with database_alias("pg", postgres), connections["pg"].cursor() as cursor:
        cursor.execute(f"CREATE ROLE {role} SUPERUSER LOGIN")
    with database_alias("pg", {**postgres, "USER": role}):
        yield connections["pg"]


@pytest.fixture(autouse=True)
def _may_connect(django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock():
        yield


def run(connection: BaseDatabaseWrapper, statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


@pytest.mark.fault
@pytest.mark.attack
@pytest.mark.parametrize("end", ["close", "killed"])
def test_a_lock_is_kept_until_the_connection_ends(
    pg: BaseDatabaseWrapper,
    end: str,
) -> None:
    with suppress(OperationalError), transaction.atomic("pg"):
        with lock("order:1"):
            run(pg, "SELECT 1")
        assert not is_free("order:1")
        if end == "close":
            pg.close()
            assert is_free("order:1")
        else:
            run(pg, "SELECT pg_terminate_backend(pg_backend_pid())")
    assert is_free("order:1")


@pytest.mark.attack
@pytest.mark.parametrize("level", ["read committed", "repeatable read", "serializable"])
@pytest.mark.parametrize("where", ["role", "transaction"])
def test_the_isolation_level_is_that_of_the_server(
    pg: BaseDatabaseWrapper, level: str, where: str
) -> None:
    if where == "role":
        run(pg, f"ALTER ROLE CURRENT_USER SET default_transaction_isolation = '{level}'")
        pg.close()
    is_seen = level == "read committed"
    with transaction.atomic("pg"):
        if where == "transaction":
            run(pg, f"SET TRANSACTION ISOLATION LEVEL {level}")
        assert sees_commits(pg) is is_seen
        if is_seen:
            with lock("order:1"):
                pass
        else:
            with pytest.raises(InvalidRedlock, match="open transaction of 'pg'"):
                lock("order:1").acquire()

"""The servers of the scenarios: those of other tests, and this package's locks on them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from redlock_django.locking.services import locks
from tests.contract.conftest import databases, migrated_postgres, postgres_tables
from tests.live.linked import linked
from tests.timeouts import generous_timeouts

if TYPE_CHECKING:
    from pytest_django import Settings
    from redis import Redis

    from redlock_django.testing.masters import LocalMaster

__all__ = ["databases", "migrated_postgres", "postgres_tables"]

IN_POSTGRES = {
    "BACKEND": "redlock_django.backends.database.DatabaseBackend",
    "DATABASE": "pg",
    "DATABASE_TIMEOUT": 30,
}


def on(masters: list[LocalMaster]) -> dict[str, Any]:
    """Return the settings of an alias whose locks are on these masters."""
    urls = [master.url for master in masters]
    return {"MASTERS": urls, "RESTART_DELAY": 0, "MAX_HOLD": 10, **generous_timeouts(1.0)}


@pytest.fixture
def redis(masters: list[LocalMaster]) -> Iterator[Redis]:
    """Return a client of one server, on which the historical locks are."""
    with masters[4].client() as client:
        yield client


@pytest.fixture
def ours(masters: list[LocalMaster], settings: Settings) -> Iterator[None]:
    """Keep this package's locks on three masters."""
    settings.REDLOCK = {"default": on(masters[:3])}
    linked()
    yield
    locks.close()


@pytest.fixture
def sql(postgres_tables: None, postgres: dict[str, Any]) -> Iterator[psycopg.Connection]:
    """Return a client of PostgreSQL in autocommit."""
    server = {name: postgres[name.upper()] for name in ("host", "port", "user")}
    with closing(psycopg.connect(**server, dbname="contract", autocommit=True)) as client:
        yield client

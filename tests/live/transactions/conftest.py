"""Databases for locks that are transactions: "pg", and MariaDB if it is installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from django.db import connections

from redlock_django.locking.transaction_lock import advisory_key
from redlock_django.models import IdempotencyRecord
from testproject.shop.models import Order
from tests.aliases import database_alias, new_database
from tests.conftest import installed
from tests.postgres import local_pgbouncer

NAME = "transactions"


@pytest.fixture(scope="module")
def databases(postgres: dict[str, Any], django_db_blocker: Any) -> Iterator[None]:
    """Add the alias "pg", a database of its own with the table of orders."""
    with (
        new_database(postgres, NAME) as entry,
        django_db_blocker.unblock(),
        database_alias("pg", entry, tables=[Order, IdempotencyRecord]),
    ):
        yield


@pytest.fixture
def pg(databases: None) -> Iterator[str]:
    delete_orders("pg")
    yield "pg"
    connections["pg"].close()


def delete_orders(alias: str) -> None:
    with connections[alias].cursor() as cursor:  # without the tables that refer to this one
        cursor.execute("DELETE FROM shop_order")


@pytest.fixture
def holder(pg: str, postgres: dict[str, Any]) -> Iterator[psycopg.Connection]:
    """Return another client of the database, inside a transaction."""
    server = {name: postgres[name.upper()] for name in ("host", "port", "user")}
    with closing(psycopg.connect(**server, dbname=NAME)) as client:
        yield client


@pytest.fixture
def pgbouncer(pg: str, postgres: dict[str, Any]) -> Iterator[None]:
    """Add "pooled" and "by_statement", the same database behind PgBouncer in these modes."""
    address = f"host=127.0.0.1 port={postgres['PORT']} user=postgres"
    by_statement = f"by_statement = {address} dbname={NAME} pool_mode=statement\n"
    with installed(local_pgbouncer(postgres["PORT"], by_statement)) as pooler:
        entry = {**postgres, "PORT": pooler.port}
        with (
            database_alias("pooled", {**entry, "NAME": NAME}),
            database_alias("by_statement", {**entry, "NAME": "by_statement"}),
        ):
            yield


@pytest.fixture(params=["pg", pytest.param("maria", id="mariadb")])
def alias(request: pytest.FixtureRequest, django_db_blocker: Any) -> Iterator[str]:
    """Return a database with the table of orders."""
    if request.param == "pg":
        yield request.getfixturevalue("pg")
        return
    entry = request.getfixturevalue("mysql")
    with django_db_blocker.unblock(), database_alias("maria", entry, tables=[Order]):
        yield "maria"


def hold(holder: psycopg.Connection, resource: str = "order:1") -> None:
    holder.execute("SELECT pg_advisory_xact_lock(%s)", [advisory_key(resource)])


def is_free(holder: psycopg.Connection, resource: str = "order:1") -> bool:
    row = holder.execute("SELECT pg_try_advisory_xact_lock(%s)", [advisory_key(resource)])
    (free,) = row.fetchone() or ()
    holder.rollback()
    return bool(free)

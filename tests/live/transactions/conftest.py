"""Databases for locks that are transactions: "pg", and MariaDB if it is installed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any

import psycopg
import pytest
from django.db import OperationalError, connections

from redlock_django.locking.transaction_lock import advisory_key
from redlock_django.models import IdempotencyRecord
from redlock_django.testing.processes import ProcessGroup
from testproject.shop.models import Order
from tests.ports import free_port
from tests.waiting import until


@contextmanager
def database_alias(alias: str, entry: dict[str, Any]) -> Iterator[None]:
    connections.settings[alias] = {**connections.settings["default"], "OPTIONS": {}, **entry}
    connections.settings[alias]["ATOMIC_REQUESTS"] = False
    try:
        yield
    finally:
        connections[alias].close()
        del connections[alias], connections.settings[alias]


@pytest.fixture(scope="module")
def databases(postgres: dict[str, Any], django_db_blocker: Any) -> Iterator[None]:
    """Add the alias "pg", a database of its own with the table of orders."""
    with psycopg.connect(_dsn(postgres), autocommit=True) as server:
        server.execute("CREATE DATABASE transactions")
        with (
            django_db_blocker.unblock(),
            database_alias("pg", {**postgres, "NAME": "transactions"}),
        ):
            with connections["pg"].schema_editor() as editor:
                editor.create_model(Order)
                editor.create_model(IdempotencyRecord)
            yield
        server.execute("DROP DATABASE transactions WITH (FORCE)")


@pytest.fixture
def pg(databases: None) -> Iterator[str]:
    delete_orders("pg")
    yield "pg"
    connections["pg"].close()


def delete_orders(alias: str) -> None:
    with connections[alias].cursor() as cursor:  # without the tables that refer to this one
        cursor.execute("DELETE FROM shop_order")


def _dsn(entry: dict[str, Any], name: str = "postgres") -> str:
    return f"host={entry['HOST']} port={entry['PORT']} user={entry['USER']} dbname={name}"


@pytest.fixture
def holder(pg: str, postgres: dict[str, Any]) -> Iterator[psycopg.Connection]:
    """Return another client of the database, inside a transaction."""
    with closing(psycopg.connect(_dsn(postgres, "transactions"))) as client:
        yield client


@pytest.fixture
def pgbouncer(pg: str, postgres: dict[str, Any]) -> Iterator[None]:
    """Add "pooled" and "by_statement", the same database behind PgBouncer in these modes."""
    program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip("PgBouncer is not installed (apt-get install pgbouncer)")
    port = free_port()
    target = f"host={postgres['HOST']} port={postgres['PORT']} dbname=transactions"
    with ProcessGroup("redlock-pgbouncer-") as processes, ExitStack() as stack:
        processes.directory.chmod(0o755)
        config = processes.directory / "pgbouncer.ini"
        config.write_text(
            f"[databases]\npooled = {target} user=postgres pool_mode=transaction\n"
            f"by_statement = {target} user=postgres pool_mode=statement\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nauth_type = any\n"
            "unix_socket_dir =\n"
        )
        user = ["-u", "nobody"] if os.geteuid() == 0 else []
        with (processes.directory / "log").open("wb") as output:
            processes.spawn([program, *user, str(config)], stderr=output, stdout=output)
        for name in ("pooled", "by_statement"):
            stack.enter_context(database_alias(name, {**postgres, "NAME": name, "PORT": str(port)}))

        def answers() -> bool:
            with suppress(OperationalError):
                connections["pooled"].ensure_connection()
            return connections["pooled"].connection is not None

        until(answers, "PgBouncer answers")
        yield


@pytest.fixture(params=["pg", pytest.param("maria", id="mariadb")])
def alias(request: pytest.FixtureRequest, django_db_blocker: Any) -> Iterator[str]:
    """Return a database with the table of orders."""
    if request.param == "pg":
        yield request.getfixturevalue("pg")
        return
    with django_db_blocker.unblock(), database_alias("maria", request.getfixturevalue("mysql")):
        with connections["maria"].schema_editor() as editor:
            editor.create_model(Order)
        yield "maria"
        with connections["maria"].cursor() as cursor:
            cursor.execute("DROP TABLE shop_order")


def hold(holder: psycopg.Connection, resource: str = "order:1") -> None:
    holder.execute("SELECT pg_advisory_xact_lock(%s)", [advisory_key(resource)])


def is_free(holder: psycopg.Connection, resource: str = "order:1") -> bool:
    row = holder.execute("SELECT pg_try_advisory_xact_lock(%s)", [advisory_key(resource)])
    (free,) = row.fetchone() or ()
    holder.rollback()
    return bool(free)

"""Every test of the contract runs against every store, called from threads and from a loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections
from django.db.migrations.executor import MigrationExecutor
from kazoo.client import KazooClient

from redlock_django.backends.database.dialects import LOCKS, SERVERS, WAITERS
from redlock_django.backends.database.settings import DatabaseSettings
from redlock_django.locking.services import locks
from tests.aliases import database_alias, new_database
from tests.conftest import installed
from tests.contract.stores import (
    CALLERS,
    DATABASES,
    STORES,
    Database,
    Postgres,
    Sqlite,
    Store,
    SyncCaller,
    calling,
    change,
    zookeeper_of,
)
from tests.postgres import local_pgbouncer
from tests.wire.proxy import FaultProxy
from tests.zookeeper import ZooKeeperServer

if TYPE_CHECKING:
    from pytest_django import Settings

    from redlock_django.backends.zookeeper.backend import ZooKeeperBackend


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the async calls of MariaDB and PostgreSQL as nightly: they are sync ones in a thread.

    Those of SQLite are not marked, nor those that wait for PostgreSQL, which wakes a loop.
    """
    for item in items:
        stores = set(getattr(getattr(item, "callspec", None), "_idlist", ()))
        waits = "wait" in item.name or "served" in item.name
        if {"mariadb", "async"} <= stores or ({"postgres", "async"} <= stores and not waits):
            item.add_marker(pytest.mark.nightly)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the limits of time for databases, which a busy machine may exceed."""
    monkeypatch.setitem(DatabaseSettings.DEFAULTS, "DATABASE_TIMEOUT", 10)


@pytest.fixture
def databases() -> Iterator[Callable[[str, dict[str, Any]], None]]:
    """Return a function that adds an alias to DATABASES."""
    with ExitStack() as stack:
        yield lambda alias, entry: stack.enter_context(database_alias(alias, entry))


@pytest.fixture(scope="module")
def migrated_postgres(postgres: dict[str, Any], django_db_blocker: Any) -> Iterator[None]:
    """Add the alias "pg", a PostgreSQL database of its own with the tables of the app.

    Other tests create the same tables in the default database of the server.
    """
    with (
        new_database(postgres, "contract") as entry,
        django_db_blocker.unblock(),
        database_alias("pg", entry),
    ):
        migrate("pg")
        yield


def migrate(alias: str) -> None:
    """Create the tables of the app."""
    executor = MigrationExecutor(connections[alias])
    targets = [node for node in executor.loader.graph.leaf_nodes() if "redlock" in node[0]]
    executor.migrate(targets)


@pytest.fixture
def postgres_tables(migrated_postgres: None, database_access: None) -> None:
    """Empty the tables of locks in PostgreSQL."""
    with connections["pg"].cursor() as cursor:
        cursor.execute(f"TRUNCATE {LOCKS}, {SERVERS}, {WAITERS}")


@pytest.fixture
def pooled(
    postgres_tables: None, databases: Callable[[str, dict[str, Any]], None]
) -> Iterator[None]:
    """Add the alias "pooled": the same database behind PgBouncer, with two connections to it."""
    entry = connections.settings["pg"]
    with installed(local_pgbouncer(entry["PORT"])) as pooler:
        databases("pooled", {**entry, "PORT": pooler.port})
        yield
        locks.close()


@pytest.fixture(scope="module")
def migrated_mysql(mysql: dict[str, Any], django_db_blocker: Any) -> Iterator[None]:
    """Add the alias "maria", a MariaDB database of its own with the tables of the app."""
    with (
        new_database(mysql, "contract") as entry,
        django_db_blocker.unblock(),
        database_alias("maria", entry),
    ):
        migrate("maria")
        yield


@pytest.fixture
def mysql_tables(migrated_mysql: None, database_access: None) -> None:
    """Empty the tables of locks in MariaDB."""
    with connections["maria"].cursor() as cursor:
        for table in (LOCKS, SERVERS, WAITERS):
            cursor.execute(f"DELETE FROM {table}")


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, settings: Settings) -> Store:
    return STORES[request.param](request, settings)


@pytest.fixture
def sqlite(request: pytest.FixtureRequest, settings: Settings) -> Database:
    """Keep locks in a file of SQLite."""
    return Sqlite(request, settings)


@pytest.fixture
def postgres_store(request: pytest.FixtureRequest, settings: Settings) -> Database:
    """Keep locks in PostgreSQL."""
    return Postgres(request, settings)


@pytest.fixture(params=DATABASES)
def database(request: pytest.FixtureRequest, settings: Settings) -> Iterator[Database]:
    """Keep locks in each database."""
    yield request.param(request, settings)
    locks.close()


@pytest.fixture(params=DATABASES[1:])
def server(request: pytest.FixtureRequest, settings: Settings) -> Database:
    """Keep locks in each database server."""
    store: Database = request.param(request, settings)
    return store


@pytest.fixture(params=CALLERS)
def caller(request: pytest.FixtureRequest, store: Store) -> Iterator[SyncCaller]:
    with calling(request.param, store) as caller:
        yield caller


@pytest.fixture
def client(zookeeper: ZooKeeperServer) -> Iterator[KazooClient]:
    """Another client of the ZooKeeper server."""
    client = KazooClient(hosts=zookeeper.host)
    client.start()
    yield client
    client.stop()
    client.close()


@pytest.fixture
def proxy(store: Store, settings: Settings, zookeeper: ZooKeeperServer) -> Iterator[FaultProxy]:
    """A proxy before the ZooKeeper server, for the session of this process."""
    with FaultProxy(zookeeper.port) as proxy:
        change(settings, HOSTS=[f"127.0.0.1:{proxy.port}"])
        yield proxy
        locks.close()


@pytest.fixture
def other(store: Store, settings: Settings) -> ZooKeeperBackend:
    """The same store, as another process uses it."""
    settings.REDLOCK = {**settings.REDLOCK, "other": settings.REDLOCK["default"]}
    return zookeeper_of("other")

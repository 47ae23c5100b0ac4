"""Checks of locks in databases and in ZooKeeper: what these stores do not promise as they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from django.core import checks
from django.core.checks import CheckMessage, Error
from django.db import router

from redlock_django.backends.database.settings import DatabaseSettings
from redlock_django.checks.aliases import valid_aliases
from redlock_django.models import LockRow

if TYPE_CHECKING:  # it needs kazoo
    from redlock_django.backends.zookeeper.settings import ZooKeeperSettings


def check_routers(**_: Any) -> list[CheckMessage]:
    """Return E044 where a router keeps the tables of locks out of their database."""
    return [
        Error(
            f"REDLOCK[{alias!r}]: a router of DATABASE_ROUTERS does not allow the tables of locks "
            f"in the database {store.database!r}, so 'manage.py migrate' does not create them.",
            hint="Allow the app 'redlock_django' there in allow_migrate(), or set DATABASE to the "
            "database that the router chooses.",
            id="redlock_django.E044",
        )
        for alias, store in stores_in_databases()
        if not store.sqlite_file and not router.allow_migrate_model(store.database, LockRow)
    ]


def check_sqlite(**_: Any) -> list[CheckMessage]:
    """Return E020 for locks of a database in memory, W045 for SQLite."""
    messages: list[CheckMessage] = []
    for alias, store in stores_in_databases():
        if store.is_in_memory:
            message = (
                f"REDLOCK[{alias!r}]: the database {store.database!r} is in the memory of one "
                "process, so its locks do not exclude other processes."
            )
            hint = "Set DATABASE to a database that all processes share."
            messages.append(Error(message, hint=hint, id="redlock_django.E020"))
        elif store.sqlite_file:
            messages.append(
                checks.Warning(
                    f"REDLOCK[{alias!r}]: locks are in {store.sqlite_file}, a file of SQLite. They "
                    "exclude the processes of this machine only, and not those of another "
                    "container; one process at a time can write. A lock ends after its TTL "
                    "however its holder ends; a crash of the machine may forget it.",
                    hint="Use PostgreSQL or Redis servers if the site runs on several machines. "
                    "Never put the file on a network file system. Otherwise silence this check.",
                    id="redlock_django.W045",
                )
            )
    return messages


def check_zookeeper(**_: Any) -> list[CheckMessage]:
    """Return W046 for nodes that every client may delete, W047 for fewer than three servers."""
    messages: list[CheckMessage] = []
    for options in valid_aliases():
        if options.backend_class.__name__ != "ZooKeeperBackend":
            continue
        alias, store = options.alias, cast("ZooKeeperSettings", options.store)
        if store.has_open_acl:
            messages.append(
                checks.Warning(
                    f"REDLOCK[{alias!r}]: every client of the ZooKeeper servers can delete locks.",
                    hint="Set auth_data or sasl_options in OPTIONS, and then the nodes belong to "
                    "these credentials; or set default_acl.",
                    id="redlock_django.W046",
                )
            )
        if len(store.hosts) < 3:
            messages.append(
                checks.Warning(
                    f"REDLOCK[{alias!r}]: HOSTS names {len(store.hosts)} of the ZooKeeper servers: "
                    "while it is down, no lock can be acquired, and held ones are lost.",
                    hint="Use an ensemble of three or five servers, and name all of them.",
                    id="redlock_django.W047",
                )
            )
    return messages


def stores_in_databases() -> Iterator[tuple[str, DatabaseSettings]]:
    """Yield the aliases whose locks are in a database, each with its settings."""
    for options in valid_aliases():
        if isinstance(options.store, DatabaseSettings):
            yield options.alias, options.store

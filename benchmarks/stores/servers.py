"""The servers of each store, and how one of them dies.

No server waits for its disk, so a restarted one still has what the kernel kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

DATABASE = {"default": {"BACKEND": "redlock_django.backends.database.DatabaseBackend"}}
ZOOKEEPER = "redlock_django.backends.zookeeper.ZooKeeperBackend"


@dataclass(frozen=True)
class Place:
    """The settings of Django for clients of a store, and its peers, which use `addresses`."""

    settings: dict[str, Any]
    peers: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True)
class Store:
    """A store whose servers run.

    `kill` kills one of them, and returns what starts it again; a file has none.
    """

    place: Place
    kill: Callable[[], Callable[[], object]] | None = None
    is_alone: bool = False


@contextmanager
def redis(many: int) -> Iterator[Store]:
    """Start masters without persistence."""
    from redlock_django.testing import local_masters

    with local_masters(many) as masters:
        urls = tuple(master.url for master in masters)
        section = {"MASTERS": urls, "RESTART_DELAY": 0}
        peers = ("redis-py's Lock",) if many == 1 else ()
        place = Place({"REDLOCK": {"default": section}}, peers, urls)

        def kill() -> Callable[[], object]:
            masters[-1].kill()
            return masters[-1].start

        yield Store(place, kill, is_alone=many == 1)


@contextmanager
def database(vendor: str) -> Iterator[Store]:
    """Start a PostgreSQL or MariaDB server."""
    from redlock_django.testing.processes import ProcessGroup
    from tests.live.campaign.database_servers import MariaDB, PostgreSQL

    with ProcessGroup("redlock-stores-") as processes, ExitStack() as stack:
        server = {"postgresql": PostgreSQL, "mariadb": MariaDB}[vendor](None, processes)
        stack.callback(server.stop)
        settings = {"DATABASES": {"default": server.entry}, "REDLOCK": DATABASE}
        peers = ("django-pglock",) if vendor == "postgresql" else ()

        def kill() -> Callable[[], object]:
            server.crash()
            return server.start

        yield Store(Place(settings, peers), kill, is_alone=True)


@contextmanager
def sqlite() -> Iterator[Store]:
    """Make a directory for a file of SQLite."""
    from redlock_django.testing.processes import ProcessGroup

    with ProcessGroup("redlock-stores-") as processes:
        entry = {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": str(processes.directory / "site.sqlite3"),
        }
        yield Store(Place({"DATABASES": {"default": entry}, "REDLOCK": DATABASE}))


@contextmanager
def zookeeper(many: int) -> Iterator[Store]:
    """Start ZooKeeper servers; the leader is killed."""
    from tests.zookeeper import local_zookeeper

    with local_zookeeper(many) as servers:
        hosts = tuple(server.host for server in servers)

        def kill() -> Callable[[], object]:
            """Kill the leader."""
            leader = next((one for one in servers if b"Mode: leader" in one.ask()), servers[0])
            leader.kill()
            return leader.start

        section = {"BACKEND": ZOOKEEPER, "HOSTS": hosts}
        place = Place({"REDLOCK": {"default": section}}, ("kazoo's Lock",), hosts)
        yield Store(place, kill, is_alone=many == 1)


STORES: Mapping[str, tuple[str, Callable[[], AbstractContextManager[Store]]]] = {
    "redis5": ("five Redis masters", lambda: redis(5)),
    "redis1": ("one Redis master", lambda: redis(1)),
    "postgresql": ("PostgreSQL", lambda: database("postgresql")),
    "mariadb": ("MariaDB", lambda: database("mariadb")),
    "sqlite": ("SQLite", sqlite),
    "zookeeper1": ("ZooKeeper, one server", lambda: zookeeper(1)),
    "zookeeper3": ("ZooKeeper, three servers", lambda: zookeeper(3)),
}

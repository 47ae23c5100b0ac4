"""The servers of each store, and how one of them dies.

No server waits for its disk, so a restarted one still has what the kernel kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks.contenders import Place
from benchmarks.site import section
from redlock_django.testing import LocalMaster, local_masters
from redlock_django.testing.processes import ProcessGroup

DATABASE = {"default": {"BACKEND": "redlock_django.backends.database.DatabaseBackend"}}
ZOOKEEPER = "redlock_django.backends.zookeeper.ZooKeeperBackend"


@dataclass(frozen=True)
class Store:
    """A store whose servers run, and the contenders that use it.

    `kill` kills one of them, and returns what starts it again; a file has none.
    """

    place: Place
    contenders: tuple[str, ...] = ("ours",)
    kill: Callable[[], Callable[[], object]] | None = None
    is_alone: bool = False
    masters: tuple[LocalMaster, ...] = ()


@contextmanager
def redis(many: int, **more: Any) -> Iterator[Store]:
    """Start masters without persistence; `more` are settings of the alias."""
    with local_masters(many) as masters:
        addresses = tuple(("127.0.0.1", master.port) for master in masters)
        place = Place(section(addresses, **more), addresses)

        def kill() -> Callable[[], object]:
            masters[-1].kill()
            return masters[-1].start

        contenders = ("ours", "redis-py's Lock") if many == 1 else ("ours",)
        yield Store(place, contenders, kill, is_alone=many == 1, masters=tuple(masters))


@contextmanager
def database(vendor: str) -> Iterator[Store]:
    """Start a PostgreSQL or MariaDB server."""
    from tests.live.campaign.stores import MariaDB, PostgreSQL

    with ProcessGroup("redlock-stores-") as processes, ExitStack() as stack:
        server = {"postgresql": PostgreSQL, "mariadb": MariaDB}[vendor](None, processes)
        stack.callback(server.stop)
        place = Place({"DATABASES": {"default": server.entry}, "REDLOCK": DATABASE})
        others = ("transaction_lock()", "pg_advisory_lock", "select_for_update()")
        contenders = ("ours", *others) if vendor == "postgresql" else ("ours",)

        def kill() -> Callable[[], object]:
            server.crash()
            return server.start

        yield Store(place, contenders, kill, is_alone=True)


@contextmanager
def sqlite() -> Iterator[Store]:
    """Make a directory for a file of SQLite."""
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
        hosts = [server.host for server in servers]

        def kill() -> Callable[[], object]:
            leader = next((one for one in servers if b"Mode: leader" in one.ask()), servers[0])
            leader.kill()
            return leader.start

        settings = {"REDLOCK": {"default": {"BACKEND": ZOOKEEPER, "HOSTS": hosts}}}
        place = Place(settings, hosts=",".join(hosts))
        yield Store(place, ("ours", "kazoo's Lock"), kill, is_alone=many == 1)


STORES: Mapping[str, tuple[str, Callable[[], AbstractContextManager[Store]]]] = {
    "redis5": ("five Redis masters", lambda: redis(5)),
    "redis1": ("one Redis", lambda: redis(1)),
    "postgresql": ("PostgreSQL", lambda: database("postgresql")),
    "mariadb": ("MariaDB", lambda: database("mariadb")),
    "sqlite": ("SQLite", sqlite),
    "zookeeper1": ("ZooKeeper, one server", lambda: zookeeper(1)),
    "zookeeper3": ("ZooKeeper, three servers", lambda: zookeeper(3)),
}

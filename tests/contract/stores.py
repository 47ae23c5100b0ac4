"""The stores under the contract suite, and its two ways to call them: sync and async.

A new store adds a class here and its name to STORES; the tests do not change.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from statistics import median_low
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from django.db import connections
from kazoo.client import KazooClient

from redlock_django.backends.database.backend import DatabaseBackend
from redlock_django.backends.database.dialects import LOCKS, SECOND
from redlock_django.backends.memory.backend import MemoryBackend
from redlock_django.backends.zookeeper.backend import ZooKeeperBackend
from redlock_django.backends.zookeeper.paths import MIN_HOLD, data_of
from redlock_django.exceptions import ResourceLocked, StoreUnavailable
from redlock_django.locking.services import locks
from redlock_django.wire.clock import clock
from tests.inspecting import look
from tests.live.linked import linked
from tests.live.replaced_scripts import lengthen_turns
from tests.looking import looking_at
from tests.programs import Program, started
from tests.timeouts import generous_timeouts
from tests.waiting import until

if TYPE_CHECKING:
    from django.db.backends.utils import CursorWrapper
    from pytest_django import Settings

    from redlock_django.backends.base import BaseBackend
    from redlock_django.engine.validity import Lease, LeaseState

HOLDER = '{"host":"web1","pid":7,"path":"/orders/1/pay/"}'
T = TypeVar("T")


def database_of(alias: str = "default") -> DatabaseBackend:
    """Return the store of an alias, which is a database."""
    backend = locks[alias].backend
    assert isinstance(backend, DatabaseBackend)
    return backend


def answers() -> bool:
    """Return whether the database of the default alias answers in time."""
    try:
        database_of().connections.run(lambda cursor: None)
    except StoreUnavailable:  # on a busy machine, a second is short
        return False
    return True


def listen(backend: DatabaseBackend) -> None:
    """Start to listen for notifications of PostgreSQL; a store does it when a caller waits."""
    assert backend.listener is not None
    backend.listener.watch("another waiter", print)
    until(lambda: backend.listener and backend.listener.is_listening, what="it listens")


def zookeeper_of(alias: str = "default") -> ZooKeeperBackend:
    """Return the store of an alias, which is ZooKeeper."""
    backend = locks[alias].backend
    assert isinstance(backend, ZooKeeperBackend)
    return backend


def kazoo_of(backend: ZooKeeperBackend) -> KazooClient:
    """Return the client of kazoo that a store uses."""
    return backend.session._client


def change(settings: Settings, **section: Any) -> None:
    """Change settings of the default alias, which is then the only one."""
    settings.REDLOCK = {"default": {**settings.REDLOCK["default"], **section}}


def child_of(
    settings: Settings, lines: str, ready: str = "", **section: float
) -> AbstractContextManager[Program]:
    """Start a process with the settings of this one and of `section`."""
    redlock = {"default": {**settings.REDLOCK["default"], **section}}
    return started(lines, ready=ready, flags=("-W", "ignore"), redlock=redlock)


def taken(*resources: str, using: str = "default", ttl: float = 30) -> bool:
    """Return whether another client holds one of these resources."""
    backend = locks[using].backend
    try:
        backend.release(backend.acquire(resources, ttl, 0, HOLDER))
    except ResourceLocked:
        return True
    return False


def granted(using: str = "default", resource: str = "order:1") -> bool:
    """Return whether a lock is granted now: no other client holds it, and its store answers."""
    try:
        return not taken(resource, using=using, ttl=1)
    except StoreUnavailable:
        return False


class Store:
    """A store in a known, empty state, as `settings.REDLOCK["default"]`."""

    shown: str
    """Part of what `redlock_status` prints about the servers of the store."""

    def __init__(self, request: pytest.FixtureRequest, settings: Settings) -> None:
        settings.REDLOCK = {"default": self.section(request)}

    @property
    def backend(self) -> BaseBackend:
        """The store as this process uses it."""
        return locks["default"].backend

    def section(self, request: pytest.FixtureRequest) -> dict[str, Any]:
        """Return the settings of the alias; `request` gives the fixtures of its servers."""
        raise NotImplementedError

    def pass_time(self, seconds: float) -> None:
        """Make locks and minimum holds end so much earlier, as if the time had been waited for."""
        raise NotImplementedError

    def waiters(self, name: str) -> int:
        """Return how many callers wait for a held name, as a majority of its servers knows.

        A caller that fewer have refused may still win at once; a server that is connected later
        does not know it.
        """
        held = look(self.backend, [name]).locks
        return held[0].waiters if held else 0

    def keep_turns(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Make the turn of a waiter last until it asks, however busy this machine is."""


MEMORY = "redlock_django.backends.memory.MemoryBackend"


class Memory(Store):
    """Masters in this process, whose time can be set."""

    shown = "memory"

    def section(self, request: pytest.FixtureRequest) -> dict[str, Any]:
        masters = [f"redis://10.0.0.{number}:6379/0" for number in range(1, 6)]
        return {"BACKEND": MEMORY, "MASTERS": masters, **generous_timeouts(1)}

    def pass_time(self, seconds: float) -> None:
        MemoryBackend.advance(seconds)

    def waiters(self, name: str) -> int:
        backend: Any = self.backend
        queue = backend.deployment.queue(name)
        return median_low(len(master.keyspace.sorted_set(queue)) for master in backend.masters)

    def keep_turns(self, monkeypatch: pytest.MonkeyPatch) -> None:
        lengthen_turns(monkeypatch, 10)
        monkeypatch.setattr("redlock_django.engine.pauses.TURN", 10_000)


SHORTEN = """
for _, key in ipairs(redis.call("KEYS", "*")) do
    local left = redis.call("PTTL", key)
    if left > 0 then redis.call("PEXPIRE", key, left - ARGV[1]) end
end"""


class Redis(Store):
    """Five real masters, whose keys expire earlier where a test would wait."""

    shown = "127.0.0.1:"

    def __init__(self, request: pytest.FixtureRequest, settings: Settings) -> None:
        super().__init__(request, settings)
        # On a busy machine, a master that runs may take longer than the default to report.
        patch = request.getfixturevalue("monkeypatch")
        patch.setattr("redlock_django.backends.redis.backend.INSPECTION_TIMEOUT", 60.0)
        linked()

    def section(self, request: pytest.FixtureRequest) -> dict[str, Any]:
        self._masters = request.getfixturevalue("masters")
        return {
            "MASTERS": [master.url for master in self._masters],
            "RESTART_DELAY": 0,
            **generous_timeouts(1),
        }

    def pass_time(self, seconds: float) -> None:
        for master in self._masters:
            looking_at(master).eval(SHORTEN, 0, round(seconds * 1000))

    def waiters(self, name: str) -> int:
        backend: Any = self.backend
        queue = backend.deployment.queue(name)
        return median_low(int(looking_at(master).zcard(queue)) for master in self._masters)

    def keep_turns(self, monkeypatch: pytest.MonkeyPatch) -> None:
        lengthen_turns(monkeypatch, 10)
        monkeypatch.setattr("redlock_django.engine.pauses.TURN", 10_000)


DATABASE = "redlock_django.backends.database.DatabaseBackend"


class Database(Store):
    """Tables whose times are moved where a test would wait; `alias` is that of DATABASES."""

    alias: str
    number_of_connection: str
    """A statement that returns the number which the server gave to a connection."""
    number_of_waits: str
    """A statement that returns last how many statements wait for rows."""

    @property
    def backend(self) -> DatabaseBackend:
        return database_of()

    def number(self, cursor: CursorWrapper) -> int:
        """Return the number that the server gave to a connection."""
        cursor.execute(self.number_of_connection)
        return int(cursor.fetchone()[0])

    def waiting(self) -> int:
        """Return how many statements wait for rows."""
        with connections[self.alias].cursor() as cursor:
            cursor.execute(self.number_of_waits)
            return int(cursor.fetchone()[-1])

    def pass_time(self, seconds: float) -> None:
        def pass_time(cursor: CursorWrapper) -> None:
            passed = [round(seconds * SECOND)]
            cursor.execute(f"UPDATE {LOCKS} SET expires_at = expires_at - %s", passed)

        self.backend.connections.run(pass_time)

    def keep_turns(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(DatabaseBackend, "turn", 10.0)


class Sqlite(Database):
    """A file of SQLite."""

    shown, alias = "SQLite", "locks"

    def section(self, request: pytest.FixtureRequest) -> dict[str, Any]:
        request.getfixturevalue("database_access")
        path = request.getfixturevalue("tmp_path") / "site.sqlite3"
        request.getfixturevalue("databases")(
            self.alias, {"ENGINE": "django.db.backends.sqlite3", "NAME": str(path)}
        )
        return {"BACKEND": DATABASE, "DATABASE": self.alias, "DATABASE_TIMEOUT": 10}


class Postgres(Database):
    """Tables of PostgreSQL."""

    shown, alias = "PostgreSQL", "pg"
    number_of_connection = "SELECT pg_backend_pid()"
    number_of_waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"

    def section(self, request: pytest.FixtureRequest) -> dict[str, Any]:
        request.getfixturevalue("postgres_tables")
        return {"BACKEND": DATABASE, "DATABASE": self.alias, "DATABASE_TIMEOUT": 10}


class MariaDB(Database):
    """Tables of MariaDB."""

    shown, alias = "MariaDB", "maria"
    number_of_connection = "SELECT CONNECTION_ID()"
    number_of_waits = "SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'"

    def section(self, request: pytest.FixtureRequest) -> dict[str, Any]:
        request.getfixturevalue("mysql_tables")
        return {"BACKEND": DATABASE, "DATABASE": self.alias, "DATABASE_TIMEOUT": 10}


DATABASES: list[Any] = [
    pytest.param(Sqlite, id="sqlite"),
    pytest.param(Postgres, id="postgres", marks=pytest.mark.postgres),
    pytest.param(MariaDB, id="mariadb"),
]
"""The databases, as parameters of a test."""

ZOOKEEPER = "redlock_django.backends.zookeeper.ZooKeeperBackend"


class ZooKeeper(Store):
    """A server shared by all tests; each has a tree of its own, and sets the time."""

    shown = "ZooKeeper"

    _passed = 0.0

    def __init__(self, request: pytest.FixtureRequest, settings: Settings) -> None:
        super().__init__(request, settings)
        request.addfinalizer(locks.close)
        self.backend.clock = self._clock
        self.backend.declare_new()

    def section(self, request: pytest.FixtureRequest) -> dict[str, Any]:
        server = request.getfixturevalue("zookeeper")
        return {
            "BACKEND": ZOOKEEPER,
            "HOSTS": [server.host],
            "ROOT": f"/{secrets.token_hex(4)}",
            "ZOOKEEPER_TIMEOUT": 10,
        }

    def _clock(self) -> float:
        return clock() + self._passed

    def pass_time(self, seconds: float) -> None:
        backend = zookeeper_of()
        # Otherwise the server would seem to hang.
        until(lambda: not backend.session._unanswered, "ZooKeeper has answered everything")
        self._passed += seconds
        self._shorten(backend, seconds)
        backend.session.look()

    def _shorten(self, backend: ZooKeeperBackend, seconds: float) -> None:
        """Make nodes without a session end earlier: these end by the time of the servers."""
        client, tree = backend.session._client, backend.session.tree
        assert client is not None
        for queue in client.get_children(tree.locks):
            for name in client.get_children(f"{tree.locks}/{queue}"):
                if MIN_HOLD in name:
                    path = f"{tree.locks}/{queue}/{name}"
                    ttl, _, value = client.get(path)[0].decode().partition(" ")
                    client.set(path, data_of(float(ttl) - seconds, value))


STORES: dict[str, type[Store]] = {
    "memory": Memory,
    "redis": Redis,
    "sqlite": Sqlite,
    "postgres": Postgres,
    "mariadb": MariaDB,
    "zookeeper": ZooKeeper,
}


def wait_for_waiters(store: Store, many: int) -> None:
    """Return when so many callers wait for "order:1"."""
    until(lambda: store.waiters("order:1") == many, f"{many} callers are in the queue")


class SyncCaller:
    """Calls a store as a thread does."""

    def __init__(self, store: Store) -> None:
        self.backend = store.backend

    def acquire(
        self,
        *resources: str,
        ttl: float = 30,
        wait: float = 0,
        holder: str = HOLDER,
        limit: int = 1,
    ) -> Lease:
        return self.backend.acquire(resources, ttl, wait, holder, limit)

    def extend(self, lease: Lease, ttl: float) -> tuple[LeaseState, Lease]:
        return self.backend.extend(lease, ttl)

    def release(self, lease: Lease) -> bool | None:
        return self.backend.release(lease)

    def hand_on(self, lease: Lease, ttl: float, holder: str) -> Lease:
        """Replace the token of a lease by one for a ticket."""
        return self.replace_token(lease, ttl, holder)

    def resume(self, handed: Lease, ttl: float = 30, holder: str = HOLDER) -> Lease:
        """Take the lease of a ticket."""
        return self.replace_token(replace(handed, home=None), ttl, holder)

    def replace_token(self, expected: Lease, ttl: float, holder: str) -> Lease:
        """Acquire the lock that has the token of a lease."""
        return self.backend.acquire(expected.names, ttl, 0.0, holder, expected.limit, expected)

    def start(self, *resources: str, wait: float, ttl: float = 30, limit: int = 1) -> Started:
        """Start to acquire, as another thread does."""
        return Started(lambda: self.acquire(*resources, ttl=ttl, wait=wait, limit=limit))

    def close(self) -> None:
        """Close what belongs to the caller."""


class AsyncCaller(SyncCaller):
    """Calls a store as tasks of one event loop do; the loop runs in a thread of its own."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def acquire(
        self,
        *resources: str,
        ttl: float = 30,
        wait: float = 0,
        holder: str = HOLDER,
        limit: int = 1,
    ) -> Lease:
        return self.run(self.backend.aacquire(resources, ttl, wait, holder, limit))

    def extend(self, lease: Lease, ttl: float) -> tuple[LeaseState, Lease]:
        return self.run(self.backend.aextend(lease, ttl))

    def release(self, lease: Lease) -> bool | None:
        return self.run(self.backend.arelease(lease))

    def replace_token(self, expected: Lease, ttl: float, holder: str) -> Lease:
        asked = expected.names, ttl, 0.0, holder, expected.limit, expected
        return self.run(self.backend.aacquire(*asked))

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and return its result."""
        return self.submit(coroutine).result(timeout=30)

    def close(self) -> None:
        self.run(self.backend.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


CALLERS: dict[str, type[SyncCaller]] = {"sync": SyncCaller, "async": AsyncCaller}


class Started:
    """A call that runs in a thread of its own."""

    def __init__(self, call: Callable[[], Lease]) -> None:
        self._done: Future[Lease] = Future()
        self._thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self._thread.start()

    def _run(self, call: Callable[[], Lease]) -> None:
        try:
            self._done.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised again in `lease`
            self._done.set_exception(error)

    @property
    def done(self) -> bool:
        return self._done.done()

    def lease(self) -> Lease:
        """Return the lease once it is granted; raises what the call raised."""
        return self._done.result(timeout=30)


@contextmanager
def calling(name: str, store: Store) -> Iterator[SyncCaller]:
    """Return a caller, closed at the end."""
    caller = CALLERS[name](store)
    try:
        yield caller
    finally:
        caller.close()

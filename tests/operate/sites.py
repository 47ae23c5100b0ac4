"""The stores under the tests of the admin and the commands, with locks that a test puts there.

What these tests show does not depend on the store. Votes, rivals and silent masters exist only
with several masters, and have tests of their own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest

from redlock_django.backends.database.backend import DatabaseBackend
from redlock_django.backends.database.dialects import LOCKS, SECOND, WAITERS
from redlock_django.backends.memory.backend import MemoryBackend
from redlock_django.engine.validity import fingerprint_of
from redlock_django.locking.services import locks
from redlock_django.operate.inspection import who_holds
from tests import inspecting
from tests.operate.commands import IN_MEMORY, add_waiters, memory, put
from tests.operate.planted import about_holder, free, plant_value

if TYPE_CHECKING:
    from django.db.backends.utils import CursorWrapper
    from pytest_django import Settings

    from redlock_django.engine.validity import Lease
    from redlock_django.testing.masters import LocalMaster


DATABASE = "redlock_django.backends.database.DatabaseBackend"

on_stores = pytest.mark.parametrize(
    "site", ["masters", pytest.param("database", marks=pytest.mark.nightly)], indirect=True
)
"""For pages of the admin: by day, tests/contract/ shows that a database answers as masters do."""


class Site:
    """Locks in a store; `servers` are the names under which the commands show it.

    `word` is what they call one of them.
    """

    servers: list[str]
    word = "master"

    def __init__(self, request: pytest.FixtureRequest, settings: Settings) -> None:
        """Make the store that of the alias "default"."""
        raise NotImplementedError

    def put(
        self,
        resource: str,
        *,
        token: str = "a",
        ttl: float = 60,
        holder: Mapping[str, Any] | None = None,
        **about: Any,
    ) -> str:
        """Store a lock with this holder, and return its fingerprint.

        Without `holder` it is a process of a shop, changed by `about`. Another hex digit as
        `token` makes it another lock.
        """
        if holder is None:
            holder = {**about_holder(), **about}
        return self._put(resource, token * 32, ttl, json.dumps(holder))

    def _put(self, resource: str, token: str, ttl: float, holder: str) -> str:
        raise NotImplementedError

    def free(self, resource: str) -> None:
        """Release a lock as its holder does."""
        raise NotImplementedError

    def add_waiters(self, resource: str, many: int) -> None:
        """Add so many clients that wait for a resource."""
        raise NotImplementedError

    def pass_time(self, seconds: float) -> None:
        """Advance the clock of the store."""
        raise NotImplementedError

    def holds(self, resource: str) -> bool:
        """Return whether the lock is held."""
        return bool(who_holds(resource).locks)


class MemorySite(Site):
    """Three masters in memory."""

    servers = ["m1:6379", "m2:6379", "m3:6379"]  # noqa: RUF012

    def __init__(self, request: pytest.FixtureRequest, settings: Settings) -> None:
        settings.REDLOCK = IN_MEMORY

    def _put(self, resource: str, token: str, ttl: float, holder: str) -> str:
        put(resource, f"{token} {holder}".encode(), ms=round(1000 * ttl))
        return fingerprint_of(token.encode())

    def free(self, resource: str) -> None:
        inspecting.free(memory(), resource)

    def add_waiters(self, resource: str, many: int) -> None:
        add_waiters(resource, many)

    def pass_time(self, seconds: float) -> None:
        MemoryBackend.advance(seconds)


class MastersSite(Site):
    """Five real masters."""

    def __init__(self, request: pytest.FixtureRequest, settings: Settings) -> None:
        self._masters: list[LocalMaster] = request.getfixturevalue("five")
        self.servers = [f"127.0.0.1:{master.port}" for master in self._masters]

    def _put(self, resource: str, token: str, ttl: float, holder: str) -> str:
        plant_value(self._masters, resource, f"{token} {holder}", ttl=ttl)
        return fingerprint_of(token.encode())

    def free(self, resource: str) -> None:
        free(self._masters, resource)

    def add_waiters(self, resource: str, many: int) -> None:
        with self._masters[0].client() as client:
            queue = {f"process {number}": float(number) for number in range(many)}
            client.zadd(f"redlock:queue:{resource}", queue)


class DatabaseSite(Site):
    """A file of SQLite beside the database of the tests, which is in memory."""

    servers = ["default"]  # noqa: RUF012
    word = "server"

    def __init__(self, request: pytest.FixtureRequest, settings: Settings) -> None:
        request.getfixturevalue("database_access")
        section = {"BACKEND": DATABASE, "DATABASE": self.servers[0], "DATABASE_TIMEOUT": 10}
        settings.REDLOCK = {"default": section}
        self._leases: dict[str, Lease] = {}

    @property
    def backend(self) -> DatabaseBackend:
        backend = locks["default"].backend
        assert isinstance(backend, DatabaseBackend)
        return backend

    def _execute(self, statement: str, *values: Any) -> None:
        def execute(cursor: CursorWrapper) -> None:
            cursor.execute(statement, values)

        self.backend.connections.run(execute)

    def _put(self, resource: str, token: str, ttl: float, holder: str) -> str:
        lease = self._leases[resource] = self.backend.acquire((resource,), ttl, 0, holder)
        return lease.fingerprint

    def free(self, resource: str) -> None:
        assert self.backend.release(self._leases.pop(resource))

    def add_waiters(self, resource: str, many: int) -> None:
        for number in range(many):
            self._execute(
                f"INSERT INTO {WAITERS} (name, resource, arrived_at, alive_until) "
                f"VALUES (%s, %s, 0, {SECOND * 10**10})",
                str(number),
                resource,
            )

    def pass_time(self, seconds: float) -> None:
        statement = f"UPDATE {LOCKS} SET expires_at = expires_at - %s"
        self._execute(statement, round(seconds * SECOND))


SITES: dict[str, type[Site]] = {
    "memory": MemorySite,
    "masters": MastersSite,
    "database": DatabaseSite,
}

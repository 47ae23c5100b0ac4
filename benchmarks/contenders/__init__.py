"""The contenders: the project, bare sockets, and what a site would use instead."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from django.http import HttpRequest, HttpResponse

TTL = 30
"""The TTL of all locks in seconds. No job takes that long, so no lock expires in a job."""


@dataclass(frozen=True)
class Place:
    """Where the locks are: the settings of Django for it, and the addresses for peers."""

    settings: dict[str, Any] = field(default_factory=dict)
    masters: tuple[tuple[str, int], ...] = ()
    hosts: str = ""


class Contender:
    """A lock library behind one interface, created with a place.

    It has three methods, which are coroutine functions if `api` is "async":

    - `acquire(resource)` tries once, and returns the argument for `release`, or None if another
      client holds the lock;
    - `wait(resource)` acquires the lock, however long that takes, and returns the same;
    - `release(held)` releases the lock.
    """

    api = "sync"
    masters_used: int | None = None
    """How many of the masters it uses: None for all, 1 for a single one."""

    prefix = ""
    """The prefix of the key of a lock, before its resource."""

    acquire: Any
    wait: Any
    release: Any

    def __init__(self, place: Place) -> None:
        """Connect to a place; a lock in the database of the site needs nothing."""

    def key(self, resource: str, held: Any = None) -> str:
        """Return the key of the lock of `resource` on a master."""
        return f"{self.prefix}{resource}"

    def view(self, view: Callable[..., HttpResponse]) -> Callable[..., Any]:
        """Return a view that holds the lock of its order while `view` runs."""

        def locked(request: HttpRequest, pk: int) -> HttpResponse:
            held = self.acquire(f"order:{pk}")
            if held is None:
                return HttpResponse(status=423)
            try:
                return view(request, pk)
            finally:
                self.release(held)

        return locked


@dataclass(frozen=True)
class Known:
    """A contender by its class, and the package that it needs beyond those of the project."""

    about: str
    home: str
    package: str = ""

    @property
    def is_installed(self) -> bool:
        """Return whether its package is there."""
        return not self.package or importlib.util.find_spec(self.package) is not None


CONTENDERS = {
    "ours": Known("redlock_django", "ours:Threads"),
    "ours async": Known("redlock_django, coroutines", "ours:Tasks"),
    "transaction_lock()": Known("redlock_django, a lock of a transaction", "database:Transaction"),
    "floor": Known("blocking sockets that send the same bytes", "floor:SameBytes"),
    "floor SET": Known("blocking sockets, SET NX PX and compare-and-delete", "floor:PlainSet"),
    "redis-py's Lock": Known("one master", "peers:RedisPy"),
    "redis-py's Lock async": Known("one master, coroutines", "peers:AsyncRedisPy"),
    "redlock-py": Known("Redlock, one master after the other", "peers:RedlockPy", "redlock"),
    "python-redis-lock": Known("one master, waits with BLPOP", "peers:PythonRedisLock",
                               "redis_lock"),
    "pg_advisory_lock": Known("PostgreSQL, a lock of the session", "database:Advisory"),
    "select_for_update()": Known("a lock of a row, in a transaction", "database:Row"),
    "kazoo's Lock": Known("ZooKeeper", "zookeeper:Kazoo"),
}  # fmt: skip

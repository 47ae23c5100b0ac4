"""docs/how-to/migrate.md: two deployments replace a lock, and no two holders enter meanwhile."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
import pytest
from django.utils.module_loading import import_string

from redlock_django import AlreadyHeld, ResourceLocked, lock
from tests.pages import Page
from tests.scenarios.conftest import IN_POSTGRES

if TYPE_CHECKING:
    from pytest_django import Settings
    from redis import Redis

    from redlock_django.testing.masters import LocalMaster

pytestmark = [pytest.mark.live, pytest.mark.postgres]
PAGE = Page("docs/how-to/migrate.md").text
RESOURCE = "order:42"
Step = Callable[[], AbstractContextManager[Any]]
OldLock = Callable[[str], AbstractContextManager[Any]]
SOURCES = (
    "another store of this package",
    "SET NX on Redis",
    "`cache.lock` of django-redis",
    "a row without expiry",
    "a table as ShedLock's",
    "redlock-py",
)
"""The headings of the page on locks that exist here, in `old_locks`."""


class Busy(Exception):
    """The error of the old code for a lock that is held."""


class Majority:
    """redlock-py's algorithm, in a few lines: it is not installed."""

    def __init__(self, masters: list[LocalMaster]) -> None:
        self._clients = [master.client() for master in masters]

    def lock(self, name: str, ttl: int) -> tuple[str, str] | None:
        held = name, uuid4().hex
        if sum(bool(c.set(name, held[1], nx=True, px=ttl)) for c in self._clients) >= 2:
            return held
        self.unlock(held)
        return None

    def unlock(self, held: tuple[str, str]) -> None:
        for client in self._clients:
            if client.get(held[0]) == held[1].encode():
                client.delete(held[0])


def block(acquire: Callable[[str], Any], release: Callable[[str, Any], object]) -> OldLock:
    """Return the block of a lock: what `acquire` returns is false, or what `release` gets."""

    @contextmanager
    def entered(name: str) -> Iterator[None]:
        if not (held := acquire(name)):
            raise Busy
        try:
            yield
        finally:
            release(name, held)

    return entered


@pytest.fixture
def old_locks(
    ours: None,
    redis: Redis,
    masters: list[LocalMaster],
    sql: psycopg.Connection,
    settings: Settings,
) -> dict[str, OldLock]:
    """Return the locks that a site may have had, by the heading of the page."""
    settings.REDLOCK = {**settings.REDLOCK, "old": IN_POSTGRES}
    sql.execute("CREATE TEMPORARY TABLE held (resource text PRIMARY KEY)")
    sql.execute(
        "CREATE TEMPORARY TABLE shedlock (name text PRIMARY KEY, lock_until timestamptz, "
        "locked_at timestamptz, locked_by text)"
    )
    cache: Any = import_string("django_redis.cache.RedisCache")(masters[4].url, {})
    dlm = Majority(masters[:3])

    def set_nx(name: str) -> str | None:
        token = uuid4().hex
        return token if redis.set(f"lock:{name}", token, nx=True, px=10_000) else None

    def unset(name: str, token: str) -> None:
        if redis.get(f"lock:{name}") == token.encode():
            redis.delete(f"lock:{name}")

    def cache_lock(name: str) -> Any:
        held = cache.lock(name, timeout=10, blocking_timeout=0)
        return held if held.acquire() else None

    def row(name: str) -> int:
        with suppress(psycopg.IntegrityError):
            return sql.execute("INSERT INTO held (resource) VALUES (%s)", [name]).rowcount
        return 0

    def shedlock(name: str) -> int:
        return sql.execute(
            "INSERT INTO shedlock AS held VALUES (%s, now() + interval '10 s', now(), 'me') "
            "ON CONFLICT (name) DO UPDATE SET lock_until = now() + interval '10 s' "
            "WHERE held.lock_until <= now()",
            [name],
        ).rowcount

    def execute(statement: str) -> Callable[[str, object], object]:
        return lambda name, _: sql.execute(statement, [name])

    # The page has the code of this one, because it is ours.
    names: dict[str, Any] = {"lock": lock}
    exec(Page("docs/how-to/migrate.md").code(f"## From {SOURCES[0]}"), names)
    found = (
        names["old_lock"],
        block(set_nx, unset),
        block(cache_lock, lambda name, held: held.release()),
        block(row, execute("DELETE FROM held WHERE resource = %s")),
        block(shedlock, execute("UPDATE shedlock SET lock_until = now() WHERE name = %s")),
        block(lambda name: dlm.lock(name, 10_000), lambda name, held: dlm.unlock(held)),
    )
    return dict(zip(SOURCES, found, strict=True))


@contextmanager
def both(old_lock: Callable[[str], AbstractContextManager[Any]]) -> Iterator[None]:
    with old_lock(RESOURCE), lock(RESOURCE):
        yield


def enters(step: Step) -> bool:
    """Return whether another thread may enter a step."""

    def enter() -> bool:
        try:
            with step():
                return True
        except (Busy, ResourceLocked):
            return False

    with ThreadPoolExecutor(1) as other:
        return other.submit(enter).result(30)


@pytest.mark.parametrize("source", SOURCES)
def test_no_two_steps_of_a_deployment_both_enter(
    old_locks: dict[str, OldLock], source: str
) -> None:
    steps: list[Step] = [
        lambda: old_locks[source](RESOURCE),
        lambda: both(old_locks[source]),
        lambda: lock(RESOURCE),
    ]
    for first, inside in enumerate(steps):
        with inside():
            entering = [enters(step) for step in steps]
        # Neighbours exclude each other. Old and new code do not, so the step between is needed.
        assert entering == [abs(first - other) == 2 for other in range(3)]
    assert all(map(enters, steps)), "nothing is left"


def test_the_page_has_these_sources() -> None:
    named = re.findall(r"^## From (.+)$", PAGE, re.MULTILINE)
    assert len(named) == 8
    assert {*SOURCES} < {*named}


def test_a_plain_key_of_redlock_py_and_a_lock_exclude_each_other(
    old_locks: dict[str, OldLock],
) -> None:
    old_lock = old_locks["redlock-py"]
    with old_lock(f"redlock:lock:{RESOURCE}"):
        assert not enters(lambda: lock(RESOURCE))
    with lock(RESOURCE):
        assert not enters(lambda: old_lock(f"redlock:lock:{RESOURCE}"))


@pytest.mark.usefixtures("ours")
def test_what_is_other_than_in_redis_py_is_on_the_page(redis: Redis) -> None:
    theirs = redis.lock("theirs", timeout=30)
    assert theirs.acquire(blocking=False)
    assert not redis.lock("theirs", timeout=30).acquire(blocking=False)
    theirs.extend(10)
    assert redis.pttl("theirs") > 35_000
    with lock("ours", ttl=5) as held:
        with pytest.raises(AlreadyHeld) as refused:
            lock("ours").acquire()
        assert not isinstance(refused.value, ResourceLocked)
        with lock("ours", reentrant=True):
            pass
        assert held.extend(5) <= 5
    for row in (
        "a second `acquire()` of the same name",
        "`extend(10)` adds",
        "`acquire(token=...)`",
    ):
        assert f"| {row}" in PAGE

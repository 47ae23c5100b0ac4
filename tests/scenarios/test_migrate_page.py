"""docs/how-to/migrate.md: two deployments replace a lock, and no two holders enter meanwhile."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
import pytest
from django.core.cache.backends.base import BaseCache
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
BLOCKS = dict(
    re.findall(r"^## From ([^\n]+)\n\n```python\n(.*?)```", PAGE, re.MULTILINE | re.DOTALL)
)
RESOURCE = "order:42"
Step = Callable[[], AbstractContextManager[Any]]


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


@pytest.fixture
def names(
    ours: None,
    redis: Redis,
    masters: list[LocalMaster],
    sql: psycopg.Connection,
    settings: Settings,
) -> dict[str, Any]:
    """Return what the blocks of the page use."""
    settings.REDLOCK = {**settings.REDLOCK, "old": IN_POSTGRES}
    sql.execute("CREATE TEMPORARY TABLE held (resource text PRIMARY KEY)")
    sql.execute(
        "CREATE TEMPORARY TABLE shedlock (name text PRIMARY KEY, lock_until timestamptz, "
        "locked_at timestamptz, locked_by text)"
    )
    cache: BaseCache = import_string("django_redis.cache.RedisCache")(masters[4].url, {})
    return {
        "contextmanager": contextmanager,
        "lock": lock,
        "uuid4": uuid4,
        "Busy": Busy,
        "redis": redis,
        "cache": cache,
        "sql": sql,
        "IntegrityError": psycopg.IntegrityError,
        "dlm": Majority(masters[:3]),
    }


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


@pytest.mark.parametrize("source", BLOCKS)
def test_no_two_steps_of_a_deployment_both_enter(names: dict[str, Any], source: str) -> None:
    exec(BLOCKS[source], names)
    steps: list[Step] = [
        lambda: names["old_lock"](RESOURCE),
        lambda: both(names["old_lock"]),
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
    assert len(BLOCKS) == 6


def test_a_plain_key_of_redlock_py_and_a_lock_exclude_each_other(names: dict[str, Any]) -> None:
    exec(BLOCKS["redlock-py"], names)
    with names["old_lock"](f"redlock:lock:{RESOURCE}"):
        assert not enters(lambda: lock(RESOURCE))
    with lock(RESOURCE):
        assert not enters(lambda: names["old_lock"](f"redlock:lock:{RESOURCE}"))


def test_what_is_other_than_in_redis_py_is_on_the_page(names: dict[str, Any]) -> None:
    theirs = names["redis"].lock("theirs", timeout=30)
    assert theirs.acquire(blocking=False)
    assert not names["redis"].lock("theirs", timeout=30).acquire(blocking=False)
    theirs.extend(10)
    assert names["redis"].pttl("theirs") > 35_000
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

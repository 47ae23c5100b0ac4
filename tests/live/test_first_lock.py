"""The first lock of an event loop does not stop the loop while a store is imported."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from redlock_django import lock, locks
from redlock_django.backends.redis import RedisBackend
from redlock_django.exceptions import ResourceLocked
from tests.live.left_over import nothing_left, values
from tests.timeouts import generous_timeouts
from tests.waiting import until

if TYPE_CHECKING:
    from pytest_django import Settings

    from redlock_django.testing.masters import LocalMaster

pytestmark = pytest.mark.live
USED = {"redis": ["redis"], "zookeeper": ["kazoo"], "database": []}


def run(*arguments: str) -> str:
    """Return what a process prints."""
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_first_lock_of_a_loop_imports_nothing(store_settings: dict[str, Any]) -> None:
    """Django has imported the store when it started, and no store that the site does not use."""
    given = json.dumps(store_settings)
    if "DatabaseBackend" in given:
        run("-m", "tests.live.first_lock", "--migrate", given)
    imported, libraries = map(json.loads, run("-m", "tests.live.first_lock", given).splitlines())
    assert imported == []
    backend = store_settings["REDLOCK"]["default"].get("BACKEND", "redis")
    assert libraries == next((USED[name] for name in USED if f".{name}." in backend), ["redis"])


def test_a_loop_connects_before_its_first_lock(
    masters: list[LocalMaster], settings: Settings
) -> None:
    settings.REDLOCK = {"default": {"MASTERS": [m.url for m in masters[:3]], "RESTART_DELAY": 0}}

    async def connect() -> None:
        await locks.aconnect()
        backend = locks["default"].backend
        assert isinstance(backend, RedisBackend)
        for driver in (backend.loop_driver(), backend.thread_driver()):  # which renews the locks
            while driver.links.link_wait.usable() < 3:  # noqa: ASYNC110 - nothing reports it
                await asyncio.sleep(0.005)
        await locks.aclose()

    asyncio.run(asyncio.wait_for(connect(), 60))


def test_a_site_without_locks_imports_no_store() -> None:
    code = (
        "import django, sys; from django.conf import settings;"
        "settings.configure(INSTALLED_APPS=['redlock_django']); django.setup();"
        "print(*{'redis', 'kazoo', 'redlock_django.wire.links.links', "
        "'redlock_django.backends.database.backend', "
        "'redlock_django.backends.redis.backend'} & set(sys.modules))"
    )
    assert run("-c", code).split() == []


@pytest.mark.parametrize("is_async", [False, True], ids=["threads", "loop"])
def test_the_first_lock_is_set_on_every_master(
    is_async: bool, masters: list[LocalMaster], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss of any of them does not endanger it. A majority has answered when it is held."""
    # A busy machine may need longer to connect than a caller waits for the last links.
    monkeypatch.setattr("redlock_django.wire.links.link_changes.JOINING", 60.0)
    urls = [master.url for master in masters]

    def until_everywhere() -> None:
        until(lambda: len(values(masters, "order:1")) == len(masters), "all masters have it")

    async def first() -> None:
        async with lock("order:1", renew=False):
            await asyncio.to_thread(until_everywhere)

    for number in range(15):
        # Other settings are a new store with new links, as in a new process.
        section = {"MASTERS": urls, "RESTART_DELAY": 0, "TTL": 50 + number / 100}
        settings.REDLOCK = {"default": {**section, **generous_timeouts()}}
        if is_async:
            asyncio.run(asyncio.wait_for(first(), 60))
        else:
            with lock("order:1", renew=False):
                until_everywhere()
        nothing_left(masters)  # a majority has released it


def test_the_first_lock_survives_that_some_of_its_masters_stop(
    masters: list[LocalMaster], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redlock_django.wire.links.link_changes.JOINING", 60.0)
    urls = [master.url for master in masters]
    section = {"MASTERS": urls, "RESTART_DELAY": 0, "TTL": 30, **generous_timeouts()}
    settings.REDLOCK = {"default": section}
    with lock("order:1", wait=60, renew=False) as held:
        for master in masters[:2]:
            master.pause()
        for _ in range(3):
            held.extend()
        held.ensure_held()
        for master in masters[:2]:
            master.resume()


def test_a_refusal_of_a_first_lock_asks_each_master_once(
    masters: list[LocalMaster], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no master that grants the lock, from which it would have to be released."""
    monkeypatch.setattr("redlock_django.wire.links.link_changes.JOINING", 60.0)
    section = {
        "MASTERS": [master.url for master in masters],
        "RESTART_DELAY": 0,
        **generous_timeouts(),
    }
    settings.REDLOCK = {"default": section, "other": section}
    with lock("order:1", wait=60, renew=False):  # new masters are waited for
        backend = locks["other"].backend
        assert isinstance(backend, RedisBackend)
        with lock("order:2", wait=60, using="other"):
            links = backend.thread_driver().links
        until(lambda: not links.owing(), what="all replies")
        before = scripts_run(masters)
        for _ in range(100):
            with pytest.raises(ResourceLocked):
                lock("order:1", using="other").acquire()
        until(lambda: scripts_run(masters) - before >= 500, what="every master is asked")
        assert scripts_run(masters) - before == 500


def scripts_run(masters: list[LocalMaster]) -> int:
    """Return how many scripts the masters have run."""
    total = 0
    for master in masters:
        with master.client() as client:
            total += client.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0)
    return total

"""The store that docs/contributing/write-a-store.md begins with works, as the page names it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import call_command

from redlock_django import LockLost, ResourceLocked, lock
from redlock_django.engine.validity import LeaseState
from redlock_django.exceptions import InvalidRedlock
from redlock_django.locking.services import locks
from redlock_django.wire.clock import clock
from tests.inspecting import free, look
from tests.losses import ends_lost
from tests.pages import Page

if TYPE_CHECKING:
    from pytest_django import Settings

[SETTINGS] = Page("docs/contributing/write-a-store.md").blocks()


@pytest.fixture(autouse=True)
def store(tmp_path: Path, settings: Settings) -> Iterator[Any]:
    names: dict[str, Any] = {}
    exec(SETTINGS, names)
    section = names["REDLOCK"]["default"]
    settings.REDLOCK = {"default": {**section, "DIRECTORY": str(tmp_path)}}
    yield locks["default"].backend
    locks.close()


def test_one_client_holds_and_the_others_are_refused() -> None:
    with lock("order:1") as held:
        assert held.remaining() > 5
        with pytest.raises(ResourceLocked) as error, ThreadPoolExecutor(1) as pool:
            pool.submit(lock("order:1").acquire).result()
        assert error.value.retry_after is not None
        assert error.value.retry_after > 5
    with lock("order:1"):
        pass


async def test_tasks_wait_for_each_other() -> None:
    held = await lock("order:1").aacquire()
    waiting = asyncio.create_task(lock("order:1", wait=5).aacquire())
    await asyncio.sleep(0.01)
    fence = held.fence
    assert await held.arelease()
    second = await waiting
    assert second.fence > fence
    assert await second.arelease()


def test_a_lock_can_be_extended_until_it_expires(store: Any) -> None:
    first = store.acquire(("order:1", "user:7"), 20, 0, "{}")
    state, longer = store.extend(first, 30)
    assert state is LeaseState.RENEWED
    assert longer.until > first.until
    store.clock = lambda: clock() + 30
    second = store.acquire(("user:7",), 10, 5, "{}")
    assert second.fences[0] > first.fences[1]
    assert store.extend(longer, 10)[0] is LeaseState.LOST
    assert store.release(longer) is False
    assert store.extend(second, 10)[0] is LeaseState.RENEWED
    assert store.release(second) is True


def test_all_resources_are_taken_or_none(store: Any) -> None:
    lease = store.acquire(("b",), 10, 0, "{}")
    with pytest.raises(ResourceLocked) as error:
        store.acquire(("a", "b", "c"), 10, 0, "{}")
    assert error.value.resource == "b"
    store.post_release(lease)
    assert store.release(store.acquire(("a", "b", "c"), 10, 0, "{}")) is True


def test_a_free_lock_is_not_listed(store: Any) -> None:
    for name in ("order:1", "order:2"):
        store.release(store.acquire((name,), 10, 0, "{}"))
    store.acquire(("order:3",), 10, 0, "{}")
    with store.inspect() as inspection:
        assert [*inspection.listing().names] == ["order:3"]
        assert [one.name for one in inspection.held(limit=1).locks] == ["order:3"]


def test_a_lost_lock_is_reported(store: Any) -> None:
    with ends_lost(), lock("order:1") as held:
        assert free(store, "order:1", held.fingerprint).outcome.value == "released"
        with pytest.raises(LockLost):
            held.extend()


@pytest.mark.django_db
def test_the_commands_show_and_release_its_locks(
    store: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with ends_lost(), lock("order:1") as held:
        call_command("list_locks")
        assert held.fingerprint in capsys.readouterr().out
        call_command("release_lock", "order:1", "--noinput", "--holder", held.fingerprint)
        assert not look(store, ["order:1"]).locks
    call_command("redlock_status")
    assert store.settings.directory.name in capsys.readouterr().out


def test_a_wrong_setting_is_refused(settings: Settings) -> None:
    section = settings.REDLOCK["default"]
    settings.REDLOCK = {"default": {**section, "DIRECTORY": "/not/there"}}
    with pytest.raises(InvalidRedlock, match="DIRECTORY must be an existing directory"):
        locks["default"]
    settings.REDLOCK = {"default": {**section, "DIRECTROY": "/tmp"}}
    with pytest.raises(InvalidRedlock, match="did you mean 'DIRECTORY'"):
        locks["default"]

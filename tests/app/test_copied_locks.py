"""A lock cannot be copied, pickled or sent to another process: the error names transfer()."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import pickle
import sys
from collections.abc import Callable
from typing import Any

import pytest
from pytest_django import Settings

from redlock_django import leader, lock, locks, resume_lock
from redlock_django.backends.redis import RedisBackend
from redlock_django.locking.lock import Lock
from tests.app.conftest import MEMORY


def spawn(value: object) -> None:
    multiprocessing.get_context("spawn").Process(target=print, args=(value,)).start()


WAYS: dict[str, Callable[[Any], object]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": pickle.dumps,
    "spawn": spawn,
}


def _free() -> Lock:
    return lock("q")


def _held() -> Lock:
    return lock("q").acquire()


def _resumed() -> Lock:
    return resume_lock(lock("q").acquire().transfer())


@pytest.mark.parametrize("way", WAYS.values(), ids=list(WAYS))
@pytest.mark.parametrize("make", [_free, _held, _resumed])
def test_a_lock_is_not_copied(
    make: Callable[[], Lock], way: Callable[[Any], object], settings: Settings
) -> None:
    settings.REDLOCK = {"default": {"BACKEND": MEMORY}}
    one = make()
    with pytest.raises(TypeError, match=r"^q: a Lock .* held\.transfer\(\) returns a ticket"):
        way(one)
    one.release()


@pytest.mark.parametrize("way", [copy.deepcopy, pickle.dumps, spawn])
def test_a_leadership_is_not_copied(way: Callable[[Any], object], settings: Settings) -> None:
    settings.REDLOCK = {"default": {"BACKEND": MEMORY}}
    with pytest.raises(TypeError, match="q: a Lock belongs to one task or thread"):
        way(leader("q"))


@pytest.mark.parametrize("way", WAYS.values(), ids=list(WAYS))
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

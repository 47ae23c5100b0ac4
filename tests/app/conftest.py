"""Fixtures for tests of views: a URLconf for each test, and a record of what happened when."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import Context
from types import ModuleType
from typing import Any, TypeVar

import pytest
from asgiref.sync import async_to_sync, markcoroutinefunction
from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client
from django.urls import clear_url_caches
from django.utils.deprecation import MiddlewareMixin
from pytest_django import Settings

from redlock_django.backends.memory.backend import MemoryBackend
from redlock_django.locking import transactions
from redlock_django.locking.lock import Lock
from redlock_django.locking.renewal import RenewalService, renewal_service
from redlock_django.locking.services import locks
from testproject.shop.models import Order

MEMORY = "redlock_django.backends.memory.MemoryBackend"
DATABASE = "redlock_django.backends.database.DatabaseBackend"
LOCK_MIDDLEWARE = "redlock_django.middleware.LockMiddleware"
FIVE = [f"redis://10.0.0.{number}:6379/0" for number in range(1, 6)]

T = TypeVar("T")
Urls = Callable[..., None]
"""The value of the fixture `urls`."""
Configure = Callable[..., MemoryBackend]
"""The value of the fixture `memory`."""


def elsewhere(call: Callable[[], T]) -> T:
    """Return or raise what a call in another thread does, which holds no lock yet."""
    with ThreadPoolExecutor(1) as other:
        return other.submit(Context().run, call).result(60)


def order(number: str = "A-1") -> Order:
    """Create an order."""
    return Order.objects.create(number=number, total=1)


def sender(is_async: bool, method: str = "post", **client: Any) -> Any:
    """Return a function that sends a request: to an ASGI server if `is_async`, else by WSGI."""
    if is_async:
        return async_to_sync(getattr(AsyncClient(**client), method))
    return getattr(Client(**client), method)


def memory_backend() -> MemoryBackend:
    """Return the store of the alias "default"."""
    found = locks["default"].backend
    assert isinstance(found, MemoryBackend)
    return found


class AddsContext(MiddlewareMixin):
    """A middleware that changes a template response before it is rendered."""

    def process_template_response(self, request: HttpRequest, response: Any) -> Any:
        response.context_data = {**(response.context_data or {}), "added": "by the middleware"}
        return response


ADDS_CONTEXT = f"{__name__}.AddsContext"


def wrapping(view: Any) -> Any:
    """A decorator of the site."""

    @functools.wraps(view)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return view(*args, **kwargs)

    return wrapper


def instance(decorate: Callable[[Any], Any]) -> Any:
    """A view that is an instance, whose `__call__` is decorated."""

    class Pay:
        @decorate
        def __call__(self, request: HttpRequest, **_: Any) -> HttpResponse:
            return HttpResponse()

    return Pay()


def async_instance(decorate: Callable[[Any], Any]) -> Any:
    class Pay:
        @decorate
        async def __call__(self, request: HttpRequest, **_: Any) -> HttpResponse:
            return HttpResponse()

    return markcoroutinefunction(Pay())


@pytest.fixture
def memory(settings: Settings) -> Configure:
    """Keep the locks in the memory of this process; return a function that sets more keys."""

    def configure(**section: Any) -> MemoryBackend:
        settings.REDLOCK = {"default": {"BACKEND": MEMORY, **section}}
        return memory_backend()

    settings.REDLOCK = {"default": {"BACKEND": MEMORY}}
    return configure


@contextmanager
def without_quorum() -> Iterator[None]:
    """Make a majority of the masters of "default" not answer in the block."""
    backend = memory_backend()
    silent = range(len(backend.masters) // 2 + 1)
    for index in silent:
        backend.hang(index)
    yield
    for index in silent:
        backend.restore(index)


@pytest.fixture
def three_masters(memory: Configure) -> MemoryBackend:
    """Keep the locks on three masters in the memory of this process."""
    return memory(MASTERS=FIVE[:3])


@pytest.fixture
def lock_middleware(memory: Configure, settings: Settings) -> None:
    """A site with LockMiddleware and no other, and with locks in memory."""
    settings.MIDDLEWARE = [LOCK_MIDDLEWARE]


@pytest.fixture
def urls(settings: Settings) -> Iterator[Urls]:
    """Return a function that makes its patterns the whole URLconf of the site."""
    made = ModuleType("urls_of_a_test")
    sys.modules[made.__name__] = made

    def put(*patterns: Any) -> None:
        made.urlpatterns = list(patterns)  # type: ignore[attr-defined]
        clear_url_caches()
        settings.ROOT_URLCONF = made.__name__

    put()
    yield put
    del sys.modules[made.__name__]
    clear_url_caches()


@pytest.fixture
def happened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls of the lock and of the database connection, in order."""
    seen: list[str] = []

    def spy(target: Any, name: str, word: str) -> None:
        real = getattr(target, name)

        @functools.wraps(real)
        def spied(*args: Any, **kwargs: Any) -> Any:
            # The release of a lock that was not acquired does nothing.
            if word != "release" or args[0]._held_lease is not None:
                seen.append(word)
            return real(*args, **kwargs)

        monkeypatch.setattr(target, name, spied)

    spy(Lock, "_acquire", "lock")
    spy(Lock, "ensure_held", "guard")
    spy(Lock, "release", "release")
    connection.ensure_connection()
    spy(connection, "_start_transaction_under_autocommit", "BEGIN")
    spy(connection, "_commit", "COMMIT")
    spy(connection, "_rollback", "ROLLBACK")
    return seen


@pytest.fixture
def sees_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make SQLite pass for PostgreSQL at READ COMMITTED."""
    monkeypatch.setattr(transactions, "sees_commits", lambda connection: True)


@pytest.fixture
def no_renewals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide new leases from the renewal thread, for a test that sets the clock.

    If that thread looked just then, it would notice a loss before the test does, and report it at
    some moment of its own.
    """
    monkeypatch.setattr(RenewalService, "watch", lambda self, held_lease: None)


def wake_renewals() -> None:
    """Make the renewal thread look at once, after the test has advanced a clock."""
    renewal_service._wakeup.wake()


def stop_clocks() -> None:
    """Stop the clocks of "default", on which time then passes by `MemoryBackend.advance` alone."""

    store = memory_backend()
    now, us = store.now() - store.passed, store.time() - round(store.passed * 1_000_000)
    store.now = lambda: now + MemoryBackend.passed
    store.time = lambda: us + round(MemoryBackend.passed * 1_000_000)


@pytest.fixture
def lose_locks(no_renewals: None) -> Callable[[], None]:
    """Return a function that makes every lease expire, without waiting."""

    def lose() -> None:
        backend = memory_backend()
        now = backend.now
        backend.now = lambda: now() + 3600

    return lose

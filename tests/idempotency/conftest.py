"""Shared by the tests of idempotent views: a user, a site of one view, and requests to it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_django
from django.contrib.auth.models import User
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.http import HttpRequest, JsonResponse
from django.test import Client
from django.urls import path
from pytest_django import Settings

from redlock_django.exceptions import InvalidRedlock
from redlock_django.models import IdempotencyRecord
from testproject.shop.models import Order
from tests.aliases import database_alias
from tests.app.conftest import (
    MEMORY,
    happened,
    lose_locks,
    memory,
    memory_backend,
    no_renewals,
    sees_commits,
    urls,
)

__all__ = [
    "happened",
    "lose_locks",
    "memory",
    "no_renewals",
    "sees_commits",
    "urls",
]

KEY = "8e03978e-40d5-43e8-bc93-6894a57f9324"


def make_order(request: HttpRequest, **_: Any) -> JsonResponse:
    """Create one order; this must happen once."""
    order = Order.objects.create(number=f"A-{Order.objects.count() + 1}", total=1)
    return JsonResponse({"order": order.number}, status=201)


@dataclass
class Site:
    """A site of one view, and a user of it."""

    put: Callable[..., None]
    client: Client
    settings: Settings

    def serve(self, view: Any, *, configured: dict[str, Any] | None = None) -> None:
        """Make the view the only one of the site, at any path."""
        if configured is not None:
            self.configure(**configured)
        self.put(path("<path:rest>", view), path("", view))

    def configure(self, **idempotency: Any) -> None:
        """Set IDEMPOTENCY."""
        self.settings.REDLOCK = {"default": {"BACKEND": MEMORY, "IDEMPOTENCY": idempotency}}

    def post(
        self, key: str | None = KEY, data: Any = None, url: str = "/orders/", **options: Any
    ) -> Any:
        """Send JSON with a key."""
        headers = {
            **({} if key is None else {"Idempotency-Key": key}),
            **options.pop("headers", {}),
        }
        options.setdefault("content_type", "application/json")
        return self.client.post(url, data or {"total": 1}, headers=headers, **options)

    def refuses(self, match: str, key: str | None = KEY, **options: Any) -> None:
        """Check that a request is an error of the site's code or settings."""
        self.client.raise_request_exception = True
        with pytest.raises(InvalidRedlock, match=match):
            self.post(key, **options)


@pytest.fixture
def site(memory: None, urls: Callable[..., None], settings: Settings, db: None) -> Site:
    """A site with idempotent views; its client is logged in as "ann"."""
    settings.SESSION_ENGINE = "django.contrib.sessions.backends.signed_cookies"  # the fastest
    client = Client(raise_request_exception=False)
    client.force_login(User.objects.create_user("ann"))
    return Site(urls, client, settings)


@pytest.fixture
def records_in_a_file(
    site: Site, tmp_path: Path, django_db_blocker: pytest_django.DjangoDbBlocker
) -> Iterator[None]:
    """Store records in a file, where one request can read while another one writes.

    The database of the tests is in memory, where that is not possible.
    """
    database = {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(tmp_path / "records.sqlite3"),
        "OPTIONS": {"timeout": 20, "init_command": "PRAGMA journal_mode=WAL;"},
    }
    tables = [IdempotencyRecord]
    with django_db_blocker.unblock(), database_alias("records", database, tables=tables):
        site.configure(DATABASE="records")
        yield


def masters_forget() -> None:
    """Delete every lock on every master."""
    for master in memory_backend().masters:
        for name in [name for name in master.keyspace.strings if ":lock:" in name]:
            del master.keyspace.strings[name]


class InThread:
    """A call in a thread of its own; `result` waits for it."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._said: list[Any] = []
        self._thread = threading.Thread(target=self._run, args=[work])
        self._thread.start()

    def _run(self, work: Callable[[], Any]) -> None:
        self._said.append(work())
        for one in connections.all(initialized_only=True):
            # Django keeps a database in memory open, because closing it would empty it.
            BaseDatabaseWrapper.close(one)

    @property
    def result(self) -> Any:
        """The result of the call."""
        self._thread.join(60)
        return self._said[0]


def orders() -> int:
    """Return the number of orders."""
    return Order.objects.count()


def record() -> IdempotencyRecord:
    """Return the only record."""
    return IdempotencyRecord.objects.get()


def assert_refused(answer: Any, status: int, code: str, *, new_key: bool, retry: bool) -> None:
    """Check that the answer is this refusal, with all its members."""
    problem = json.loads(answer.content)
    assert (answer.status_code, problem["code"]) == (status, f"idempotency-{code}")
    assert answer["Content-Type"] == "application/problem+json"
    assert answer["Cache-Control"] == "no-store"
    assert (problem["status"], problem["type"]) == (status, f"urn:redlock-django:{problem['code']}")
    assert (problem["retryable"], problem["safe_new_key"]) == (retry, new_key)
    assert ("Retry-After" in answer) is retry
    assert "Idempotent-Replayed" not in answer

"""Views that do their work under `transaction_lock()`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from asgiref.sync import sync_to_async
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client
from django.urls import clear_url_caches, path
from pytest_django import Settings

from redlock_django import idempotent, transaction_lock
from redlock_django.exceptions import InvalidRedlock
from testproject.shop.models import Order
from tests.live.transactions.conftest import hold, is_free

MEMORY = "redlock_django.backends.memory.MemoryBackend"
pytestmark = [pytest.mark.live, pytest.mark.postgres]
unowned = idempotent(anonymous_scope=lambda request, **_: "all")
seen: dict[str, Any] = {}


def pay(request: HttpRequest, pk: int) -> HttpResponse:
    """Create an order; note whether another client could lock it meanwhile."""
    with transaction_lock(f"order:{pk}", database="pg"):
        Order.objects.using("pg").create(number=str(pk), total=1)
        seen["free"] = is_free(seen["holder"], f"order:{pk}")
    return HttpResponse("done")


urlpatterns = [path("pay/<int:pk>/", pay), path("once/<int:pk>/", unowned(pay))]


@pytest.fixture
def client(pg: str, holder: psycopg.Connection, settings: Settings) -> Iterator[Client]:
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = ["redlock_django.middleware.LockMiddleware"]
    settings.REDLOCK = {"default": {"BACKEND": MEMORY, "IDEMPOTENCY": {"DATABASE": "pg"}}}
    connections.settings["default"]["ATOMIC_REQUESTS"] = False
    seen.clear()
    seen["holder"] = holder
    clear_url_caches()
    yield Client()
    connections.settings["default"]["ATOMIC_REQUESTS"] = True
    clear_url_caches()


@pytest.fixture
def atomic(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that sets ATOMIC_REQUESTS of "pg"."""

    def put(value: bool = True, alias: str = "pg") -> None:
        monkeypatch.setitem(connections.settings[alias], "ATOMIC_REQUESTS", value)

    return put


def orders() -> int:
    return Order.objects.using("pg").count()


@pytest.mark.parametrize("is_atomic", [False, True], ids=["plain", "atomic"])
def test_a_view_is_refused_while_locked_and_runs_after(
    client: Client, holder: psycopg.Connection, atomic: Callable[..., None], is_atomic: bool
) -> None:
    atomic(is_atomic)
    hold(holder, "order:7")
    answer = client.post("/pay/7/")
    assert (answer.status_code, answer.json()["code"]) == (423, "resource-locked")
    # As for lock() in a view's own code, it is not known what the view has done before.
    assert answer.json()["retryable"] is is_atomic
    assert (orders(), "free" in seen) == (0, False)
    holder.rollback()
    assert client.post("/pay/7/").status_code == 200
    assert seen["free"] is False
    assert is_free(holder, "order:7")
    assert orders() == 1


def test_a_view_that_fails_changes_nothing_and_frees_the_lock(
    client: Client, holder: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(seen, "holder", None)  # the view fails after it has created the order
    with pytest.raises(AttributeError):
        client.post("/pay/7/")
    assert orders() == 0
    assert is_free(holder, "order:7")


def test_a_record_is_committed_with_the_lock(client: Client, holder: psycopg.Connection) -> None:
    def post() -> Any:
        return client.post("/once/7/", headers={"Idempotency-Key": "k"})

    hold(holder, "order:7")
    assert post().status_code == 423
    holder.rollback()
    assert post().content == b"done"
    assert post().headers["Idempotent-Replayed"] == "true"
    assert seen["free"] is False
    assert is_free(holder, "order:7")
    assert orders() == 1


def test_a_transaction_of_a_middleware_on_another_database_is_refused(
    client: Client, settings: Settings
) -> None:
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, f"{__name__}.in_default"]
    with pytest.raises(InvalidRedlock, match="'default' is open around"):
        client.post("/pay/7/")


def in_default(get_response: Any) -> Any:
    def middleware(request: HttpRequest) -> Any:
        with transaction.atomic("default"):
            return get_response(request)

    return middleware


async def test_a_sync_view_under_asgi_works(client: Client, holder: psycopg.Connection) -> None:
    answer = await AsyncClient().post("/pay/7/")
    await sync_to_async(connections.close_all)()
    assert answer.status_code == 200
    assert seen["free"] is False
    assert is_free(holder, "order:7")

"""An answer to a lock error promises that nothing was changed only if that is certain.

For locked views, `tests/views` shows it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync, iscoroutinefunction
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client
from django.urls import path
from pytest_django import Settings
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from redlock_django import lock, lock_resource
from redlock_django.contrib.drf import LockAPIMixin
from redlock_django.exceptions import ResourceLocked
from redlock_django.testing import held_elsewhere, lose_lock
from testproject.shop.models import Order
from tests.app.conftest import LOCK_MIDDLEWARE, Urls

pytestmark = pytest.mark.django_db(transaction=True)
HANDLER = "redlock_django.contrib.drf.exception_handler"


@pytest.fixture(autouse=True)
def _middleware(settings: Settings, memory: None) -> None:
    settings.MIDDLEWARE = [LOCK_MIDDLEWARE]
    settings.REST_FRAMEWORK = {"EXCEPTION_HANDLER": HANDLER}


def plain(request: HttpRequest) -> HttpResponse:
    """Change something, and end as if another lock was not acquired."""
    Order.objects.create(number="A-1", total=1)
    raise ResourceLocked("stock:1", retry_after=4)


async def aplain(request: HttpRequest) -> HttpResponse:
    """Change something, and fail to get another lock."""
    await Order.objects.acreate(number="A-1", total=1)
    async with lock("stock:1"):
        return HttpResponse()


def after_commit(request: HttpRequest) -> HttpResponse:
    """Fail to get a lock in a hook, after COMMIT."""
    transaction.on_commit(lambda: lock("stock:1").acquire())
    Order.objects.create(number="A-1", total=1)
    return HttpResponse()


class Api(APIView):
    authentication_classes = ()

    def post(self, request: Request) -> Response:
        plain(request)
        return Response()


class MixedApi(LockAPIMixin, Api):
    pass


locked = lock_resource("order:1")
SYNC: dict[str, Any] = {
    "plain": plain,
    "other method": lock_resource("order:1", methods=["GET"])(plain),
    "API": Api.as_view(),
    "API with the mixin": MixedApi.as_view(),
}
HOOKS: dict[str, Any] = {"hook": after_commit, "locked hook": locked(after_commit)}


@pytest.fixture
def send(urls: Urls, monkeypatch: pytest.MonkeyPatch, client: Client) -> Callable[..., Any]:
    def send(view: Any, *, atomic: bool, method: str = "POST") -> Any:
        monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", atomic)
        urls(path("", view))
        with held_elsewhere("stock:1"):
            if iscoroutinefunction(view):
                ask: Any = getattr(AsyncClient(), method.lower())
                return async_to_sync(ask)("/")
            return client.generic(method, "/")

    return send


def promises(answer: Any) -> bool:
    """Return whether the answer says that the request may be sent again."""
    retryable = "Retry-After" in answer
    body = answer.json()
    if "retryable" in body:
        assert body["retryable"] is retryable
    assert ("not known whether anything was changed" in body["detail"]) is not retryable
    return retryable


@pytest.mark.parametrize("name", SYNC)
def test_after_a_rollback_the_request_may_be_sent_again(
    send: Callable[..., Any], name: str
) -> None:
    answer = send(SYNC[name], atomic=True)
    assert (answer.status_code, Order.objects.count()) == (423, 0)
    assert promises(answer)


@pytest.mark.attack
@pytest.mark.parametrize("view", [*SYNC.values(), aplain], ids=[*SYNC, "async"])
def test_without_a_transaction_nothing_is_promised(send: Callable[..., Any], view: Any) -> None:
    answer = send(view, atomic=False)
    assert (answer.status_code, Order.objects.count()) == (423, 1)
    assert not promises(answer)


@pytest.mark.parametrize("name", HOOKS)
def test_after_commit_nothing_is_promised(send: Callable[..., Any], name: str) -> None:
    answer = send(HOOKS[name], atomic=True)
    assert (answer.status_code, Order.objects.count()) == (423, 1)
    assert not promises(answer)


@pytest.mark.parametrize("view", [plain, aplain])
def test_a_safe_method_may_always_be_sent_again(send: Callable[..., Any], view: Any) -> None:
    assert promises(send(view, atomic=False, method="GET"))


def test_a_lost_lock_without_a_transaction_promises_nothing(send: Callable[..., Any]) -> None:
    def view(request: HttpRequest) -> HttpResponse:
        with lock("order:2") as held:
            lose_lock("order:2")
            held.ensure_held()
        return HttpResponse()

    answer = send(view, atomic=False)
    assert (answer.status_code, answer.json()["code"]) == (503, "lock-lost")
    assert not promises(answer)

"""A name or a key that a client's value does not make is logged with its reason, once, everywhere.

The sender of a webhook shows the answer to nobody, so the log is where an operator finds it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connections
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client
from django.urls import path
from pytest_django import Settings
from rest_framework.views import APIView

from redlock_django import idempotent, lock, lock_resource, resource
from redlock_django.contrib.drf import LockAPIMixin
from tests.app.conftest import LOCK_MIDDLEWARE, MEMORY
from tests.idempotency.conftest import Site

pytestmark = pytest.mark.django_db(transaction=True)
Urls = Callable[..., None]
TEMPLATE = "order:<int:get:pk>"


@pytest.fixture(autouse=True)
def _alone(site: Site, plain: None, settings: Settings) -> None:
    settings.MIDDLEWARE = [LOCK_MIDDLEWARE]


def view(request: HttpRequest, **_: Any) -> HttpResponse:
    return HttpResponse("done")


async def aview(request: HttpRequest, **_: Any) -> HttpResponse:
    return HttpResponse("done")


def order(request: HttpRequest, **_: Any) -> str:
    return resource("order:<int:pk>", pk=request.GET["pk"])


def by_block(request: HttpRequest) -> HttpResponse:
    with lock(resource("order:<int:pk>", pk=request.GET["pk"])):
        return HttpResponse("done")


async def aby_block(request: HttpRequest) -> HttpResponse:
    async with lock(resource("order:<int:pk>", pk=request.GET["pk"])):
        return HttpResponse("done")


class RestBlock(LockAPIMixin, APIView):
    authentication_classes = ()

    def post(self, request: Any) -> HttpResponse:
        return by_block(request)


locked = lock_resource(TEMPLATE)
anyone: Any = idempotent(anonymous_scope=lambda request, **_: "all")
VIEWS: dict[str, Any] = {  # tests/views has templates in every kind of view
    "function": lock_resource(order)(view),
    "function, async": lock_resource(order)(aview),
    "own answer": lock_resource(
        TEMPLATE, on_locked=lambda request, error: HttpResponse(status=400)
    )(view),
    "block": by_block,
    "block, async": aby_block,
    "block in REST": RestBlock.as_view(),
    "idempotent": anyone(locked(view)),
    "idempotent, async": anyone(locked(aview)),
}


def answers(url: str) -> list[Any]:
    """Send the request through the sync and through the async handler of Django."""
    options: Any = {"headers": {"Idempotency-Key": "k"}}
    sync = Client().post(url, **options)
    return [sync, async_to_sync(AsyncClient().post)(url, **options)]


def reasons(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [one.getMessage() for one in caplog.records if one.name == "redlock_django"]
    caplog.clear()
    return found


@pytest.mark.parametrize("name", VIEWS)
def test_the_reason_of_a_refused_name_is_logged(
    urls: Urls, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    urls(path("pay/", VIEWS[name]))
    for answer in answers("/pay/?pk=seven"):
        assert answer.status_code == 400
    expected = "POST /pay/ was answered 400: <int:"
    logged = reasons(caplog)
    assert len(logged) == 2
    assert all(one.startswith(expected) and "is not a valid 'int'" in one for one in logged)
    assert "seven" not in "".join(logged)
    for answer in answers("/pay/?pk=7"):
        assert answer.status_code == 200
    assert reasons(caplog) == []


def test_the_reason_is_logged_inside_the_transaction_of_a_request(
    urls: Urls, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    urls(path("pay/", by_block))
    assert Client().post("/pay/?pk=seven").status_code == 400
    assert len(reasons(caplog)) == 1


def test_the_reason_is_logged_for_a_rule(
    urls: Urls, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    urls(path("pay/", view))
    settings.REDLOCK = {
        "default": {"BACKEND": MEMORY, "RULES": [{"path": "pay/", "key": TEMPLATE}]}
    }
    assert [answer.status_code for answer in answers("/pay/?pk=")] == [400, 400]
    assert len([one for one in reasons(caplog) if "missing or empty" in one]) == 2


@pytest.mark.parametrize("inner", [view, aview])
def test_the_reason_of_a_refused_key_is_logged(
    urls: Urls, caplog: pytest.LogCaptureFixture, inner: Any
) -> None:
    urls(path("pay/", idempotent(key="get:event", scope="acme")(inner)))
    for query in ("?event=1&event=2", "?event=", ""):
        assert [answer.status_code for answer in answers(f"/pay/{query}")] == [400, 400]
        logged = reasons(caplog)
        assert len(logged) == 2, logged
        assert all("refused a request for get:event: " in one for one in logged)

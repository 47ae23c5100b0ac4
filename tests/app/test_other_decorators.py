"""Locks of views together with decorators and middleware of Django and of the site."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.cache import cache
from django.core.exceptions import PermissionDenied
from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client
from django.urls import ResolverMatch, path
from django.views.decorators.cache import cache_page
from pytest_django import Settings

from redlock_django import lock_resource
from redlock_django.testing import held_elsewhere
from testproject.shop.models import Order
from tests.app.conftest import LOCK_MIDDLEWARE, MEMORY, Urls
from tests.views.kinds import KEY, KINDS, body

locked = lock_resource("order:<int:pk>")
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _plain(memory: None, settings: Settings) -> None:
    settings.MIDDLEWARE = [LOCK_MIDDLEWARE]


def pay(request: HttpRequest, pk: int) -> HttpResponse:
    return HttpResponse()


async def apay(request: HttpRequest, pk: int) -> HttpResponse:
    return HttpResponse()


class ReplacesMatch:
    """A middleware that replaces `request.resolver_match`."""

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> Any:
        return self.get_response(request)

    def process_view(self, request: HttpRequest, *_: object) -> None:
        request.resolver_match = ResolverMatch(lambda request: None, (), {})


NAMES = ("function", "as_view", "dispatch", "mixin", "REST handler", "rule")


@pytest.mark.parametrize("kind", NAMES)
def test_a_view_keeps_its_transaction_when_a_middleware_replaces_its_match(
    urls: Urls, settings: Settings, kind: str
) -> None:
    settings.MIDDLEWARE = [LOCK_MIDDLEWARE, f"{__name__}.ReplacesMatch"]
    rules = [{"view": "pay", "key": KEY}] if KINDS[kind].by_rule else []
    settings.REDLOCK = {"default": {"BACKEND": MEMORY, "RULES": rules}}
    body[:] = [lambda request: HttpResponse("atomic" if connection.in_atomic_block else "")]
    urls(KINDS[kind].make())
    assert Client().post("/7/").content == b"atomic"


@pytest.mark.django_db
def test_in_a_test_with_a_transaction_such_a_view_is_rolled_back(
    urls: Urls, settings: Settings
) -> None:
    @locked
    def fail(request: HttpRequest, pk: int) -> HttpResponse:
        Order.objects.create(total=1)
        raise PermissionDenied

    settings.MIDDLEWARE = [LOCK_MIDDLEWARE, f"{__name__}.ReplacesMatch"]
    urls(path("<int:pk>/", fail))
    assert Client().post("/7/").status_code == 403
    assert not Order.objects.exists()


@pytest.mark.parametrize("is_async", [False, True])
def test_what_on_locked_returns_is_not_cached(urls: Urls, plain: None, is_async: bool) -> None:
    cache.clear()

    def served(own: HttpResponse) -> Any:
        lock_it = lock_resource("order:<int:pk>", on_locked=lambda request, error: own)
        return cache_page(60)(lock_it(apay if is_async else pay))

    kept = HttpResponse("busy", headers={"Cache-Control": "max-age=1"})
    urls(path("own/<int:pk>/", served(HttpResponse("busy"))), path("kept/<int:pk>/", served(kept)))
    get: Any = async_to_sync(AsyncClient().get) if is_async else Client().get
    with held_elsewhere("order:7"):
        assert get("/own/7/")["Cache-Control"] == "no-store"
        assert get("/kept/7/")["Cache-Control"] == "max-age=1"
    assert get("/own/7/").content == b""

"""Locks of views together with decorators and middleware of Django and of the site."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.cache import cache
from django.core.exceptions import PermissionDenied
from django.db import connection, connections
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client
from django.urls import ResolverMatch, path
from django.utils.decorators import method_decorator
from django.views.decorators.cache import cache_page
from django.views.decorators.http import condition, etag, require_POST
from django.views.generic import View
from pytest_django import Settings
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from redlock_django import LockResourceMixin, idempotent, lock_resource
from redlock_django.contrib.drf import LockAPIMixin
from testproject.shop.models import Order
from tests.app.checking import found
from tests.app.conftest import LOCK_MIDDLEWARE, MEMORY, async_instance, instance

Urls = Callable[..., None]
locked = lock_resource("order:<int:pk>")
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _plain(memory: None, settings: Settings) -> None:
    settings.MIDDLEWARE = [LOCK_MIDDLEWARE]


def pay(request: HttpRequest, pk: int) -> HttpResponse:
    return HttpResponse("atomic" if connection.in_atomic_block else "")


async def apay(request: HttpRequest, pk: int) -> HttpResponse:
    return HttpResponse()


class Pay(View):
    def post(self, request: HttpRequest, pk: int) -> HttpResponse:
        return pay(request, pk)


class Mixed(LockResourceMixin, Pay):
    lock_key = "order:<int:pk>"


@method_decorator(locked, name="dispatch")
class Dispatch(Pay):
    pass


class RestPay(LockAPIMixin, APIView):  # type: ignore[misc]
    authentication_classes = ()
    permission_classes = ()

    def post(self, request: Request, pk: int) -> HttpResponse:
        return pay(request, pk)


class RestLocked(RestPay):
    @locked
    def post(self, request: Request, pk: int) -> HttpResponse:
        return pay(request, pk)


class ReplacesMatch:
    """A middleware that replaces `request.resolver_match`."""

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> Any:
        return self.get_response(request)

    def process_view(self, request: HttpRequest, *_: object) -> None:
        request.resolver_match = ResolverMatch(lambda request: None, (), {})


@pytest.mark.parametrize(
    "view",
    [
        locked(pay),
        locked(Pay.as_view()),
        Dispatch.as_view(),
        Mixed.as_view(),
        RestPay.as_view(),
        RestLocked.as_view(),
        pay,
    ],
)
def test_a_view_keeps_its_transaction_when_a_middleware_replaces_its_match(
    urls: Urls, settings: Settings, view: Any
) -> None:
    settings.MIDDLEWARE = [LOCK_MIDDLEWARE, f"{__name__}.ReplacesMatch"]
    rule = {"view": "ruled", "key": "order:<int:pk>"}
    settings.REDLOCK = {"default": {"BACKEND": MEMORY, "RULES": [rule] if view is pay else []}}
    urls(path("<int:pk>/", view, name="ruled"))
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
def test_what_on_locked_returns_is_not_cached(
    urls: Urls,
    monkeypatch: pytest.MonkeyPatch,
    held_elsewhere: Callable[[str], Any],
    is_async: bool,
) -> None:
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", False)
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


def version(request: HttpRequest, pk: int) -> str:
    return '"1"'


class EtagOnHandler(View):
    @etag(version)
    @locked
    def post(self, request: HttpRequest, pk: int) -> HttpResponse:
        return HttpResponse()


@method_decorator([etag(version), locked], name="dispatch")
class EtagOnDispatch(Pay):
    pass


@method_decorator([locked, etag(version)], name="dispatch")
class EtagInside(Pay):
    pass


@method_decorator(etag(version), name="dispatch")
class EtagOnMixin(Mixed):
    pass


class EtagOnAction(ViewSet):  # type: ignore[misc]
    @etag(version)
    @locked
    def pay(self, request: Request, pk: int) -> Response:
        return Response()


@method_decorator([etag(version), locked], name="dispatch")
class EtagOnViewSet(ViewSet):  # type: ignore[misc]
    def pay(self, request: Request, pk: int) -> Response:
        return Response()


@pytest.mark.parametrize(
    ("view", "name"),
    [
        (EtagOnAction.as_view({"post": "pay"}), ".pay"),
        (EtagOnViewSet.as_view({"post": "pay"}), ".EtagOnViewSet"),
        (etag(version)(locked(pay)), ".pay"),
        (condition(version)(locked(apay)), ".apay"),
        (require_POST(etag(version)(require_POST(locked(pay)))), ".pay"),
        (etag(version)(idempotent(pay)), ".pay"),
        (etag(version)(locked(Pay.as_view())), ".Pay"),
        (EtagOnHandler.as_view(), ".post"),
        (EtagOnDispatch.as_view(), ".dispatch"),
        (EtagOnMixin.as_view(), ".dispatch"),
        (etag(version)(partial(locked(pay))), ".pay"),
        (condition(version)(partial(locked(apay))), ".apay"),
        (partial(etag(version)(idempotent(pay))), ".pay"),
        (etag(version)(instance(locked)), ".Pay.__call__"),
        (condition(version)(async_instance(locked)), ".Pay.__call__"),
        (require_POST(instance(method_decorator([etag(version), locked]))), ".__call__"),
        (etag(version)(partial(instance(method_decorator(locked)))), ".__call__"),
        (partial(locked(etag(version)(pay))), None),
        (locked(etag(version)(partial(pay))), None),
        (instance(method_decorator([locked, etag(version)])), None),
        (etag(version)(instance(require_POST)), None),
        (locked(etag(version)(pay)), None),
        (etag(version)(pay), None),
        (EtagInside.as_view(), None),
        (require_POST(locked(pay)), None),
    ],
)
def test_a_condition_that_is_compared_before_the_lock(
    urls: Urls,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    sees_commits: None,
    view: Any,
    name: str | None,
) -> None:
    urls(path("<int:pk>/", view))
    if name is None:
        assert "W057" not in found()
    else:
        assert f"{name}: @condition, @etag or @last_modified is above" in found()["W057"]


def test_the_checks_call_no_decorator_of_a_view_without_a_lock(
    urls: Urls, sees_commits: None
) -> None:
    called: list[Any] = []

    def counted(view: Any) -> Any:
        called.append(view)
        return view

    @method_decorator([counted, etag(version)], name="dispatch")
    class Free(View):
        pass

    urls(path("<int:pk>/", Free.as_view()))
    called.clear()  # Django has decorated a function
    found()
    assert not called

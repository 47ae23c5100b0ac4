"""A lock around a view, and another one on its handler: of one name an error, of two in order."""

# No `from __future__ import annotations`: django-ninja reads the annotations of its functions.
# ruff: noqa: I002

from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connections
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client
from django.urls import path
from django.utils.decorators import method_decorator
from django.views.generic import View
from ninja import NinjaAPI
from pytest_django import Settings
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import ViewSet

from redlock_django import LockResourceMixin, lock, lock_resource
from redlock_django.contrib.drf import LockAPIMixin
from redlock_django.exceptions import AlreadyHeld, InvalidRedlock
from tests.app.checking import found
from tests.app.conftest import LOCK_MIDDLEWARE, MEMORY, Urls
from tests.inspecting import is_free

KEY = "order:<int:pk>"
locked = lock_resource(KEY)
RULE = "rule 1 of RULES in REDLOCK['default']"
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _plain(memory: None, settings: Settings, plain: None) -> None:
    settings.MIDDLEWARE = [LOCK_MIDDLEWARE]


def sync_class() -> Any:
    class Pay(View):
        @locked
        def post(self, request: HttpRequest, pk: int) -> HttpResponse:
            return HttpResponse()

    return Pay


def decorated_class() -> Any:
    class Pay(View):
        @method_decorator(locked)
        def post(self, request: HttpRequest, pk: int) -> HttpResponse:
            return HttpResponse()

    return Pay


def async_class() -> Any:
    class Pay(View):
        @locked
        async def post(self, request: HttpRequest, pk: int) -> HttpResponse:
            return HttpResponse()

    return Pay


CLASSES = {"sync": sync_class, "method_decorator": decorated_class, "async": async_class}


def mixed(view: Any) -> Any:
    class Own(LockResourceMixin, view):  # type: ignore[misc]
        lock_key = KEY

    return Own.as_view()


AROUND: dict[str, Callable[[Any], Any]] = {
    "rule": lambda view: view.as_view(),
    "as_view": lambda view: locked(view.as_view()),
    "dispatch": lambda view: method_decorator(locked, name="dispatch")(view).as_view(),
    "mixin": mixed,
}


def viewset() -> Any:
    class Orders(LockAPIMixin, ViewSet):  # type: ignore[misc]
        authentication_classes = ()
        permission_classes = ()

        @locked
        def pay(self, request: Request, pk: int) -> Response:
            return Response({})

    return [path("<int:pk>/", Orders.as_view({"post": "pay"}), name="pay")]


def operation() -> Any:
    api = NinjaAPI(urls_namespace="twice")

    @api.post("/{int:pk}/", url_name="pay")
    @locked
    def pay(request: HttpRequest, pk: int) -> HttpResponse:
        return HttpResponse()

    return api.urls[0]


def send(view: Any, url: str = "/7/") -> Any:
    is_async = view is async_class
    post: Any = async_to_sync(AsyncClient().post) if is_async else Client().post
    return post(url)


def rules(settings: Settings, **rule: Any) -> None:
    settings.REDLOCK = {"default": {"BACKEND": MEMORY, "RULES": [{"key": KEY, **rule}]}}


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("view", CLASSES)
def test_a_name_that_is_locked_around_the_handler_is_an_error_that_names_both(
    urls: Urls, settings: Settings, view: str, around: str
) -> None:
    urls(path("<int:pk>/", AROUND[around](CLASSES[view]()), name="pay"))
    if around == "rule":
        rules(settings, view="pay")
    name = "Own" if around == "mixin" else "Pay"
    place = RULE if around == "rule" else name
    with pytest.raises(AlreadyHeld, match=r"\.post locks 'order:7', which ") as caught:
        send(CLASSES[view])
    assert f"{place} has locked already in this request" in str(caught.value)
    assert is_free("order:7")


@pytest.mark.parametrize(("pattern", "name"), [(viewset, "Orders.pay"), (operation, "pay")])
def test_a_rule_around_a_handler_of_a_framework_is_an_error_that_names_both(
    urls: Urls, settings: Settings, pattern: Callable[[], Any], name: str
) -> None:
    urls(*pattern())
    rules(settings, path="<int:pk>/")
    with pytest.raises(AlreadyHeld, match=rf"{name} locks 'order:7', which rule 1 of RULES"):
        Client().post("/7/")


@pytest.mark.parametrize(
    "rule", [{"methods": ["GET"]}, {"key": "order:<int:pk>:paid"}, {"using": "other"}]
)
def test_locks_that_never_meet_are_no_error(
    urls: Urls, settings: Settings, rule: dict[str, Any]
) -> None:
    urls(path("<int:pk>/", sync_class().as_view(), name="pay"))
    rules(settings, view="pay", **rule)
    settings.REDLOCK["other"] = {"BACKEND": MEMORY, "KEY_PREFIX": "other"}
    assert found() == {}
    assert Client().post("/7/").status_code == 200


@pytest.mark.parametrize("around", AROUND)
def test_another_name_is_locked_in_a_transaction_that_must_see_commits(
    urls: Urls, settings: Settings, monkeypatch: pytest.MonkeyPatch, around: str
) -> None:
    class Pay(View):
        @lock_resource("shop")
        def post(self, request: HttpRequest, pk: int) -> HttpResponse:
            raise AssertionError("never")

    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    urls(path("<int:pk>/", AROUND[around](Pay), name="pay"))
    if around == "rule":
        rules(settings, view="pay")
    with pytest.raises(InvalidRedlock, match="which may read data from before the lock"):
        Client().post("/7/")


def test_two_names_are_locked_from_the_outside_to_the_inside(
    urls: Urls,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    happened: list[str],
    sees_commits: None,
) -> None:
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    urls(path("<int:pk>/", sync_class().as_view(), name="pay"))
    rules(settings, view="pay", key="shop")
    assert found() == {}
    assert Client().post("/7/").status_code == 200
    assert happened == [
        "lock", "BEGIN", "lock", *["guard"] * 3, "COMMIT", "release", "release",
    ]  # fmt: skip


def test_a_name_that_a_middleware_has_locked_is_an_error(
    urls: Urls,
) -> None:
    urls(path("<int:pk>/", locked(sync_class().as_view())))
    with lock("order:7"), pytest.raises(AlreadyHeld, match="code around it, such as a middleware"):
        Client().post("/7/")

"""`method_decorator` and `decorate_view`: a decorator of ours around others knows its view."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client
from django.urls import path
from django.utils.decorators import method_decorator
from django.views.decorators.csrf import csrf_exempt
from django.views.generic import View
from ninja import NinjaAPI
from ninja.decorators import decorate_view
from pytest_django import Settings
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from redlock_django import idempotent, lock_resource
from redlock_django.contrib.drf import LockAPIMixin
from redlock_django.exceptions import InvalidRedlock
from redlock_django.testing import held_elsewhere
from tests.app.conftest import Urls, wrapping
from tests.inspecting import is_free

locked = lock_resource("order:7")
by_anyone = idempotent(anonymous_scope=lambda request, **_: "anyone")
KEY = {"Idempotency-Key": "k-1"}

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("memory", "plain"),
]


@pytest.mark.parametrize("server", ["asgi", "wsgi"])
@pytest.mark.parametrize("ours", [locked, by_anyone])
def test_an_async_class_is_run_as_one(urls: Urls, server: str, ours: Any) -> None:
    @method_decorator([ours, csrf_exempt], name="dispatch")
    class Decorated(View):
        async def post(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse("free" if await sync_to_async(is_free)("order:7") else "locked")

    urls(path("", Decorated.as_view()))
    post: Any = async_to_sync(AsyncClient().post) if server == "asgi" else Client().post
    assert post("/", headers=KEY).content == (b"locked" if ours is locked else b"free")


class Sync(View):
    def post(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()


class Async(View):
    async def post(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse()


class Api(LockAPIMixin, APIView):  # type: ignore[misc]
    authentication_classes = ()
    permission_classes = ()

    def post(self, request: Request) -> Response:
        return Response()


class Actions(LockAPIMixin, ViewSet):  # type: ignore[misc]
    authentication_classes = ()
    permission_classes = ()

    def pay(self, request: Request) -> Response:
        return Response()


CLASSES: dict[str, tuple[type[Any], Callable[[type[Any]], Any]]] = {
    "sync": (Sync, lambda owner: owner.as_view()),
    "async": (Async, lambda owner: owner.as_view()),
    "api": (Api, lambda owner: owner.as_view()),
    "view set": (Actions, lambda owner: owner.as_view({"post": "pay"})),
}
REFUSED: dict[str, tuple[list[Any], str]] = {
    "two locks": ([locked, lock_resource("shop")], "has two lock decorators"),
    "apart": ([locked, wrapping, by_anyone], "@idempotent is below the lock"),
    "twice": ([idempotent, by_anyone], "decorated with @idempotent twice"),
    "login inside": ([by_anyone, login_required], "a login or permission decorator is inside"),
}


def sent(urls: Urls, name: str, owner: type[Any]) -> Any:
    urls(path("", CLASSES[name][1](owner)))
    post: Any = async_to_sync(AsyncClient().post) if name == "async" else Client().post
    return partial(post, "/", headers=KEY)


@pytest.mark.parametrize("place", ["dispatch", "handler", "dispatch of a base"])
@pytest.mark.parametrize("refused", REFUSED)
@pytest.mark.parametrize("name", CLASSES)
def test_each_request_refuses_decorators_of_a_method(
    urls: Urls, settings: Settings, name: str, refused: str, place: str
) -> None:
    settings.REST_FRAMEWORK = {"UNAUTHENTICATED_USER": None}
    decorators, message = REFUSED[refused]
    base = CLASSES[name][0]
    handler = "pay" if base is Actions else "post"
    decorated = handler if place == "handler" else "dispatch"
    owner: Any = method_decorator(decorators, name=decorated)(type("Pay", (base,), {}))
    if place == "dispatch of a base":
        owner = type("Derived", (owner,), {"dispatch": wrapping(owner.dispatch)})
    send = sent(urls, name, owner)
    with pytest.raises(InvalidRedlock, match=message):
        send()


@pytest.mark.parametrize(
    "decorators",
    [[locked, by_anyone], [by_anyone, locked], [locked], [locked, csrf_exempt]],
)
@pytest.mark.parametrize("name", ["sync", "async"])
def test_a_lock_of_a_dispatch_around_an_idempotent_handler_is_refused(
    urls: Urls, name: str, decorators: list[Any]
) -> None:
    """A record outside of the lock is another matter."""
    base = CLASSES[name][0]
    inner = type("Inner", (base,), {"post": idempotent(base.post)})
    send = sent(urls, name, method_decorator(decorators, name="dispatch")(inner))
    if decorators[0] is by_anyone:
        assert send().status_code == 200
    else:
        with pytest.raises(InvalidRedlock, match="@idempotent is below the lock"):
            send()


@pytest.mark.parametrize(
    ("ours", "message"), [(locked, "@idempotent is below the lock"), (idempotent, "twice")]
)
def test_a_decorator_around_an_idempotent_operation_is_an_error(ours: Any, message: str) -> None:
    """A replay would wait for the lock, or be recorded twice."""

    @decorate_view(ours)
    @idempotent
    def pay(request: HttpRequest) -> HttpResponse:
        raise AssertionError("never")

    with pytest.raises(InvalidRedlock, match=message):
        NinjaAPI(urls_namespace=message).post("/")(pay)


def test_classes_that_inherit_one_dispatch_keep_their_own_decorators(urls: Urls) -> None:
    class Free(View):
        def post(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse(request.headers.get("Idempotency-Key"))

    def decorated(*decorators: Any) -> Any:
        return method_decorator([*decorators, csrf_exempt], name="dispatch")(type("", (Free,), {}))

    urls(
        path("locked/", decorated(locked).as_view()),
        path("both/", decorated(by_anyone, locked).as_view()),
        path("once/", decorated(by_anyone).as_view()),
    )
    for _ in range(2):
        with held_elsewhere("order:7"):
            answers = [Client().post(f"/{name}/", headers=KEY) for name in ("locked", "once")]
        assert [answer.status_code for answer in answers] == [423, 200]
        assert "Idempotent-Replayed" not in answers[0]
    assert answers[1]["Idempotent-Replayed"] == "true"
    assert Client().post("/both/", headers=KEY).status_code == 422  # the key of another path

"""Permits in views: decorators, mixins, rules, frameworks, streams, transactions, repeats."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ninja
import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.test import AsyncClient, AsyncRequestFactory, Client, RequestFactory
from django.urls import path
from django.views.generic import View
from pytest_django import Settings
from rest_framework.response import Response
from rest_framework.views import APIView

from redlock_django import LockResourceMixin, idempotent, lock, lock_resource
from redlock_django.contrib.drf import LockAPIMixin
from redlock_django.exceptions import InvalidRedlock, LimitReached, RedlockError
from redlock_django.testing import assert_locked, assert_not_locked, held_elsewhere
from testproject.shop.models import Order
from tests.app.conftest import LOCK_MIDDLEWARE, MEMORY
from tests.waiting import is_wanted, until, until_wanted

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("memory")]
Urls = Callable[..., None]
NAME = "report:7"


def report(request: HttpRequest, pk: int) -> HttpResponse:
    assert_locked(f"report:{pk}")
    with lock(f"report:{pk}", limit=2, reentrant=True) as held:  # the slot of the request
        assert held.slot in (0, 1)
    assert_locked(f"report:{pk}")
    return HttpResponse("made")


def assert_at_most_two(ask: Callable[[], Any], status: int = 423) -> None:
    """Assert that a request is answered beside one holder of the name, and refused beside two."""
    with held_elsewhere(NAME):
        assert ask().status_code == 200
    with held_elsewhere(NAME, limit=2):
        refused = ask()
    assert refused.status_code == status
    assert refused["Retry-After"]
    assert b"limit-reached" in refused.content or b"As many requests" in refused.content
    assert ask().status_code == 200
    assert_not_locked(NAME)


@pytest.mark.parametrize("status", [423, 429])
def test_a_class_with_the_mixin(urls: Urls, status: int) -> None:
    class Report(LockResourceMixin, View):
        lock_key = "report:<int:pk>"
        lock_limit = 2
        lock_status = status

        def get(self, request: HttpRequest, pk: int) -> HttpResponse:
            return report(request, pk)

    urls(path("<int:pk>/", Report.as_view()))
    assert_at_most_two(lambda: Client().get("/7/"), status)


def test_a_class_that_computes_its_name(urls: Urls) -> None:
    class Report(LockResourceMixin, View):
        lock_limit = 2

        def get_lock_key(self) -> str:
            return f"report:{self.kwargs['pk']}"

        def get(self, request: HttpRequest, pk: int) -> HttpResponse:
            return report(request, pk)

    urls(path("<int:pk>/", Report.as_view()))
    assert_at_most_two(lambda: Client().get("/7/"))


def test_an_async_view(urls: Urls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", False)
    urls(path("<int:pk>/", lock_resource("report:<int:pk>", limit=2)(areport)))
    assert_at_most_two(lambda: Client().get("/7/"))


def test_a_rule(urls: Urls, settings: Settings) -> None:
    urls(path("<int:pk>/", report, name="report"))
    rule = {"view": "report", "key": "report:<int:pk>", "limit": 2, "status": 429}
    settings.REDLOCK = {"default": {"BACKEND": MEMORY, "RULES": [rule]}}
    settings.MIDDLEWARE = [LOCK_MIDDLEWARE]
    assert_at_most_two(lambda: Client().get("/7/"), 429)


@pytest.mark.parametrize("limit", [0, True, "2", 1001])
def test_a_rule_with_a_wrong_limit_is_an_error_at_start(
    urls: Urls, settings: Settings, limit: Any
) -> None:
    urls(path("<int:pk>/", report, name="report"))
    rule = {"view": "report", "key": "report:<int:pk>", "limit": limit}
    settings.REDLOCK = {"default": {"BACKEND": MEMORY, "RULES": [rule]}}
    settings.MIDDLEWARE = [LOCK_MIDDLEWARE]
    with pytest.raises(InvalidRedlock, match=r"rule 1 .*limit must be a whole number from 1 to"):
        Client().get("/7/")


class Reports(LockAPIMixin, APIView):
    authentication_classes: tuple[Any, ...] = ()
    permission_classes: tuple[Any, ...] = ()

    @lock_resource("report:<int:pk>", limit=2, status=429)
    def get(self, request: Any, pk: int) -> Response:
        assert_locked(NAME)
        assert connection.in_atomic_block
        return Response({"made": pk})


def test_a_view_of_rest_framework(urls: Urls, settings: Settings) -> None:
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "rest_framework"]
    settings.MIDDLEWARE = [LOCK_MIDDLEWARE]
    urls(path("<int:pk>/", Reports.as_view()))
    assert_at_most_two(lambda: Client().get("/7/"), 429)


api = ninja.NinjaAPI(urls_namespace="permits")


@api.get("/{pk}/")
@lock_resource("report:<int:pk>", limit=2, status=429)
def ninja_report(request: HttpRequest, pk: int) -> dict[str, int]:
    assert_locked(NAME)
    return {"made": pk}


def test_an_operation_of_ninja(
    urls: Urls, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", False)
    settings.MIDDLEWARE = [LOCK_MIDDLEWARE]
    urls(path("", api.urls))
    assert_at_most_two(lambda: Client().get("/7/"), 429)


def test_a_slot_is_released_after_commit(urls: Urls, happened: list[str]) -> None:
    @lock_resource("report:<int:pk>", limit=2)
    def made(request: HttpRequest, pk: int) -> HttpResponse:
        Order.objects.create(number="A-1", total=1)
        return HttpResponse()

    urls(path("<int:pk>/", made))
    with held_elsewhere(NAME):
        assert Client().get("/7/").status_code == 200
    assert happened == ["lock", "BEGIN", "guard", "COMMIT", "release"]


def test_a_slot_that_was_lost_rolls_its_view_back(
    urls: Urls, settings: Settings, lose_locks: Callable[[], None]
) -> None:
    @lock_resource("report:<int:pk>", limit=2)
    def made(request: HttpRequest, pk: int) -> HttpResponse:
        Order.objects.create(number="A-1", total=1)
        lose_locks()
        return HttpResponse()

    settings.MIDDLEWARE = [LOCK_MIDDLEWARE]
    urls(path("<int:pk>/", made))
    answer = Client().get("/7/", headers={"Accept": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (503, "lock-lost")
    assert not Order.objects.exists()


def test_a_stream_holds_its_slot_until_it_is_closed(urls: Urls, settings: Settings) -> None:
    @lock_resource("report:<int:pk>", limit=2)
    def stream(request: HttpRequest, pk: int) -> StreamingHttpResponse:
        return StreamingHttpResponse(iter([b"a", b"b"]))

    urls(path("<int:pk>/", stream))
    first: Any = Client().get("/7/")
    second: Any = Client().get("/7/")
    assert Client().get("/7/").status_code == 423
    assert first.getvalue() == b"ab"
    third: Any = Client().get("/7/")
    assert third.status_code == 200
    second.close()
    third.close()
    assert_not_locked(NAME)


async def test_an_async_stream_holds_its_slot_until_it_is_closed(
    urls: Urls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", False)

    @lock_resource("report:<int:pk>", limit=2)
    async def stream(request: HttpRequest, pk: int) -> StreamingHttpResponse:
        async def content() -> AsyncIterator[bytes]:
            yield b"a"

        return StreamingHttpResponse(content())

    urls(path("<int:pk>/", stream))
    async with held_elsewhere(NAME):
        answer: Any = await AsyncClient().get("/7/")
        assert (await AsyncClient().get("/7/")).status_code == 423
        assert [chunk async for chunk in answer.streaming_content] == [b"a"]
    assert_not_locked(NAME)


def test_a_repeated_request_takes_no_slot_of_its_own(urls: Urls, settings: Settings) -> None:
    ran: list[int] = []

    @idempotent(anonymous_scope=lambda request, **_: "all")
    @lock_resource("report:<int:pk>", limit=2, status=429)
    def made(request: HttpRequest, pk: int) -> HttpResponse:
        ran.append(pk)
        Order.objects.create(number=str(len(ran)), total=1)
        return JsonResponse({"made": pk})

    settings.MIDDLEWARE = [LOCK_MIDDLEWARE]
    urls(path("<int:pk>/", made))
    with held_elsewhere(NAME, limit=2):
        refused = Client().post("/7/", headers={"Idempotency-Key": "k-1"})
        assert refused.status_code == 429
        assert ran == []
    first = Client().post("/7/", headers={"Idempotency-Key": "k-1"})
    assert first.status_code == 200, "a request that was refused took no effect"
    with held_elsewhere(NAME, limit=2):
        again = Client().post("/7/", headers={"Idempotency-Key": "k-1"})
    assert (again.status_code, again["Idempotent-Replayed"]) == (200, "true")
    assert ran == [7]


def test_on_locked_answers_a_limit_that_is_reached() -> None:
    def shown(request: HttpRequest, error: RedlockError) -> HttpResponse:
        assert isinstance(error, LimitReached)
        return HttpResponse(f"{error.resource} is busy", status=429)

    locked = lock_resource("report:<int:pk>", limit=2, on_locked=shown)(report)
    with held_elsewhere(NAME, limit=2):
        answer = locked(RequestFactory().get("/"), pk=7)
    assert (answer.status_code, answer.content) == (429, b"report:7 is busy")


def test_a_limit_for_each_user() -> None:
    @lock_resource("report:<user.pk>", limit=2, status=429)
    def mine(request: HttpRequest) -> HttpResponse:
        return HttpResponse("made")

    def ask(pk: int) -> HttpResponse:
        request = RequestFactory().get("/", headers={"Accept": "application/json"})
        request.user = User(pk=pk)
        return mine(request)

    with held_elsewhere("report:7", limit=2):
        refused = ask(7)
        assert (refused.status_code, json.loads(refused.content)["code"]) == (429, "limit-reached")
        assert ask(8).status_code == 200


def test_a_view_may_wait_for_a_slot() -> None:
    waiting = lock_resource("report:<int:pk>", limit=2, wait=30)(report)
    request = RequestFactory().get("/")
    with ThreadPoolExecutor(1) as pool:
        with held_elsewhere(NAME, limit=2):
            asked = pool.submit(waiting, request, pk=7)
            until(lambda: is_wanted(NAME), "it waits")
            assert not asked.done()
        assert asked.result().status_code == 200


async def test_an_async_view_may_wait_for_a_slot() -> None:
    waiting = lock_resource("report:<int:pk>", limit=2, wait=30)(areport)
    async with held_elsewhere(NAME):
        other = await lock(NAME, limit=2).aacquire()
        other.disown()
        asked = asyncio.create_task(waiting(AsyncRequestFactory().get("/"), pk=7))
        await until_wanted(NAME)
        assert not asked.done()
        await other.arelease()
        assert (await asked).status_code == 200


async def areport(request: HttpRequest, pk: int) -> HttpResponse:
    async with lock(f"report:{pk}", limit=2, reentrant=True) as held:
        assert held.slot in (0, 1)
    return HttpResponse("made")


def test_what_is_locked_besides_is_locked_in_the_view() -> None:
    with pytest.raises(InvalidRedlock, match=r"acquire the others in the view, with lock\(\)"):
        lock_resource("report:<int:pk>", "printer", limit=2)

    @lock_resource("report:<int:pk>", limit=2)
    def printed(request: HttpRequest, pk: int) -> HttpResponse:
        with lock("printer", until_commit=False):
            assert_locked(NAME, "printer")
        return HttpResponse()

    assert printed(RequestFactory().get("/"), pk=7).status_code == 200

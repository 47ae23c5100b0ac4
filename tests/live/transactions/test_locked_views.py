"""Views whose transaction is their lock: each way to write one works, or is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import ninja
import psycopg
import pytest
from asgiref.sync import sync_to_async
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.template import engines
from django.template.response import TemplateResponse
from django.test import AsyncClient, Client
from django.urls import clear_url_caches, path
from django.utils.decorators import method_decorator
from django.views import View
from ninja.decorators import decorate_view
from pytest_django import Settings
from rest_framework.decorators import api_view
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from redlock_django import (
    IdempotentMixin,
    LockResourceMixin,
    idempotent,
    lock_resource,
    transaction_lock,
)
from redlock_django.contrib.drf import LockAPIMixin
from redlock_django.exceptions import InvalidRedlock
from testproject.shop.models import Order
from tests.live.transactions.conftest import database_alias, delete_orders, hold, is_free

MEMORY = "redlock_django.backends.memory.MemoryBackend"
pytestmark = [pytest.mark.live, pytest.mark.postgres]
locked = lock_resource("order:<int:pk>", in_transaction="pg")
unowned = idempotent(anonymous_scope=lambda request, **_: "all")
seen: dict[str, Any] = {}


def work(pk: int) -> str:
    """Create an order; note whether another client could lock it meanwhile, and what it sees."""
    Order.objects.using("pg").create(number=str(pk), total=1)
    seen["free"] = is_free(seen["holder"], f"order:{pk}")
    return "done"


@locked
def function(request: HttpRequest, pk: int) -> HttpResponse:
    return HttpResponse(work(pk))


@transaction.non_atomic_requests
@locked
def excluded(request: HttpRequest, pk: int) -> HttpResponse:
    return HttpResponse(work(pk))


def body(request: HttpRequest, pk: int) -> HttpResponse:
    with transaction_lock(f"order:{pk}", database="pg"):
        return HttpResponse(work(pk))


def plain(request: HttpRequest, pk: int) -> HttpResponse:
    return HttpResponse(work(pk))


class Plain(View):
    def post(self, request: HttpRequest, pk: int) -> HttpResponse:
        return HttpResponse(work(pk))


class Handler(View):
    @method_decorator(locked)
    def post(self, request: HttpRequest, pk: int) -> HttpResponse:
        return HttpResponse(work(pk))


@method_decorator(locked, name="dispatch")
class Dispatch(Plain):
    pass


class Mixed(LockResourceMixin, Plain):
    lock_key = "order:<int:pk>"
    lock_in_transaction = "pg"


class Api(LockAPIMixin, APIView):
    authentication_classes = ()

    @locked
    def post(self, request: Request, pk: int) -> Response:
        return Response({"done": work(pk)})


@api_view(["POST"])
@locked
def bare_api(request: Request, pk: int) -> HttpResponse:
    return JsonResponse({"done": work(pk)})


api = ninja.NinjaAPI(urls_namespace="in transaction")


@api.post("/function/{pk}/")
@locked
def ninja_function(request: HttpRequest, pk: int) -> dict[str, str]:
    return {"done": work(pk)}


@api.post("/around/{pk}/")
@decorate_view(locked)
def ninja_around(request: HttpRequest, pk: int) -> dict[str, str]:
    return {"done": work(pk)}


WORKING = {
    "function": function,
    "non_atomic_requests": excluded,
    "body": body,
    "rule": plain,
    "as_view": locked(Plain.as_view()),
    "handler": Handler.as_view(),
    "dispatch": Dispatch.as_view(),
    "mixin": Mixed.as_view(),
    "drf": Api.as_view(),
    "api_view": bare_api,
}
urlpatterns = [
    *(path(f"{name}/<int:pk>/", view, name=name) for name, view in WORKING.items()),
    path("ninja/", api.urls),
]
PATHS = [*(f"/{name}/7/" for name in WORKING), "/ninja/function/7/", "/ninja/around/7/"]
RULE = {"view": "rule", "key": "order:<int:pk>", "in_transaction": "pg"}


@pytest.fixture
def client(pg: str, holder: psycopg.Connection, settings: Settings) -> Iterator[Client]:
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = ["redlock_django.middleware.LockMiddleware"]
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "rest_framework"]
    # No store is asked: there is none at this address.
    settings.REDLOCK = {"default": {"MASTERS": ["redis://127.0.0.1:1/0"], "RULES": [RULE]}}
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
@pytest.mark.parametrize("url", PATHS)
def test_a_view_is_refused_while_locked_and_runs_after(
    client: Client,
    holder: psycopg.Connection,
    atomic: Callable[..., None],
    url: str,
    is_atomic: bool,
) -> None:
    atomic(is_atomic)
    hold(holder, "order:7")
    answer = client.post(url)
    assert (answer.status_code, answer.json()["code"]) == (423, "resource-locked")
    # As for lock() in a view's own code, it is not known what the view has done before.
    assert answer.json()["retryable"] is (is_atomic or not url.startswith("/body/"))
    assert (orders(), "free" in seen) == (0, False)
    holder.rollback()
    assert client.post(url).status_code == 200
    assert seen["free"] is False
    assert is_free(holder, "order:7")
    assert orders() == 1


def test_a_view_that_fails_changes_nothing_and_frees_the_lock(
    client: Client, holder: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(seen, "holder", None)  # work() fails after it has created the order
    with pytest.raises(AttributeError):
        client.post("/function/7/")
    assert orders() == 0
    assert is_free(holder, "order:7")


def test_a_request_waits_until_its_limit(
    client: Client, holder: psycopg.Connection, settings: Settings
) -> None:
    section = settings.REDLOCK["default"]
    for changed, waited in (({"WAIT": 0.05}, True), ({"WAIT": 30, "MAX_WAITERS": 0}, False)):
        settings.REDLOCK = {"default": {**section, **changed}}
        hold(holder, "order:7")
        statements: list[str] = []

        def note(execute: Any, sql: str, *rest: Any, to: list[str] = statements) -> Any:
            to.append(sql)
            return execute(sql, *rest)

        with connections["pg"].execute_wrapper(note):
            assert client.post("/function/7/").status_code == 423
        assert any("pg_advisory_xact_lock" in sql for sql in statements) is waited
        holder.rollback()


@pytest.mark.parametrize(
    "given", [{"status": 409}, {"on_locked": lambda *_: HttpResponse("later")}]
)
def test_a_refusal_is_answered_as_for_other_locks(
    client: Client, holder: psycopg.Connection, given: dict[str, Any], rf: Any
) -> None:
    view = lock_resource("order:<int:pk>", in_transaction="pg", **given)(plain)
    hold(holder, "order:7")
    answer = view(rf.post("/"), pk=7)
    assert answer.status_code == given.get("status", 200)


def test_other_databases_begin_after_the_lock_and_commit_before_it_ends(
    client: Client, atomic: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    atomic(alias="default")
    happened = []
    connections["pg"].ensure_connection()
    with connections["default"].cursor(), monkeypatch.context() as patched:
        for alias, begin in (
            ("default", "_start_transaction_under_autocommit"),
            ("pg", "_set_autocommit"),
        ):
            for name in (begin, "_commit"):
                real = getattr(connections[alias], name)

                def spied(*a: Any, real: Any = real, what: str = f"{alias} {name}") -> Any:
                    happened.append(what)
                    return real(*a)

                patched.setattr(connections[alias], name, spied)
        assert client.post("/function/7/").status_code == 200
    assert happened == [
        "pg _set_autocommit",
        "default _start_transaction_under_autocommit",
        "default _commit",
        "pg _commit",
        "pg _set_autocommit",
    ]


# Requests with a key.


@pytest.fixture
def keys(settings: Settings) -> None:
    """Record requests with a key in the database of the lock."""
    settings.REDLOCK = {"default": {"BACKEND": MEMORY, "IDEMPOTENCY": {"DATABASE": "pg"}}}


def test_a_record_is_committed_with_the_lock(
    client: Client, holder: psycopg.Connection, settings: Settings, rf: Any, keys: None
) -> None:
    class Once(LockResourceMixin, IdempotentMixin, Plain):
        lock_key = "order:<int:pk>"
        lock_in_transaction = "pg"
        idempotent_options: Any = {  # noqa: RUF012
            "anonymous_scope": lambda request, **_: "all"
        }

    for view in (unowned(locked(plain)), locked(unowned(plain)), Once.as_view()):
        number = str(len(seen))
        hold(holder, "order:7")
        assert view(request(rf, number), pk=7).status_code == 423
        holder.rollback()
        assert view(request(rf, number), pk=7).content == b"done"
        assert view(request(rf, number), pk=7).headers["Idempotent-Replayed"] == "true"
        assert is_free(holder, "order:7")
        assert orders() == 1
        delete_orders("pg")
        seen[number] = True


def test_a_record_in_another_database_is_refused(
    client: Client, settings: Settings, rf: Any
) -> None:
    settings.REDLOCK = {"default": {"BACKEND": MEMORY, "IDEMPOTENCY": {"DATABASE": "twin"}}}
    with (
        database_alias("twin", connections.settings["pg"]),
        pytest.raises(InvalidRedlock, match=r"of 'pg', .* records it in 'twin'"),
    ):
        unowned(locked(plain))(request(rf, "k"), pk=7)
    assert orders() == 0


def request(rf: Any, key: str) -> HttpRequest:
    made: HttpRequest = rf.post("/", headers={"Idempotency-Key": key})
    return made


# What is refused.


def test_a_response_produced_after_commit_is_refused(
    client: Client, settings: Settings, rf: Any
) -> None:
    @locked
    def streaming(request: HttpRequest, pk: int) -> StreamingHttpResponse:
        return StreamingHttpResponse([work(pk)])

    @locked
    def template(request: HttpRequest, pk: int) -> TemplateResponse:
        return TemplateResponse(request, engines["django"].from_string("done"))

    @api_view(["POST"])
    @locked
    def api(request: Request, pk: int) -> Response:
        return Response({"done": work(pk)})

    with pytest.raises(InvalidRedlock, match="streaming streams its response after COMMIT"):
        streaming(rf.post("/"), pk=7)
    with pytest.raises(InvalidRedlock, match=r"api returned .* use .*LockAPIMixin"):
        api(rf.post("/"), pk=7)
    assert template(rf.post("/"), pk=7).content == b"done"
    assert orders() == 0


def test_a_transaction_of_a_middleware_on_another_database_is_refused(
    client: Client, settings: Settings
) -> None:
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, f"{__name__}.in_default"]
    with pytest.raises(InvalidRedlock, match="'default' is open around"):
        client.post("/function/7/")


def in_default(get_response: Any) -> Any:
    def middleware(request: HttpRequest) -> Any:
        with transaction.atomic("default"):
            return get_response(request)

    return middleware


def test_async_views_are_refused() -> None:
    async def view(request: HttpRequest, pk: int) -> HttpResponse:
        return HttpResponse()

    class Asynchronous(View):
        async def post(self, request: HttpRequest, pk: int) -> HttpResponse:
            return HttpResponse()

    class Mixin(LockResourceMixin, Asynchronous):
        lock_key = "order:<int:pk>"
        lock_in_transaction = "pg"

    for decorated in (view, Asynchronous.as_view()):
        with pytest.raises(InvalidRedlock, match="is an async view, which has no transaction"):
            locked(decorated)
    with pytest.raises(InvalidRedlock, match="Mixin is an async view"):
        Mixin.as_view()


async def test_an_async_class_with_a_locked_dispatch_is_refused(client: Client, rf: Any) -> None:
    @method_decorator(locked, name="dispatch")
    class Asynchronous(View):
        async def post(self, request: HttpRequest, pk: int) -> HttpResponse:
            return HttpResponse()

    with pytest.raises(InvalidRedlock, match="is an async view"):
        await cast("Any", Asynchronous.as_view()(rf.post("/"), pk=7))


async def test_a_sync_view_under_asgi_works(client: Client, holder: psycopg.Connection) -> None:
    answer = await AsyncClient().post("/function/7/")
    await sync_to_async(connections.close_all)()
    assert answer.status_code == 200
    assert seen["free"] is False
    assert is_free(holder, "order:7")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"in_transaction": True}, "must be an alias of DATABASES such as 'default', got True"),
        ({"in_transaction": ""}, "must be an alias of DATABASES"),
        ({"in_transaction": "pg", "ttl": 3}, "has no TTL. Leave out ttl"),
    ],
)
def test_bad_arguments_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRedlock, match=message):
        lock_resource("order:1", **given)

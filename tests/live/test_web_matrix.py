"""Every combination of view, decorators, transactions and database keeps its promises over HTTP.

Each cell is a site of one view. Several clients increment one counter, and send every request twice
if it has a key. Either no update is lost and every key has one effect, or the combination is
refused with a message that says what to write instead. There is no third kind.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ninja
import pytest
from asgiref.sync import sync_to_async
from django.core.signals import got_request_exception
from django.db import connections, transaction
from django.http import HttpRequest, JsonResponse
from django.test import Client
from django.urls import path
from django.utils.decorators import method_decorator
from django.views.generic import View
from pytest_django import Settings
from rest_framework.request import Request
from rest_framework.views import APIView

from redlock_django import idempotent, lock_resource
from redlock_django.contrib.drf import LockAPIMixin
from redlock_django.models import IdempotencyRecord
from tests.app.conftest import LOCK_MIDDLEWARE, MEMORY, urls

__all__ = ["urls"]  # a fixture

ALIAS = "matrix"
CLIENTS, KEYS = 3, 2  # of each client
Decorate = Callable[[Any], Any]

locked = lock_resource("counter:<int:pk>")
deduplicated = idempotent(anonymous_scope=lambda request, **_: "all", in_flight="wait", wait=20)


def increment() -> JsonResponse:
    """Read, wait, write, and note the effect."""
    with connections[ALIAS].cursor() as cursor:
        cursor.execute("INSERT INTO effect (n) VALUES (1)")
        cursor.execute("SELECT value FROM counter")
        value = cursor.fetchone()[0]
        time.sleep(0.001)
        cursor.execute("UPDATE counter SET value = %s", [value + 1])
    return JsonResponse({"value": value + 1})


def function(decorate: Decorate) -> Any:
    def view(request: HttpRequest, pk: int) -> JsonResponse:
        return increment()

    return path("<int:pk>/", decorate(view))


def dispatch(decorate: Decorate) -> Any:
    @method_decorator(decorate, name="dispatch")
    class Dispatch(View):
        def post(self, request: HttpRequest, pk: int) -> JsonResponse:
            return increment()

    return path("<int:pk>/", Dispatch.as_view())


def handler(decorate: Decorate) -> Any:
    class Handler(View):
        @decorate
        def post(self, request: HttpRequest, pk: int) -> JsonResponse:
            return increment()

    return path("<int:pk>/", Handler.as_view())


def rest(decorate: Decorate) -> Any:
    class Rest(LockAPIMixin, APIView):  # type: ignore[misc]
        authentication_classes = ()

        @decorate
        def post(self, request: Request, pk: int) -> JsonResponse:
            return increment()

    return path("<int:pk>/", Rest.as_view())


def bare_rest(decorate: Decorate) -> Any:
    class BareRest(APIView):  # type: ignore[misc]
        authentication_classes = ()

        @decorate
        def post(self, request: Request, pk: int) -> JsonResponse:
            return increment()

    return path("<int:pk>/", BareRest.as_view())


numbers = itertools.count()


def ninja_function(decorate: Decorate) -> Any:
    api = ninja.NinjaAPI(urls_namespace=f"matrix-{next(numbers)}")

    def view(request: HttpRequest, pk: int) -> JsonResponse:
        return increment()

    api.post("/{pk}/")(decorate(view))
    return path("", api.urls)


def asynchronous(decorate: Decorate) -> Any:
    async def view(request: HttpRequest, pk: int) -> JsonResponse:
        return await sync_to_async(increment)()

    return path("<int:pk>/", decorate(view))


VIEWS = (function, dispatch, handler, rest, bare_rest, ninja_function, asynchronous)
DECORATORS: dict[str, Decorate] = {
    "lock above": lambda view: locked(deduplicated(view)),
    "lock below": lambda view: deduplicated(locked(view)),
    "lock only": locked,
    "idempotent only": deduplicated,
}
SAYS = ("Put @", "ATOMIC_REQUESTS", "needs redlock_django.contrib.drf.LockAPIMixin")
"""The part of each refusal that names what to write instead."""

INNER = (handler, bare_rest, ninja_function)
"""The views that Django calls inside the transaction of ATOMIC_REQUESTS."""


def is_refused(view: Any, decorators: str, *, atomic: bool, outer: bool, database: str) -> bool:
    """Return whether a combination must be refused; all others must work."""
    has_key = decorators != "lock only"
    if view is asynchronous:
        # Django refuses ATOMIC_REQUESTS itself.
        return atomic or (outer and database == "sqlite")
    if view is bare_rest and has_key:
        return True
    inside = outer or (atomic and view in INNER)
    return inside and (has_key or database == "sqlite")


class OuterTransaction:
    """A middleware that opens a transaction around LockMiddleware and the view."""

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> Any:
        with transaction.atomic(ALIAS):
            return self.get_response(request)


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def database(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    if request.param == "postgres":
        return {**request.getfixturevalue("postgres")}
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(tmp_path_factory.mktemp("matrix") / "matrix.sqlite3"),
        "OPTIONS": {
            "timeout": 20,
            "transaction_mode": "IMMEDIATE",
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF;",
        },
    }


@pytest.fixture(scope="module")
def tables(database: dict[str, Any], django_db_blocker: Any) -> Iterator[None]:
    """The counter, the effects and the records, in a database of their own."""
    every = connections.configure_settings({"default": {}, ALIAS: database})
    connections.settings[ALIAS] = every[ALIAS]
    with django_db_blocker.unblock():
        with connections[ALIAS].cursor() as cursor:
            for table in ("counter (value integer)", "effect (n integer)"):
                cursor.execute(f"CREATE TABLE {table}")
        with connections[ALIAS].schema_editor() as editor:
            editor.create_model(IdempotencyRecord)
        yield
        with connections[ALIAS].schema_editor() as editor:
            editor.delete_model(IdempotencyRecord)
        with connections[ALIAS].cursor() as cursor:
            cursor.execute("DROP TABLE counter")
            cursor.execute("DROP TABLE effect")
        connections[ALIAS].close()
    del connections[ALIAS], connections.settings[ALIAS]


@pytest.fixture
def errors() -> Iterator[list[str]]:
    """The messages of the exceptions that the site has raised."""
    import sys

    seen: list[str] = []

    def note(**_: Any) -> None:
        seen.append(str(sys.exception() if hasattr(sys, "exception") else sys.exc_info()[1]))

    got_request_exception.connect(note)
    yield seen
    got_request_exception.disconnect(note)


def ask(statement: str) -> int:
    with connections[ALIAS].cursor() as cursor:
        cursor.execute(statement)
        return int(cursor.fetchone()[0]) if cursor.description else 0


def press(has_key: bool) -> set[int]:
    """Send every request of every client, twice at the same time with a key; return statuses."""

    def send(key: str) -> int:
        try:
            client = Client(raise_request_exception=False)
            return client.post("/7/", headers={"Idempotency-Key": key}).status_code
        finally:
            connections[ALIAS].close()

    keys = [f"{client}-{key}" for client in range(CLIENTS) for key in range(KEYS)]
    with ThreadPoolExecutor(CLIENTS * (2 if has_key else 1)) as pool:
        return set(pool.map(send, [key for key in keys for _ in range(2 if has_key else 1)]))


@pytest.mark.live
@pytest.mark.postgres
@pytest.mark.parametrize("outer", [False, True], ids=["", "outer"])
@pytest.mark.parametrize("atomic", [False, True], ids=["plain", "atomic"])
@pytest.mark.parametrize("decorators", DECORATORS)
@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.__name__)
def test_every_combination_keeps_its_promise_or_is_refused(
    tables: None,
    database: dict[str, Any],
    settings: Settings,
    urls: Callable[..., None],
    errors: list[str],
    monkeypatch: pytest.MonkeyPatch,
    django_db_blocker: Any,
    view: Callable[[Decorate], Any],
    decorators: str,
    atomic: bool,
    outer: bool,
) -> None:
    kind = "sqlite" if "sqlite" in database["ENGINE"] else "postgres"
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", False)
    monkeypatch.setitem(connections.settings[ALIAS], "ATOMIC_REQUESTS", atomic)
    settings.MIDDLEWARE = [LOCK_MIDDLEWARE]
    if outer:
        settings.MIDDLEWARE.insert(0, f"{__name__}.OuterTransaction")
    settings.REDLOCK = {
        "default": {"BACKEND": MEMORY, "WAIT": 20, "IDEMPOTENCY": {"DATABASE": ALIAS}}
    }
    has_key = decorators != "lock only"
    must_refuse = is_refused(view, decorators, atomic=atomic, outer=outer, database=kind)
    with django_db_blocker.unblock():
        connections[ALIAS].close()
        for table in ("counter", "effect", IdempotencyRecord._meta.db_table):
            ask(f"DELETE FROM {table}")
        ask("INSERT INTO counter (value) VALUES (0)")
        urls(view(DECORATORS[decorators]))
        statuses = press(has_key)
        value, effects = ask("SELECT value FROM counter"), ask("SELECT count(*) FROM effect")
    if must_refuse:
        assert (statuses, value, effects) == ({500}, 0, 0)
        assert all(any(word in error for word in SAYS) for error in errors), errors
        return
    assert statuses == {200}, errors
    assert effects == CLIENTS * KEYS
    if decorators != "idempotent only":
        assert value == CLIENTS * KEYS

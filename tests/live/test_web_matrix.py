"""Every combination of view, decorators, transactions and database keeps its promises.

Several clients increment one counter, and send every request twice if it has a key. Either no
update is lost and every key has one effect, or the combination is refused with a message that says
what to write instead. There is no third kind. The clients are threads or tasks that call Django's
handler; `test_web_sites.py` has real servers.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import ninja
import pytest
from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.core.handlers.base import BaseHandler
from django.db import connection, connections
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.test import AsyncRequestFactory, RequestFactory
from django.urls import include, path
from django.utils.decorators import method_decorator
from django.views.generic import View
from pytest_django import Settings
from rest_framework.request import Request
from rest_framework.views import APIView

from redlock_django import idempotent, lock_resource
from redlock_django.contrib.drf import LockAPIMixin
from redlock_django.models import IdempotencyRecord
from redlock_django.testing.masters import LocalMaster
from tests.aliases import database_alias, new_database
from tests.timeouts import patient_site

KEYS = 6
THREADS = 6
SAYS = ("Put @", "ATOMIC_REQUESTS", "needs redlock_django.contrib.drf.LockAPIMixin")
"""The part of each refusal that names what to write instead."""

Decorate = Callable[[Any], Any]
locked = lock_resource("counter:<int:pk>")
deduplicated = idempotent(anonymous_scope=lambda request, **_: "all", wait=20)
DECORATORS: dict[str, Decorate] = {
    "both": lambda view: deduplicated(locked(view)),
    "lock-only": locked,
    "idempotent-only": deduplicated,
}


# One increment in every kind of view.


def increment(request: HttpRequest | Request, pk: int) -> JsonResponse:
    """Read, wait, write, and note the effect."""
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO effect (counter) VALUES (%s)", [pk])
        cursor.execute("SELECT value FROM counter WHERE id = %s", [pk])
        value = cursor.fetchone()[0]
        time.sleep(0.001)
        cursor.execute("UPDATE counter SET value = %s WHERE id = %s", [value + 1, pk])
    return JsonResponse({"value": value + 1})


def function(decorate: Decorate) -> Any:
    return path("<int:pk>/", decorate(increment))


def dispatch(decorate: Decorate) -> Any:
    @method_decorator(decorate, name="dispatch")
    class Dispatch(View):
        def post(self, request: HttpRequest, pk: int) -> JsonResponse:
            return increment(request, pk)

    return path("<int:pk>/", Dispatch.as_view())


def handler(decorate: Decorate) -> Any:
    class Handler(View):
        @decorate
        def post(self, request: HttpRequest, pk: int) -> JsonResponse:
            return increment(request, pk)

    return path("<int:pk>/", Handler.as_view())


def rest(decorate: Decorate, *mixins: type) -> Any:
    class Rest(*mixins, APIView):  # type: ignore[misc]
        authentication_classes = ()

        @decorate
        def post(self, request: Request, pk: int) -> JsonResponse:
            return increment(request, pk)

    return path("<int:pk>/", Rest.as_view())


def rest_with_mixin(decorate: Decorate) -> Any:
    return rest(decorate, LockAPIMixin)


numbers = itertools.count(1)


def ninja_function(decorate: Decorate) -> Any:
    api = ninja.NinjaAPI(urls_namespace=f"ninja-{next(numbers)}")

    def view(request: HttpRequest, pk: int) -> JsonResponse:
        return increment(request, pk)

    api.post("/{pk}/")(decorate(view))
    return path("", api.urls)


def asynchronous(decorate: Decorate) -> Any:
    async def view(request: HttpRequest, pk: int) -> JsonResponse:
        return await sync_to_async(increment)(request, pk)

    return path("<int:pk>/", decorate(view))


VIEWS = (function, dispatch, handler, rest_with_mixin, rest, ninja_function, asynchronous)
INNER = (handler, rest, ninja_function)
"""The views that Django calls inside the transaction of ATOMIC_REQUESTS."""

urlpatterns = [
    path(f"{view.__name__}/{name}/", include([view(decorate)]))
    for view in VIEWS
    for name, decorate in DECORATORS.items()
]


def handler500(request: HttpRequest) -> HttpResponse:
    """Answer with the message of the exception, which is otherwise only logged."""
    return HttpResponse(str(sys.exc_info()[1]), status=500)


# The cells.


class Kind(NamedTuple):
    """The settings in which sites differ; with `outer`, a middleware opens a transaction."""

    database: str
    atomic: bool
    outer: bool


KINDS = [
    Kind(*each) for each in itertools.product(("sqlite", "postgres"), (False, True), (False, True))
]
BY_DAY = [Kind("sqlite", False, False), Kind("sqlite", True, True)]
BY_DAY += [Kind("postgres", True, False), Kind("postgres", False, True)]
"""Every pair of two of their properties is covered."""


def is_refused(view: Any, decorators: str, kind: Kind) -> bool:
    """Return whether a combination must be refused; all others must work."""
    has_key = decorators != "lock-only"
    if view is asynchronous:
        # Django refuses ATOMIC_REQUESTS itself.
        return kind.atomic or (kind.outer and kind.database == "sqlite")
    if view is rest and has_key:
        return True
    inside = kind.outer or (kind.atomic and view in INNER)
    return inside and (has_key or kind.database == "sqlite")


def cells() -> Iterator[Any]:
    """Yield all cells; by day, each view with its decorators is on the first kind and another."""
    for number, (view, decorators) in enumerate(itertools.product(VIEWS, DECORATORS)):
        for kind in KINDS:
            names = [kind.database, "atomic" if kind.atomic else "plain", *["outer"] * kind.outer]
            cell = "-".join([view.__name__, decorators, *names])
            by_day = kind in (BY_DAY[0], BY_DAY[1 + number % 3])
            marks = [] if by_day else [pytest.mark.nightly]
            yield pytest.param(view, decorators, kind, id=cell, marks=marks)


Ask = Callable[[str, str], int]


@pytest.fixture(scope="module")
def ask(
    postgres: dict[str, Any], tmp_path_factory: pytest.TempPathFactory, django_db_blocker: Any
) -> Iterator[Ask]:
    """Create both databases as aliases; return a function that sends SQL to one of them."""
    sqlite = {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(tmp_path_factory.mktemp("matrix") / "matrix.sqlite3"),
        "OPTIONS": {
            "timeout": 20,
            "transaction_mode": "IMMEDIATE",
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF;",
        },
    }

    def send(database: str, statement: str) -> int:
        with connections[database].cursor() as cursor:
            cursor.execute(statement)
            return int(cursor.fetchone()[0]) if cursor.description else 0

    with (
        new_database(postgres, "matrix") as entry,
        django_db_blocker.unblock(),
        database_alias("sqlite", sqlite, tables=[IdempotencyRecord]),
        database_alias("postgres", entry, tables=[IdempotencyRecord]),
    ):
        for database in ("sqlite", "postgres"):
            send(database, "CREATE TABLE counter (id integer PRIMARY KEY, value integer)")
            send(database, "CREATE TABLE effect (counter integer)")
        yield send


class Answer(NamedTuple):
    """A response."""

    status: int
    text: str


def read(response: HttpResponseBase) -> Answer:
    """Return what a client receives, and close the response as a server does."""
    assert isinstance(response, HttpResponse)
    response.close()
    return Answer(response.status_code, response.content.decode())


def send_in_threads(url: str, keys: list[str]) -> set[Answer]:
    """Send a request for each key as a WSGI server does; return all different answers."""
    site = BaseHandler()
    site.load_middleware()

    def send(key: str) -> Answer:
        request = RequestFactory().post(url, headers={"Idempotency-Key": key})
        return read(site.get_response(request))

    with ThreadPoolExecutor(THREADS) as pool:
        return set(pool.map(send, keys))


async def send_in_tasks(url: str, keys: list[str]) -> set[Answer]:
    """Send a request for each key as an ASGI server does; return all different answers."""
    site = BaseHandler()
    site.load_middleware(is_async=True)

    async def send(key: str) -> Answer:
        request = AsyncRequestFactory().post(url, headers={"Idempotency-Key": key})
        async with ThreadSensitiveContext():
            response = await site.get_response_async(request)
            return await sync_to_async(read)(response)

    return set(await asyncio.gather(*map(send, keys)))


@pytest.mark.slow
@pytest.mark.live
@pytest.mark.postgres
@pytest.mark.parametrize(("view", "decorators", "kind"), list(cells()))
def test_every_combination_keeps_its_promise_or_is_refused(
    ask: Ask,
    site_masters: list[LocalMaster],
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    view: Any,
    decorators: str,
    kind: Kind,
) -> None:
    outer = ["reversion.middleware.RevisionMiddleware"] if kind.outer else []
    settings.MIDDLEWARE = [*outer, "redlock_django.middleware.LockMiddleware"]
    settings.ROOT_URLCONF = __name__
    settings.REDLOCK = patient_site(site_masters, WAIT=60, MAX_WAITERS=100)
    entry = {**connections.settings[kind.database], "ATOMIC_REQUESTS": kind.atomic}
    monkeypatch.setitem(connections.settings, "default", entry)  # of all threads that begin now
    pk = next(numbers)
    ask(kind.database, f"INSERT INTO counter (id, value) VALUES ({pk}, 0)")
    times = 1 if decorators == "lock-only" else 2
    keys = [f"{pk}-{number}" for number in range(KEYS) for _ in range(times)]
    url = f"/{view.__name__}/{decorators}/{pk}/"
    if view is asynchronous:
        answers = asyncio.run(send_in_tasks(url, keys))
    else:
        answers = send_in_threads(url, keys)
    value = ask(kind.database, f"SELECT value FROM counter WHERE id = {pk}")
    effects = ask(kind.database, f"SELECT count(*) FROM effect WHERE counter = {pk}")
    if is_refused(view, decorators, kind):
        assert {answer.status for answer in answers} == {500}
        assert all(any(words in answer.text for words in SAYS) for answer in answers), answers
        assert (value, effects) == (0, 0)
        return
    assert {answer.status for answer in answers} == {200}, answers
    assert effects == KEYS
    if decorators != "idempotent-only":
        assert value == KEYS

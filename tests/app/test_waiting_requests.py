"""Requests that wait for a lock: MAX_WAITERS, and the connections of a pool in PostgreSQL."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import pytest_django
from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client
from django.urls import path
from pytest_django import Settings

from redlock_django import idempotent, lock_resource
from redlock_django.locking.lock import Lock
from redlock_django.locking.reports import counters
from redlock_django.models import IdempotencyRecord
from redlock_django.testing import held_elsewhere
from redlock_django.web.options import return_pooled_connections
from tests.aliases import database_alias
from tests.app.conftest import LOCK_MIDDLEWARE, Configure, Urls, memory_backend
from tests.views.kinds import KINDS, body
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("plain")
ALIAS = "pooled"
NAME = "order:7"


def query() -> None:
    """Take a connection of the pool, as the query of an authentication does."""
    with connections[ALIAS].cursor() as cursor:
        cursor.execute("SELECT 1")


def signs_in(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    """Make a query before the view, as AuthenticationMiddleware does."""

    def middleware(request: HttpRequest) -> Any:
        query()
        return get_response(request)

    return middleware


SYNC = ("function", "mixin", "REST handler", "ninja", "rule")
ASYNC = ("async function", "async handler, method_decorator")


def waiters() -> int:
    """Return how many clients wait for a lock."""
    backend = memory_backend()
    # A copy: other threads add to it.
    queues = [
        queue for key, queue in backend.masters[0].keyspace.sets.copy().items() if ":queue:" in key
    ]
    return sum(map(len, queues))


def wait_for_waiters(number: int) -> None:
    until(lambda: waiters() == number, "the waiters")


class Request:
    """A request in a thread of its own, which ends as a thread of a server does."""

    def __init__(self) -> None:
        self.answer: Any = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        client = Client(raise_request_exception=False, headers={"Idempotency-Key": "k"})
        self.answer = client.post("/7/")
        for connection in connections.all(initialized_only=True):
            # Django keeps a database in memory open, because closing it would empty it.
            BaseDatabaseWrapper.close(connection)

    @property
    def status(self) -> int:
        self._thread.join(60)
        return int(self.answer.status_code)


@pytest.fixture
def pool(
    postgres: dict[str, Any],
    settings: Settings,
    django_db_blocker: pytest_django.DjangoDbBlocker,
    memory: Configure,
) -> Iterator[None]:
    """A pool of two connections, the table of records, and a site that makes a query first."""
    entry = {**postgres, "OPTIONS": {"pool": {"min_size": 1, "max_size": 2, "timeout": 10}}}
    settings.MIDDLEWARE = [f"{__name__}.signs_in", LOCK_MIDDLEWARE]
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "rest_framework"]
    memory(MAX_WAITERS=9)
    with django_db_blocker.unblock(), database_alias(ALIAS, entry, tables=[IdempotencyRecord]):
        connection: Any = connections[ALIAS]
        connection.close()
        yield
    connection.close_pool()


@pytest.fixture
def serve(
    pool: None, urls: Urls, monkeypatch: pytest.MonkeyPatch, memory: Configure
) -> Callable[..., None]:
    """Return a function that makes one view the whole site."""

    def work(request: Any) -> HttpResponse:
        query()
        return HttpResponse("done")

    def put(kind: str, *, atomic: bool = False) -> None:
        monkeypatch.setitem(connections.settings[ALIAS], "ATOMIC_REQUESTS", atomic)
        memory(MAX_WAITERS=9, RULES=KINDS[kind].rules, WAIT=40)
        body[:] = [work]
        urls(KINDS[kind].make())

    return put


REAL = [pytest.mark.live, pytest.mark.postgres]
ROWS = [
    pytest.param(kind, atomic, marks=REAL, id=f"{kind}, {'atomic' if atomic else 'plain'}")
    for kind in [*SYNC, *ASYNC]
    for atomic in (False, True)
    # Django refuses ATOMIC_REQUESTS for async views. With django-ninja, the lock is in the open
    # transaction, whose connection is not returned.
    if not atomic or kind in {*SYNC} - {"ninja"}
]


@pytest.mark.attack
@pytest.mark.parametrize(("kind", "atomic"), ROWS)
def test_waiting_requests_leave_the_connections_of_the_pool_to_others(
    serve: Callable[..., None], kind: str, atomic: bool
) -> None:
    serve(kind, atomic=atomic)
    with held_elsewhere(NAME):
        waiting = [Request() for _ in range(4)]
        wait_for_waiters(4)
        query()  # of another user: it fails if all connections of the pool are in use
        connections[ALIAS].close()
    assert [request.status for request in waiting] == [200] * 4


@pytest.mark.live
@pytest.mark.postgres
@pytest.mark.parametrize("kind", [*SYNC, *ASYNC])
async def test_waiting_requests_of_an_async_server_leave_slots_too(
    serve: Callable[..., None], kind: str
) -> None:
    serve(kind)

    async def ask() -> int:
        async with ThreadSensitiveContext():  # as in an ASGI server
            answer = await AsyncClient(raise_request_exception=False).post("/7/")
            await sync_to_async(lambda: connections[ALIAS].close())()
            return int(answer.status_code)

    def query_of_another_user() -> None:
        query()
        connections[ALIAS].close()

    async with held_elsewhere(NAME):
        waiting = [asyncio.create_task(ask()) for _ in range(4)]
        while waiters() < 4:
            assert not any(task.done() for task in waiting), [t.result() for t in waiting]
            await asyncio.sleep(0.005)
        await asyncio.to_thread(query_of_another_user)
    assert await asyncio.gather(*waiting) == [200] * 4


@pytest.mark.attack
@pytest.mark.live
@pytest.mark.postgres
@pytest.mark.parametrize(
    ("is_async", "atomic"),
    # Django refuses ATOMIC_REQUESTS for async views.
    [(False, False), (False, True), (True, False)],
    ids=["plain", "atomic", "async"],
)
def test_waiting_retries_leave_the_connections_of_the_pool_to_others(
    pool: None,
    urls: Urls,
    monkeypatch: pytest.MonkeyPatch,
    memory: Configure,
    is_async: bool,
    atomic: bool,
) -> None:
    memory(MAX_WAITERS=9, IDEMPOTENCY={"DATABASE": ALIAS})
    monkeypatch.setitem(connections.settings[ALIAS], "ATOMIC_REQUESTS", atomic)
    runs = threading.Event()
    go_on = threading.Event()

    def work(request: HttpRequest, pk: int) -> HttpResponse:
        query()
        runs.set()
        assert go_on.wait(60)
        return HttpResponse("done")

    async def awork(request: HttpRequest, pk: int) -> HttpResponse:
        return await sync_to_async(work)(request, pk)

    once = idempotent(wait=40, anonymous_scope=lambda request, **_: "all")
    urls(path("<int:pk>/", once(awork if is_async else work)))
    first = Request()
    assert runs.wait(60)
    retries = [Request() for _ in range(3)]
    wait_for_waiters(3)
    query()  # of another user; the first request has the other connection of the pool
    connections[ALIAS].close()
    go_on.set()
    assert [request.status for request in (first, *retries)] == [200] * 4
    replayed = [request.answer["Idempotent-Replayed"] for request in (first, *retries)]
    assert replayed == ["false", "true", "true", "true"]


@pytest.mark.live
@pytest.mark.postgres
def test_a_connection_inside_a_transaction_is_not_returned(pool: None) -> None:
    connection = connections[ALIAS]

    def is_returned() -> bool:
        query()
        return_pooled_connections()
        return connection.connection is None

    with transaction.atomic(ALIAS):
        assert not is_returned()
    assert is_returned()
    connection.set_autocommit(False)
    assert not is_returned()  # it would roll back what the site has not committed
    connection.rollback()
    connection.set_autocommit(True)


@pytest.fixture
def site(urls: Urls, settings: Settings, memory: Configure) -> Callable[..., None]:
    """Return a function that sets the views of a site without a database."""
    settings.MIDDLEWARE = [LOCK_MIDDLEWARE]
    memory(MAX_WAITERS=2)
    return urls


def done(request: HttpRequest, pk: int) -> HttpResponse:
    return HttpResponse("done")


def noting(tries: list[Lock]) -> Callable[..., Lock]:
    """Return a method in place of `Lock._acquire` that notes its calls."""
    acquire = Lock._acquire

    def noted(lock: Lock, *, in_block: bool = False) -> Lock:
        tries.append(lock)
        return acquire(lock, in_block=in_block)

    return noted


@pytest.mark.attack
def test_no_more_than_max_waiters_threads_wait(
    site: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    site(path("<int:pk>/", lock_resource("order:<int:pk>", wait=40)(done)))
    with held_elsewhere(NAME):
        waiting = [Request() for _ in range(2)]
        wait_for_waiters(2)
        tries: list[Lock] = []
        monkeypatch.setattr(Lock, "_acquire", noting(tries))
        refused = Client().post("/7/")
        assert len(tries) == 1  # one round, and not a second one before it is refused
        assert (refused.status_code, refused.json()["code"]) == (423, "resource-locked")
        assert int(refused["Retry-After"]) >= 1
        assert Client().post("/8/").status_code == 200  # nobody holds it, so nobody waits
    assert [request.status for request in waiting] == [200, 200]
    assert Client().post("/7/").status_code == 200


def test_a_request_that_waits_is_reported_once(site: Callable[..., None]) -> None:
    """The attempt before it waits is not counted as refused, and sends no signal."""
    site(path("<int:pk>/", lock_resource("order:<int:pk>", wait=0.05)(done)))
    before = counters["default"].refused
    with held_elsewhere(NAME):
        assert Client().post("/7/").status_code == 423
    assert counters["default"].refused == before + 1


def test_without_a_quorum_a_waiting_request_goes_on_only_after_its_wait(
    site: Callable[..., None], memory: Configure
) -> None:
    memory(MAX_WAITERS=9, ON_UNAVAILABLE="proceed")
    site(path("<int:pk>/", lock_resource("order:<int:pk>", wait=20)(done)))
    backend = memory_backend()
    backend.down = [True] * len(backend.down)

    def sleep(seconds: float) -> None:
        backend.down = [False] * len(backend.down)

    backend.sleep = sleep
    assert Client().post("/7/").status_code == 200
    assert not any(backend.down)

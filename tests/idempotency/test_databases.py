"""One row for one key in real databases, even if the lock fails."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import pytest_django
from asgiref.sync import async_to_sync, sync_to_async
from django.contrib import messages
from django.contrib.auth.models import User
from django.contrib.messages.storage.cookie import CookieStorage
from django.db import connections, models, transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import RequestFactory
from pytest_django import Settings

from redlock_django import idempotent
from redlock_django.idempotency.records import RecordStore
from redlock_django.models import IdempotencyRecord
from testproject.shop.models import Order
from tests.aliases import database_alias
from tests.app.conftest import MEMORY
from tests.idempotency.conftest import InThread, masters_forget

ALIAS = "records"
TABLES: tuple[type[models.Model], ...] = (IdempotencyRecord, Order)
pytestmark = [pytest.mark.live, pytest.mark.postgres]
factory = RequestFactory()


@pytest.fixture(params=["postgres", "postgres at REPEATABLE READ", "mysql"])
def database(
    request: pytest.FixtureRequest,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    django_db_blocker: pytest_django.DjangoDbBlocker,
) -> Iterator[None]:
    """Store records and orders in a server of each kind."""
    kind, _, level = request.param.partition(" at ")
    entry: dict[str, Any] = dict(request.getfixturevalue(kind))
    if level:
        entry["OPTIONS"] = {"options": "-c default_transaction_isolation=repeatable\\ read"}
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", False)
    settings.REDLOCK = {
        "default": {
            "BACKEND": MEMORY,
            "MAX_WAITERS": 12,
            "IDEMPOTENCY": {"DATABASE": ALIAS},
            "MAX_HOLD": 60,
        }
    }
    with django_db_blocker.unblock(), database_alias(ALIAS, entry, tables=TABLES):
        yield


def orders() -> int:
    return Order.objects.using(ALIAS).count()


def make_order(request: HttpRequest) -> HttpResponse:
    order = Order.objects.using(ALIAS).create(number=f"A-{orders() + 1}", total=1)
    return JsonResponse({"order": order.number}, status=201)


def ask(view: Callable[..., Any], user: Any = 1, key: str = "k", url: str = "/") -> Any:
    request = factory.post(url, b"{}", "application/json", headers={"Idempotency-Key": key})
    request.user = User(pk=user)
    return view(request)


@pytest.mark.parametrize("wait", [None, 20])
def test_requests_at_once_run_the_view_once(database: None, wait: int | None) -> None:
    start = threading.Barrier(12)

    def asked() -> Any:
        start.wait(60)
        return ask(view)

    view = idempotent(wait=wait)(make_order)
    answers = [one.result for one in [InThread(asked) for _ in range(12)]]
    assert {answer.status_code for answer in answers} <= {201, 409}
    done = [answer for answer in answers if answer.status_code == 201]
    assert {answer.content for answer in done} == {b'{"order": "A-1"}'}
    assert [answer["Idempotent-Replayed"] for answer in done].count("false") == 1
    assert wait is None or len(done) == 12
    assert orders() == 1


@pytest.mark.attack
def test_characters_that_postgresql_does_not_store_are_replayed(database: None) -> None:
    """It stores no NUL and no half of a pair of surrogates, not even in JSON."""
    message, every = "a\0b\ud800 \U0001f600 é", bytes(range(256))

    def view(request: HttpRequest) -> HttpResponse:
        request._messages = CookieStorage(request)  # type: ignore[attr-defined]
        messages.info(request, message)
        headers = {"ETag": '"ü\'"'.encode().decode("latin-1"), "Location": "/é/", "X-Shop": "a\0b"}
        return HttpResponse(every, headers=headers, content_type='a/b; x="1\'"')

    def send(url: str) -> Any:
        return ask(idempotent(view), "a\0b", url=url)

    first, again = send("/orders/%00/"), send("/orders/%00/")
    assert again.content == first.content == every
    for name in ("ETag", "Location", "Content-Type", "X-Shop"):
        assert again[name] == first[name]
    assert again["Idempotent-Replayed"] == "true"
    row = IdempotencyRecord.objects.using(ALIAS).get()
    assert (row.path, row.user) == ("/orders/%00/", "a%00b")
    assert json.loads(row.messages)[0][1] == message
    assert send("/orders/%2500/").status_code == 422  # the same text, another path


@pytest.fixture
def second_insert(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when the second request is about to insert its record.

    It waits for the first one's COMMIT however long that takes on a busy machine.
    """
    monkeypatch.setattr("redlock_django.idempotency.records._BRIEF", 60.0)
    event = threading.Event()
    begin = RecordStore.begin
    calls = iter([False])

    def spied(self: RecordStore, *args: Any, **kwargs: Any) -> None:
        if next(calls, True):
            event.set()
        begin(self, *args, **kwargs)

    monkeypatch.setattr(RecordStore, "begin", spied)
    return event


def test_if_the_lock_fails_the_row_decides(database: None, second_insert: threading.Event) -> None:
    """The second request waits at the row for the first one's COMMIT, and gets its response."""
    second: list[InThread] = []

    def view(request: HttpRequest) -> HttpResponse:
        if not second:
            masters_forget()
            second.append(InThread(lambda: ask(decorated)))
            assert second_insert.wait(60)
        return make_order(request)

    decorated = idempotent(view)
    first = ask(decorated)
    answer = second[0].result
    assert (first.status_code, answer.status_code) == (201, 201)
    assert answer.content == first.content
    assert answer["Idempotent-Replayed"] == "true"
    assert orders() == 1


class Hung:
    """A view that hangs in its transaction until it is continued, and whose lock is lost."""

    def __init__(self) -> None:
        self.entered, self.continued = threading.Event(), threading.Event()

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = make_order(request)
        masters_forget()
        self.entered.set()
        assert self.continued.wait(60)
        return response


@pytest.mark.slow
@pytest.mark.attack
def test_a_retry_does_not_wait_for_a_hung_worker(database: None) -> None:
    hung = Hung()
    view = idempotent(hung)
    first = InThread(lambda: ask(view))
    assert hung.entered.wait(60)
    began = time.monotonic()
    answer = ask(view)
    assert time.monotonic() - began < 30
    assert (answer.status_code, json.loads(answer.content)["code"]) == (
        409,
        "idempotency-key-in-flight",
    )
    assert answer["Retry-After"] == "1"
    hung.continued.set()
    assert first.result.status_code == 201
    assert ask(view)["Idempotent-Replayed"] == "true"
    assert orders() == 1


def test_the_limit_of_the_wait_is_not_left_behind(database: None) -> None:
    connection = connections[ALIAS]
    name = "lock_timeout" if connection.vendor == "postgresql" else "innodb_lock_wait_timeout"

    def limit() -> Any:
        with connection.cursor() as cursor:
            cursor.execute(f"SHOW VARIABLES LIKE '{name}'" if "innodb" in name else f"SHOW {name}")
            return cursor.fetchone()

    before, seen = limit(), []

    def view(request: HttpRequest) -> HttpResponse:
        seen.append(limit())
        return make_order(request)

    ask(idempotent(view))
    assert [*seen, limit()] == [before, before]


@pytest.mark.slow
@pytest.mark.attack
def test_a_retry_does_not_wait_for_a_hung_async_view(database: None) -> None:
    """An async view has completed its record in a transaction of its own, and hangs in it."""
    completed, continued = threading.Event(), threading.Event()

    def work(request: Any) -> HttpResponse:
        with transaction.atomic(using=ALIAS):
            response = make_order(request)
            request.idempotency.complete(response)
            masters_forget()
            completed.set()
            assert continued.wait(60)
        return response

    async def view(request: HttpRequest) -> HttpResponse:
        return await sync_to_async(work)(request)

    asked = async_to_sync(idempotent(view))
    first = InThread(lambda: ask(asked))
    assert completed.wait(60)
    answer = ask(asked)
    assert json.loads(answer.content)["code"] == "idempotency-key-in-flight"
    continued.set()
    assert first.result.status_code == 201
    assert ask(asked)["Idempotent-Replayed"] == "true"


@pytest.mark.parametrize("database", ["postgres"], indirect=True)  # others refuse the lock there
def test_a_retry_of_an_async_view_in_a_transaction_of_a_middleware_is_replayed(
    database: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first request commits after the retry has looked, and before it inserts its record."""

    async def view(request: HttpRequest) -> HttpResponse:
        return await sync_to_async(make_order)(request)

    def too_early(store: RecordStore, hashes: list[str]) -> IdempotencyRecord | None:
        return found(store, hashes) if inserted else None

    def inserts(store: RecordStore, *args: Any, **kwargs: Any) -> None:
        inserted.append(store)
        begin(store, *args, **kwargs)

    asked, inserted = async_to_sync(idempotent(view)), list[RecordStore]()
    first = ask(asked)
    found, begin = RecordStore._found, RecordStore.begin
    monkeypatch.setattr(RecordStore, "_found", too_early)
    monkeypatch.setattr(RecordStore, "begin", inserts)
    with transaction.atomic(using=ALIAS):
        answer = ask(asked)
    assert (answer.status_code, answer.content) == (201, first.content)
    assert answer["Idempotent-Replayed"] == "true"
    assert (len(inserted), orders()) == (1, 1)


def test_if_the_lock_and_the_first_request_fail_the_second_request_runs(
    database: None, second_insert: threading.Event
) -> None:
    second: list[InThread] = []

    def view(request: HttpRequest) -> HttpResponse:
        response = make_order(request)
        if not second:
            masters_forget()
            second.append(InThread(lambda: ask(decorated)))
            assert second_insert.wait(60)
            raise RuntimeError
        return response

    decorated = idempotent(view)
    with pytest.raises(RuntimeError):
        ask(decorated)
    answer = second[0].result
    assert (answer.status_code, answer["Idempotent-Replayed"]) == (201, "false")
    assert orders() == 1


def test_a_commit_that_fails_records_nothing(database: None) -> None:
    connection = connections[ALIAS]
    if connection.vendor != "postgresql":
        return _a_lost_connection_records_nothing()
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE strict (a int, UNIQUE (a) DEFERRABLE INITIALLY DEFERRED)")
    fails = iter([True])

    def view(request: HttpRequest) -> HttpResponse:
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO strict VALUES (1)" + ", (1)" * next(fails, False))
        return make_order(request)

    try:
        with pytest.raises(Exception, match="strict"):
            ask(idempotent(view))
        assert (orders(), IdempotencyRecord.objects.using(ALIAS).count()) == (0, 0)
        assert [ask(idempotent(view)).status_code for _ in range(2)] == [201, 201]
        assert orders() == 1
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP TABLE strict")
    return None


def _a_lost_connection_records_nothing() -> None:
    def view(request: HttpRequest) -> HttpResponse:
        response = make_order(request)
        if orders() and next(fails, False):
            connections[ALIAS].connection.close()
        return response

    fails = iter([True])
    with pytest.raises(Exception):  # noqa: B017, PT011 - whatever the driver says
        ask(idempotent(view))
    connections[ALIAS].close()
    assert (orders(), IdempotencyRecord.objects.using(ALIAS).count()) == (0, 0)
    assert [ask(idempotent(view)).status_code for _ in range(2)] == [201, 201]
    assert orders() == 1


def test_a_missing_table_is_named(database: None, caplog: pytest.LogCaptureFixture) -> None:
    table = IdempotencyRecord._meta.db_table
    with connections[ALIAS].schema_editor() as editor:
        editor.alter_db_table(IdempotencyRecord, table, "away")
    refused = ask(idempotent(make_order))
    with connections[ALIAS].schema_editor() as editor:
        editor.alter_db_table(IdempotencyRecord, "away", table)
    assert (refused.status_code, orders()) == (503, 0)
    assert f"manage.py migrate --database {ALIAS}" in caplog.text
    assert ask(idempotent(make_order)).status_code == 201

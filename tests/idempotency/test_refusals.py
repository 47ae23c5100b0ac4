"""Refusals that the contract does not show: keys in flight, waiting, masters, missing tables."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.http import HttpRequest, HttpResponse
from pytest_django import Settings

from redlock_django import idempotent
from redlock_django.models import IdempotencyRecord
from tests.app.checking import found
from tests.app.conftest import MEMORY, memory_backend
from tests.idempotency.conftest import InThread, Site, assert_refused, make_order, orders

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.usefixtures("records_in_a_file")
@pytest.mark.parametrize(
    ("options", "total", "status", "code"),
    [
        ({}, 1, 409, "key-in-flight"),
        ({"wait": 0.05}, 1, 409, "key-in-flight"),
        ({}, 2, 422, "key-reused"),
    ],
    ids=["the same request", "after a wait", "another request"],
)
def test_a_key_in_flight(
    site: Site, options: dict[str, Any], total: int, status: int, code: str
) -> None:
    answers: list[Any] = []

    def view(request: HttpRequest, **_: Any) -> HttpResponse:
        answers.append(InThread(lambda: site.post(data={"total": total})).result)
        return HttpResponse(status=201)

    site.serve(idempotent(**options)(view))
    assert site.post().status_code == 201
    (answer,) = answers
    assert_refused(answer, status, code, new_key=False, retry=status == 409)
    assert answer.get("Retry-After") == ("1" if status == 409 else None)


def on_waiting(function: Callable[[], None]) -> None:
    """Call a function whenever a thread begins to wait for a lock, or goes on waiting."""
    backend = memory_backend()
    sleep = backend.sleep

    def patient(seconds: float) -> None:
        function()
        sleep(seconds)

    backend.sleep = patient


@pytest.mark.slow
@pytest.mark.attack
@pytest.mark.usefixtures("records_in_a_file")
def test_no_more_than_max_waiters_threads_wait(site: Site) -> None:
    waiting = threading.Event()
    asked: list[Any] = []

    def view(request: HttpRequest, **_: Any) -> HttpResponse:
        on_waiting(waiting.set)
        asked.append(InThread(site.post))
        assert waiting.wait(60)
        asked.append(InThread(site.post).result)  # while the other one waits
        return HttpResponse("only once")

    idempotency = {"DATABASE": "records"}
    site.settings.REDLOCK = {
        "default": {"BACKEND": MEMORY, "MAX_WAITERS": 1, "IDEMPOTENCY": idempotency}
    }
    site.serve(idempotent(wait=20)(view))
    first = site.post()
    waited, refused = asked
    assert waited.result.content == first.content == b"only once"
    assert_refused(refused, 503, "too-many-waiters", new_key=False, retry=True)
    assert refused["Retry-After"] == "1"
    assert site.post()["Idempotent-Replayed"] == "true"  # a replay does not wait


def test_a_waiter_is_refused_at_once_when_masters_are_down(site: Site) -> None:
    site.serve(idempotent(wait=60)(make_order))
    backend = memory_backend()
    for place in range(len(backend.masters)):
        backend.refuse(place)
    slept: list[float] = []
    backend.sleep = slept.append
    assert_refused(site.post(), 503, "unavailable", new_key=False, retry=True)
    assert slept == []


def test_going_on_without_a_lock_is_not_for_keys(site: Site, settings: Settings) -> None:
    settings.REDLOCK = {"default": {"BACKEND": MEMORY, "ON_UNAVAILABLE": "proceed"}}
    site.serve(idempotent(make_order))
    backend = memory_backend()
    backend.down = [True] * len(backend.down)
    assert_refused(site.post(), 503, "unavailable", new_key=False, retry=True)
    assert orders() == 0


def test_a_database_that_begins_no_transaction(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.serve(idempotent(make_order))

    def busy() -> None:
        raise OperationalError("database is locked")

    monkeypatch.setattr(connection, "_start_transaction_under_autocommit", busy)
    assert_refused(site.post(), 503, "unavailable", new_key=False, retry=True)
    monkeypatch.undo()
    assert site.post().status_code == 201


FORM = "application/x-www-form-urlencoded"
PARTS = 'multipart/form-data; boundary="x"'
PART = b'--x\r\nContent-Disposition: form-data; name="amount"\r\n\r\n100\r\n--x--\r\n'


@pytest.mark.attack
@pytest.mark.parametrize(
    ("content_type", "whole", "arrived", "key"),
    [
        ("application/json", b'{"amount": 100}', b'{"amount": 10', "k"),
        (FORM, b"amount=100", b"amount=10", "k"),
        (FORM, b"amount=100", b"", "k"),
        (PARTS, PART, PART[:-10], "k"),
        # The key may be in the part that is missing.
        (FORM, b"amount=100&idempotency_key=k", b"amount=10", None),
        (PARTS, PART, PART[:-10], None),
        (PARTS, PART, PART[:30], None),
    ],
)
def test_half_a_body_is_refused_and_the_retry_runs(
    site: Site, content_type: str, whole: bytes, arrived: bytes, key: str | None
) -> None:
    """A server that loses the client in the middle of the body passes on what has arrived."""
    site.serve(idempotent(make_order))
    headers = {} if key is None else {"Idempotency-Key": key}

    def post(body: bytes) -> Any:
        sent: Any = {"wsgi.input": BytesIO(body), "CONTENT_LENGTH": str(len(whole))}
        return site.client.generic("POST", "/", headers=headers, CONTENT_TYPE=content_type, **sent)

    half = post(arrived)
    assert (half.status_code, half.json()["code"]) == (400, "incomplete-body")
    assert (orders(), IdempotencyRecord.objects.count()) == (0, 0)
    assert post(whole).status_code == 201
    assert orders() == 1


COMMAND = "manage.py migrate --database default"
RECORDS = IdempotencyRecord._meta.db_table


@contextmanager
def renamed(what: str, name: str) -> Iterator[None]:
    """Rename a table, or a column of one ("table.column"), during the block."""
    table, _, column = what.partition(".")
    rename = "RENAME COLUMN {} TO {}" if column else "RENAME TO {1}"
    after = table if column else name
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} {rename.format(column, name)}")
        try:
            yield
        finally:
            cursor.execute(f"ALTER TABLE {after} {rename.format(name, column or table)}")


@pytest.mark.parametrize("what", [RECORDS, f"{RECORDS}.path"])
@pytest.mark.parametrize("debug", [True, False])
def test_the_log_names_the_command_and_the_answer_does_with_debug(
    site: Site, settings: Settings, caplog: pytest.LogCaptureFixture, what: str, debug: bool
) -> None:
    settings.DEBUG = debug
    site.serve(idempotent(make_order))
    with renamed(what, "away"):
        response = site.post()
    assert response.status_code == 503
    problem = json.loads(response.content)
    assert problem["code"] == "idempotency-unavailable"
    assert (COMMAND in problem["detail"]) is debug
    assert problem["detail"].startswith("This site is not set up completely")
    assert "again" not in problem["detail"]
    assert problem["retryable"] is False
    assert "Retry-After" not in response
    assert COMMAND in caplog.text
    assert orders() == 0
    assert site.post().status_code == 201


@pytest.mark.parametrize(
    ("what", "lacks"),
    [
        (RECORDS, f"the table {RECORDS}"),
        (f"{RECORDS}.path", f"path in the table {RECORDS}"),
    ],
)
def test_a_check_of_the_database_names_the_command(memory: None, what: str, lacks: str) -> None:
    assert "E024" not in found(deploy=True, tag="database", databases=["default"])
    with renamed(what, "away"):
        text = found(deploy=True, tag="database", databases=["default"])["E024"]
        # Without the database, a check opens no connection; 'migrate' itself does not deploy.
        assert "E024" not in found(deploy=True)
        assert "E024" not in found(deploy=True, databases=["default"])  # as Django 6.1 does
        assert "E024" not in found(tag="database", databases=["default"])
    assert f"The database 'default' lacks {lacks}" in text
    assert COMMAND in text

"""Refusals that the contract does not show: keys in flight, half a body, waiting, masters."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from io import BytesIO
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import OperationalError, connection, connections, transaction
from django.db.backends.sqlite3.base import DatabaseWrapper
from django.http import HttpRequest, HttpResponse
from pytest_django import Settings

from redlock_django import idempotent, locks
from redlock_django.backends.memory.backend import MemoryBackend
from redlock_django.models import IdempotencyRecord
from tests.app.conftest import MEMORY
from tests.idempotency.conftest import InThread, Site, make_order, orders
from tests.pages import ROOT

pytestmark = pytest.mark.django_db(transaction=True)


def problem(response: Any, status: int, code: str, *, retryable: bool, safe_new_key: bool) -> None:
    """Check that the response is this refusal, with all its members."""
    body = json.loads(response.content)
    assert (response.status_code, body["code"]) == (status, code)
    assert response["Content-Type"] == "application/problem+json"
    assert response["Cache-Control"] == "no-store"
    assert (body["status"], body["type"]) == (status, f"urn:redlock-django:{code}")
    assert (body["retryable"], body["safe_new_key"]) == (retryable, safe_new_key)
    assert ("Retry-After" in response) is retryable
    assert "Idempotent-Replayed" not in response


@pytest.mark.attack
@pytest.mark.parametrize(
    "key", ["", " ", "a,b", '"a","b"', '"open', "k" * 256, '"' + "k" * 256 + '"', "a b", "ü", '""']
)
def test_a_key_that_is_malformed(site: Site, key: str) -> None:
    site.serve(idempotent(make_order))
    problem(site.post(key), 400, "idempotency-key-invalid", retryable=False, safe_new_key=True)
    assert orders() == 0


def ask_while_it_runs(site: Site, ask: Callable[[], Any], **options: Any) -> Any:
    """Return the answer to a request that comes while the first one is running."""
    answers: list[Any] = []

    def view(request: HttpRequest, **_: Any) -> HttpResponse:
        answers.append(InThread(ask).result)
        return HttpResponse(status=201)

    site.serve(idempotent(**options)(view))
    assert site.post().status_code == 201
    assert len(answers) == 1
    return answers[0]


@pytest.mark.usefixtures("records_in_a_file")
def test_a_key_in_flight(site: Site) -> None:
    answer = ask_while_it_runs(site, site.post)
    problem(answer, 409, "idempotency-key-in-flight", retryable=True, safe_new_key=False)
    assert answer["Retry-After"] == "1"


@pytest.mark.usefixtures("records_in_a_file")
def test_a_key_in_flight_for_another_request(site: Site) -> None:
    answer = ask_while_it_runs(site, lambda: site.post(data={"total": 2}))
    problem(answer, 422, "idempotency-key-reused", retryable=False, safe_new_key=False)


@pytest.mark.usefixtures("records_in_a_file")
def test_a_request_that_waits_no_longer(site: Site) -> None:
    answer = ask_while_it_runs(site, site.post, wait=0.05)
    problem(answer, 409, "idempotency-key-in-flight", retryable=True, safe_new_key=False)


def on_waiting(function: Callable[[], None]) -> None:
    """Call a function whenever a thread begins to wait for a lock, or goes on waiting."""
    backend = locks["default"].backend
    assert isinstance(backend, MemoryBackend)
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
    problem(refused, 503, "idempotency-too-many-waiters", retryable=True, safe_new_key=False)
    assert refused["Retry-After"] == "1"
    assert site.post()["Idempotent-Replayed"] == "true"  # a replay does not wait


@pytest.mark.slow
@pytest.mark.usefixtures("records_in_a_file")
def test_a_waiter_keeps_no_pooled_connection(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user would get a 500, because the pool is empty."""
    open_while_waiting: list[list[str]] = []
    waiting = threading.Event()

    def connect(self: DatabaseWrapper) -> Any:
        return {k: v for k, v in parameters(self).items() if k != "pool"}

    def note() -> None:
        used = [c for c in connections.all(initialized_only=True) if c.connection is not None]
        open_while_waiting.append([c.alias for c in used if "pool" in c.settings_dict["OPTIONS"]])
        waiting.set()

    def view(request: HttpRequest, **_: Any) -> HttpResponse:
        on_waiting(note)
        asked.append(InThread(site.post))
        assert waiting.wait(60)
        return HttpResponse("only once")

    parameters = DatabaseWrapper.get_connection_params
    monkeypatch.setattr(DatabaseWrapper, "get_connection_params", connect)
    monkeypatch.setitem(connections.settings["records"]["OPTIONS"], "pool", True)
    asked: list[InThread] = []
    site.serve(idempotent(wait=20)(view))
    site.post()
    assert asked[0].result["Idempotent-Replayed"] == "true"
    assert open_while_waiting
    assert not any(open_while_waiting)


@pytest.mark.slow
@pytest.mark.usefixtures("records_in_a_file")
def test_a_request_that_waits_is_given_the_same_answer(site: Site) -> None:
    waiting = threading.Event()
    asked: list[InThread] = []

    def view(request: HttpRequest, **_: Any) -> HttpResponse:
        on_waiting(waiting.set)
        asked.append(InThread(site.post))
        assert waiting.wait(60)
        return HttpResponse(f"only once: {len(asked)}")

    site.serve(idempotent(wait=20)(view))
    first = site.post()
    assert asked[0].result.content == first.content == b"only once: 1"
    assert asked[0].result["Idempotent-Replayed"] == "true"


def test_a_waiter_is_refused_at_once_when_masters_are_down(site: Site) -> None:
    site.serve(idempotent(wait=60)(make_order))
    backend = locks["default"].backend
    assert isinstance(backend, MemoryBackend)
    for place in range(len(backend.masters)):
        backend.refuse(place)
    slept: list[float] = []
    backend.sleep = slept.append
    problem(site.post(), 503, "idempotency-unavailable", retryable=True, safe_new_key=False)
    assert slept == []


def test_going_on_without_a_lock_is_not_for_keys(site: Site, settings: Settings) -> None:
    settings.REDLOCK = {"default": {"BACKEND": MEMORY, "ON_UNAVAILABLE": "proceed"}}
    site.serve(idempotent(make_order))
    backend = locks["default"].backend
    assert isinstance(backend, MemoryBackend)
    backend.down = [True] * len(backend.down)
    problem(site.post(), 503, "idempotency-unavailable", retryable=True, safe_new_key=False)
    assert orders() == 0


def test_a_database_that_begins_no_transaction(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.serve(idempotent(make_order))

    def busy() -> None:
        raise OperationalError("database is locked")

    monkeypatch.setattr(connection, "_start_transaction_under_autocommit", busy)
    problem(site.post(), 503, "idempotency-unavailable", retryable=True, safe_new_key=False)
    monkeypatch.undo()
    assert site.post().status_code == 201


@pytest.mark.parametrize("is_async", [False, True])
def test_a_body_over_the_limit_of_django_is_refused_with_a_key_only(
    site: Site, settings: Settings, is_async: bool
) -> None:
    """A view that does not read it answers it without a key, as the page says."""
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 50

    def unread(request: HttpRequest, **_: Any) -> HttpResponse:
        return HttpResponse(status=201)

    async def aunread(request: HttpRequest, **_: Any) -> HttpResponse:
        return HttpResponse(status=201)

    view = transaction.non_atomic_requests(idempotent(aunread)) if is_async else idempotent(unread)
    site.serve(view)
    body = {"text": "x" * 60}
    assert site.post(None, data=body).status_code == 201
    refused = site.post(data=body)
    problem(refused, 413, "idempotency-body-too-large", retryable=False, safe_new_key=True)
    upload = {"file": SimpleUploadedFile("f", b"x" * 60)}
    headers = {"Idempotency-Key": "upload"}
    assert site.client.post("/orders/", upload, headers=headers).status_code == 201
    page = (ROOT / "docs/reference/idempotency.md").read_text()
    assert "A body over `DATA_UPLOAD_MAX_MEMORY_SIZE`" in page


def test_a_browser_is_answered_in_html(site: Site) -> None:
    site.serve(idempotent(required=True)(make_order))
    answer = site.post(None, headers={"Accept": "text/html"})
    assert answer.status_code == 400
    assert b"requires an idempotency key" in answer.content


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

"""The contract of recorded views: what is guaranteed, and what is refused, for each kind of view.

A sync view is recorded in its transaction; an async one before it, and with the answer to it.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from asgiref.sync import async_to_sync, iscoroutinefunction, markcoroutinefunction
from django.contrib.auth.models import AnonymousUser, User
from django.core.exceptions import BadRequest, PermissionDenied, SuspiciousOperation
from django.core.signals import got_request_exception
from django.db import IntegrityError, OperationalError, connection, transaction
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.template import engines
from django.template.response import SimpleTemplateResponse
from django.test import AsyncClient, Client
from django.utils.asyncio import async_unsafe
from django.utils.functional import SimpleLazyObject
from pytest_django import Settings

from redlock_django.exceptions import InvalidRedlock, ResourceLocked
from redlock_django.idempotency import records
from redlock_django.idempotency.records import RecordStore
from redlock_django.models import IdempotencyRecord
from redlock_django.testing import held_elsewhere
from testproject.shop.models import Order
from tests.app.conftest import LOCK_MIDDLEWARE, Urls, memory_backend
from tests.idempotency.conftest import (
    KEY,
    Site,
    assert_refused,
    make_order,
    masters_forget,
    orders,
    record,
)
from tests.views.kinds import RECORDED, WITHOUT_LOCK, Kind, body

pytestmark = pytest.mark.django_db(transaction=True)
NAME = "order:7"


USERS = {"ann": User(pk=1, username="ann"), "bob": User(pk=2, username="bob")}


@async_unsafe("The user was loaded in an event loop, where Django's may not query the database.")
def load_user(name: str) -> User | AnonymousUser:
    return USERS.get(name, AnonymousUser())


class LogsIn:
    """A middleware that believes a header who the user is: it reads no session and no database."""

    sync_capable = async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Any:
        user: Any = SimpleLazyObject(partial(load_user, request.headers["User"]))
        request.user = user
        return self.get_response(request)


class Served:
    """A recorded view of one kind, and its client, whose `user` is "ann"."""

    def __init__(self, kind: Kind, site: Site, *, server: str) -> None:
        self.kind, self.site, self.user = kind, site, "ann"
        client: Any = Client if server == "wsgi" else AsyncClient
        client = client(raise_request_exception=False)
        self._post = client.post if server == "wsgi" else async_to_sync(client.post)

    def post(self, key: str | None = KEY, data: Any = None) -> Any:
        """Send JSON with a key."""
        headers = {"User": self.user, **({} if key is None else {"Idempotency-Key": key})}
        return self._post("/7/", data or {"total": 1}, "application/json", headers=headers)

    def twice(self) -> list[Any]:
        """Send the same request twice."""
        return [self.post() for _ in range(2)]


def cells(
    applies: Callable[[str, Kind], bool] = lambda name, kind: True,
    *,
    servers: bool = False,
    atomic_too: bool = True,
) -> list[Any]:
    """Return each kind; with `servers`, async ones on WSGI too.

    They are `atomic_too`: with ATOMIC_REQUESTS as well, where a transaction matters.
    """
    return [
        pytest.param((kind, atomic, server), id=f"{name}-{'atomic' if atomic else server}")
        for name, kind in RECORDED.items()
        if applies(name, kind)
        for atomic in (False, True)[: 1 + atomic_too]
        if not (atomic and (kind.is_async or kind.inside))
        for server in (("asgi", "wsgi")[: 1 + servers] if kind.is_async else ("wsgi",))
    ]


only_sync = pytest.mark.parametrize("view", cells(lambda _, kind: not kind.is_async), indirect=True)
only_async = pytest.mark.parametrize("view", cells(lambda _, kind: kind.is_async), indirect=True)
CLASSES = (
    "function", "dispatch", "mixins", "REST handler", "handler", "ninja, above a lock",
    "async function", "async, above a lock", "async dispatch", "async mixins", "async handler",
    "async ninja",
)  # fmt: skip
"""One kind of each class: for what is decided before the view runs, or from its response alone."""
each_class = pytest.mark.parametrize(
    "view", cells(lambda name, _: name in CLASSES, atomic_too=False), indirect=True
)
with_lock = pytest.mark.parametrize(
    "view", cells(lambda name, _: name not in WITHOUT_LOCK), indirect=True
)


@pytest.fixture(params=cells())
def view(
    request: pytest.FixtureRequest,
    memory: None,
    urls: Urls,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    sees_commits: None,
) -> Iterator[Served]:
    kind, atomic, server = request.param
    settings.MIDDLEWARE = [f"{__name__}.LogsIn", LOCK_MIDDLEWARE]
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", atomic)
    monkeypatch.setattr(logging.getLogger("django.request"), "disabled", True)  # long tracebacks
    urls(kind.make())
    body[:] = [make_order]
    yield Served(kind, Site(urls, Client(), settings), server=server)
    body.clear()


def ending(end: Callable[[], Any]) -> Callable[[HttpRequest], Any]:
    """Return a view that makes an order, and then ends like this."""

    def work(request: HttpRequest) -> Any:
        make_order(request)
        return end()

    return work


def raising(error: Exception) -> Callable[[], Any]:
    def end() -> Any:
        raise error.with_traceback(None)  # otherwise it has the frames of all tests before

    return end


def returning(status: int) -> Callable[[], HttpResponse]:
    return lambda: HttpResponse("no", status=status)


# What is guaranteed.


@pytest.mark.attack
@pytest.mark.parametrize("view", cells(servers=True), indirect=True)
def test_a_retry_is_answered_the_same_and_changes_nothing(view: Served) -> None:
    first, second = view.twice()
    assert (first.status_code, first.json()) == (201, {"order": "A-1"})
    assert (second.status_code, second.content) == (201, first.content)
    assert (first["Idempotent-Replayed"], second["Idempotent-Replayed"]) == ("false", "true")
    assert first["Idempotency-Key"] == second["Idempotency-Key"] == KEY
    assert first["Idempotency-Key-Lifetime"] == second["Idempotency-Key-Lifetime"] == "86400"
    assert first["Content-Type"] == second["Content-Type"] == "application/json"
    assert second["Cache-Control"] == "no-store"
    assert (orders(), record().state, record().status) == (1, "completed", 201)


@each_class
def test_another_key_and_another_user_are_another_request(view: Served) -> None:
    assert view.post().status_code == view.post("another").status_code == 201
    view.user = "bob"
    assert view.post()["Idempotent-Replayed"] == "false"
    assert orders() == IdempotencyRecord.objects.count() == 3


@each_class
def test_without_a_key_every_request_runs(view: Served) -> None:
    assert [view.post(None).status_code for _ in range(2)] == [201, 201]
    assert (orders(), IdempotencyRecord.objects.count()) == (2, 0)


@only_sync
def test_the_record_and_the_effects_are_one_transaction_after_the_locks(
    view: Served, happened: list[str], request: pytest.FixtureRequest
) -> None:
    def work(request: HttpRequest) -> HttpResponse:
        assert connection.in_atomic_block
        states = [row.state for row in IdempotencyRecord.objects.exclude(state="completed")]
        happened.append(f"view, {states}")
        return make_order(request)

    body[:] = [work]
    for key in (KEY, None):
        happened.clear()
        assert view.post(key).status_code == 201
        locks = (key is not None) + (locks_resource(request))
        guards = ["guard"] * locks_resource(request)
        state = ["running"] if key else []
        assert happened == [
            *["lock"] * locks, "BEGIN", f"view, {state}", *guards, "COMMIT", *["release"] * locks,
        ]  # fmt: skip


def locks_resource(request: pytest.FixtureRequest) -> bool:
    """Return whether the kind of the view of a test locks its resource."""
    return request.node.callspec.params["view"][0] not in [RECORDED[one] for one in WITHOUT_LOCK]


@with_lock
def test_a_busy_resource_is_not_recorded_and_a_replay_does_not_wait_for_it(view: Served) -> None:
    with held_elsewhere(NAME):
        busy = view.post()
        assert (busy.status_code, busy.json()["code"]) == (423, "resource-locked")
        assert (orders(), IdempotencyRecord.objects.count()) == (0, 0)
    assert view.post()["Idempotent-Replayed"] == "false"
    with held_elsewhere(NAME):
        assert view.post()["Idempotent-Replayed"] == "true"
        assert view.post(None).status_code == 423


@with_lock
def test_a_lost_resource_lock_rolls_the_record_back_too(
    view: Served, lose_locks: Callable[[], None]
) -> None:
    def work(request: HttpRequest) -> HttpResponse:
        response = make_order(request)
        lose_locks()
        return response

    body[:] = [work]
    answer = view.post()
    if view.kind.is_async:  # nothing can undo what the view has done
        assert (answer.status_code, orders(), record().state) == (201, 1, "completed")
    else:
        assert (answer.status_code, answer.json()["code"]) == (503, "lock-lost")
        assert (orders(), IdempotencyRecord.objects.count()) == (0, 0)


@pytest.mark.parametrize(
    "view", cells(lambda name, kind: kind.is_async or name in WITHOUT_LOCK), indirect=True
)
def test_a_finished_response_stays_if_the_lock_of_its_key_was_lost(view: Served) -> None:
    def work(request: HttpRequest) -> HttpResponse:
        masters_forget()
        return make_order(request)

    body[:] = [work]
    assert [answer.status_code for answer in view.twice()] == [201, 201]
    assert orders() == 1


FAILURES: dict[str, tuple[Callable[[], Any], int]] = {
    "error": (raising(RuntimeError()), 500),
    "500": (returning(500), 500),
    "503": (returning(503), 503),
    "busy": (raising(ResourceLocked("order:9")), 423),
}
REFUSED: dict[str, tuple[Callable[[], Any], int]] = {
    "Http404": (raising(Http404()), 404),
    "PermissionDenied": (raising(PermissionDenied()), 403),
    "SuspiciousOperation": (raising(SuspiciousOperation()), 400),
    "BadRequest": (raising(BadRequest()), 400),
}


def durable() -> HttpResponse:
    with transaction.atomic(durable=True):
        return HttpResponse()


def caught() -> HttpResponse:
    try:
        Order.objects.create(number=Order.objects.latest("pk").number, total=1)
    except IntegrityError:
        Order.objects.count()
    return HttpResponse()


INSIDE: dict[str, tuple[Callable[[], Any], int]] = {
    "durable": (durable, 500),
    "caught": (caught, 500),
}


@pytest.mark.attack
@only_sync
def test_a_failure_is_undone_with_or_without_a_key_and_runs_again(view: Served) -> None:
    """A client must not choose by a header whether the view has a transaction."""
    for made, (end, (work, status)) in enumerate({**FAILURES, **REFUSED, **INSIDE}.items()):
        body[:] = [ending(work)]
        for key in (end, None):
            assert view.post(key).status_code == status, (end, key)
            assert orders() == IdempotencyRecord.objects.count() == made
        body[:] = [make_order]
        replayed = [view.post(end)["Idempotent-Replayed"] for _ in range(2)]
        assert replayed == ["false", "true"], end
    assert orders() == IdempotencyRecord.objects.count() == made + 1
    assert {row.state for row in IdempotencyRecord.objects.all()} == {"completed"}


@pytest.mark.attack
@only_async
def test_a_failure_of_an_async_view_is_uncertain(view: Served) -> None:
    for made, (end, (work, status)) in enumerate(FAILURES.items(), 1):
        body[:] = [ending(work)]
        assert view.post(end).status_code == status, end
        body[:] = [make_order]
        for _ in range(2):
            refused = view.post(end)
            assert_refused(refused, 409, "outcome-uncertain", new_key=False, retry=False)
        assert orders() == made
    assert {row.state for row in IdempotencyRecord.objects.all()} == {"uncertain"}


@only_async
def test_the_answer_to_an_exception_of_an_async_view_is_replayed(view: Served) -> None:
    for made, (end, (work, status)) in enumerate(REFUSED.items(), 1):
        body[:] = [ending(work)]
        first, second = view.post(end), view.post(end)
        assert first.status_code == second.status_code == status, end
        assert (second.content, second["Idempotent-Replayed"]) == (first.content, "true")
        assert orders() == made


@pytest.mark.attack
@each_class
def test_any_other_answer_is_final(view: Served) -> None:
    """A wrong PIN must count, with every key, and without one."""
    for made, status in enumerate([200, 204, 302, 400, 403, 404, 408, 409, 422, 423, 425, 429], 1):
        body[:] = [ending(returning(status))]
        first, second = view.post(str(status)), view.post(str(status))
        assert [first.status_code, second.status_code] == [status, status]
        assert (second.content, second["Idempotent-Replayed"]) == (first.content, "true")
        assert orders() == made
    assert view.post(None).status_code == status
    assert orders() == made + 1


@only_sync
def test_a_view_that_rolls_back_is_not_recorded(view: Served) -> None:
    def end() -> HttpResponse:
        transaction.set_rollback(True)
        return HttpResponse(status=400)

    body[:] = [ending(end)]
    assert [answer.status_code for answer in view.twice()] == [400, 400]
    assert (orders(), IdempotencyRecord.objects.count()) == (0, 0)


@only_sync
def test_a_hook_that_fails_after_commit_leaves_a_response_to_replay(view: Served) -> None:
    for error in (RuntimeError("a hook"), ResourceLocked("busy"), IntegrityError("late")):

        def end(error: Exception = error) -> HttpResponse:
            transaction.on_commit(raising(error))
            return HttpResponse(status=201)

        body[:] = [ending(end)]
        key = type(error).__name__
        assert view.post(key).status_code in (423, 500)
        again = view.post(key)
        assert (again.status_code, again["Idempotent-Replayed"]) == (201, "true")
    assert orders() == 3


def test_a_template_is_rendered_once(view: Served) -> None:
    def number() -> str:
        assert view.kind.is_async or connection.in_atomic_block
        return str(Order.objects.create(number="R", total=1).pk)

    template: Any = engines["django"].from_string("{{ n }}")
    body[:] = [lambda request: SimpleTemplateResponse(template, {"n": number})]
    first, second = view.twice()
    assert first.content == second.content != b""
    assert orders() == 1


@pytest.mark.attack
@each_class
def test_a_body_that_must_not_be_stored_is_not_replayed(view: Served) -> None:
    def end() -> HttpResponse:
        headers = {"Cache-Control": "no-store", "Location": "/1/", "ETag": '"1"'}
        return JsonResponse({"card": "4111"}, status=201, headers=headers)

    body[:] = [ending(end)]
    first, again = view.twice()
    assert (first.json(), "Idempotency-Body" in first) == ({"card": "4111"}, False)
    assert (again.status_code, again.content, again["Location"]) == (201, b"", "/1/")
    assert (again["Idempotency-Body"], again["Idempotent-Replayed"]) == ("omitted", "true")
    assert not {"ETag", "Content-Type"} & {*again.headers}
    assert (orders(), bytes(record().body)) == (1, b"")


@each_class
def test_a_response_that_cannot_be_stored_leaves_a_tombstone(view: Served) -> None:
    async def chunks() -> Any:
        yield b"x"

    def stream() -> Any:
        return StreamingHttpResponse(chunks() if view.kind.is_async else iter([b"x"]))

    view.site.configure(MAX_RESPONSE_BYTES=10)
    for end in (stream, lambda: HttpResponse(b"x" * 11)):
        IdempotencyRecord.objects.all().delete()
        body[:] = [ending(end)]
        first = view.post()
        assert first.status_code == 200
        first.close()
        again = view.post()
        assert_refused(again, 409, "result-unavailable", new_key=False, retry=False)
        assert (record().state, bytes(record().body)) == ("tombstone", b"")
    assert orders() == 2


@pytest.mark.parametrize(
    "view",
    cells(lambda name, _: name.endswith(("function", "ninja")), atomic_too=False),
    indirect=True,
)
def test_a_result_that_is_not_a_response_is_refused_by_name(view: Served) -> None:
    """As an operation of django-ninja may return it."""
    errors: list[Any] = []

    def note(**_: Any) -> None:
        errors.append(sys.exc_info()[1])

    got_request_exception.connect(note)
    try:
        body[:] = [ending(lambda: {"order": 1})]
        assert view.post().status_code == 500
    finally:
        got_request_exception.disconnect(note)
    assert isinstance(errors[0], InvalidRedlock)
    assert "function returned dict, and @idempotent records an HttpResponse" in str(errors[0])
    if view.kind.is_async:
        assert (orders(), record().state) == (1, "uncertain")
    else:
        assert (orders(), IdempotencyRecord.objects.count()) == (0, 0)


def test_a_record_that_appears_after_the_look_up_is_replayed(
    view: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the lock ever fails, the unique row decides."""
    first = view.post()
    find, found = RecordStore.find, iter([False])
    monkeypatch.setattr(
        RecordStore, "find", lambda *args: find(*args) if next(found, True) else None
    )
    again = view.post()
    assert (again.content, again["Idempotent-Replayed"]) == (first.content, "true")
    assert orders() == 1


# What is refused.


@pytest.mark.attack
@each_class
def test_a_key_that_cannot_be_used_is_refused(view: Served) -> None:
    assert_refused(view.post("a,b"), 400, "key-invalid", new_key=True, retry=False)
    view.site.configure(REQUIRED=True)
    assert_refused(view.post(None), 400, "key-missing", new_key=True, retry=False)
    assert orders() == 0
    view.post()
    reused = view.post(data={"total": 2})
    assert_refused(reused, 422, "key-reused", new_key=False, retry=False)
    IdempotencyRecord.objects.update(expires_at="2020-01-01T00:00:00Z")  # its retention is over
    assert_refused(view.post(), 409, "key-expired", new_key=False, retry=False)
    IdempotencyRecord.objects.update(state="running", body=b"", expires_at=None)  # interrupted
    for _ in range(2):
        assert_refused(view.post(), 409, "outcome-uncertain", new_key=False, retry=False)
    assert (orders(), record().state) == (1, "uncertain")


@each_class
def test_a_key_without_an_owner_is_refused(view: Served, caplog: pytest.LogCaptureFixture) -> None:
    view.user = "nobody"
    assert_refused(view.post(), 400, "key-unscoped", new_key=True, retry=False)
    assert "refused an anonymous request with a key. Pass anonymous_scope=" in caplog.text
    assert orders() == 0
    assert view.post(None).status_code == 201


@each_class
def test_a_body_that_is_too_large_is_refused_with_a_key_only(
    view: Served, settings: Settings
) -> None:
    """A view that does not read it answers it without a key, as the page says."""
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 50
    large = {"text": "x" * 60}
    assert_refused(view.post(data=large), 413, "body-too-large", new_key=True, retry=False)
    assert orders() == 0
    assert view.post(None, data=large).status_code == 201


@each_class
def test_without_a_quorum_a_replay_is_sent_and_a_new_request_is_refused(
    view: Served, request: pytest.FixtureRequest
) -> None:
    view.post("done")
    backend = memory_backend()
    backend.down = [True] * len(backend.down)
    assert_refused(view.post(), 503, "unavailable", new_key=False, retry=True)
    assert view.post("done")["Idempotent-Replayed"] == "true"
    assert orders() == 1
    assert view.post(None).status_code == (503 if locks_resource(request) else 201)


@each_class
def test_without_the_database_a_request_is_refused(
    view: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def down(*_: Any, **__: Any) -> None:
        raise OperationalError("database is locked")

    monkeypatch.setattr(records, "_select", down)
    assert_refused(view.post(), 503, "unavailable", new_key=False, retry=True)
    assert orders() == 0

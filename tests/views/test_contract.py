"""The contract of locked views: each kind of view at each event."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from asgiref.sync import iscoroutinefunction
from django.db import IntegrityError, connection, connections, transaction
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.template.response import SimpleTemplateResponse
from django.test import Client
from django.urls import URLPattern, path, resolve
from pytest_django import Settings

from redlock_django import lock, resume_lock
from redlock_django.exceptions import (
    BadResource,
    InvalidRedlock,
    LockLost,
    QuorumUnreachable,
    ResourceLocked,
    StoreUnavailable,
)
from redlock_django.locking.services import locks
from redlock_django.testing import held_elsewhere
from testproject.shop.models import Order
from tests.app.conftest import LOCK_MIDDLEWARE, MEMORY, Urls, sender, wrapping
from tests.inspecting import is_free
from tests.views.kinds import KINDS, Kind, body

pytestmark = pytest.mark.django_db(transaction=True)
NAME = "order:7"


class Site:
    """A site of one view, and its clients."""

    def __init__(self, kind: Kind, *, atomic: bool) -> None:
        self.kind, self.atomic = kind, atomic
        self.rolls_back = atomic and not kind.is_async
        # Django begins first where the lock is in its transaction.
        self.begun = ["BEGIN", "lock"] if kind.inside else ["lock", "BEGIN"]
        # COMMIT of a transaction around the lock is guarded, too.
        self.guards = ["guard"] * (2 if kind.inside else 1)

    def post(self, url: str = "/7/", **options: Any) -> Any:
        return sender(self.kind.is_async, **options)(url)


def cells(
    applies: Callable[[Kind], bool] = lambda kind: True, *, modes: tuple[bool, ...] = (False, True)
) -> list[Any]:
    """Return each kind without and, if it is sync, with ATOMIC_REQUESTS."""
    return [
        pytest.param((kind, atomic), id=f"{name}-{'atomic' if atomic else 'plain'}")
        for name, kind in KINDS.items()
        if applies(kind)
        for atomic in modes
        if not (atomic and kind.is_async)
    ]


@pytest.fixture(params=cells())
def site(
    request: pytest.FixtureRequest,
    urls: Urls,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    sees_commits: None,
) -> Iterator[Site]:
    kind, atomic = request.param
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", atomic)
    settings.REDLOCK = {"default": {"BACKEND": MEMORY, "RULES": kind.rules}}
    settings.MIDDLEWARE = [] if kind.alone else [LOCK_MIDDLEWARE]
    urls(kind.make())
    body[:] = [lambda request: write()]
    yield Site(kind, atomic=atomic)
    body.clear()


def write() -> HttpResponse:
    Order.objects.create(number="A-1", total=1)
    return HttpResponse(b"done")


def test_the_lock_is_held_from_before_begin_until_after_commit(
    site: Site, happened: list[str]
) -> None:
    seen: list[bool] = []

    def view(request: HttpRequest) -> HttpResponse:
        seen.append(is_free(NAME))
        return HttpResponse(b"done")

    body[:] = [view]
    assert site.post().content == b"done"
    assert (seen, is_free(NAME)) == ([False], True)
    if site.kind.is_async:  # what happens in a loop is not recorded
        assert happened == []
    elif not site.atomic:
        assert happened == ["lock", "release"]
    else:
        assert happened == [*site.begun, *site.guards, "COMMIT", "release"]


@pytest.mark.parametrize("site", cells(lambda kind: not kind.is_async), indirect=True)
def test_a_view_that_is_excluded_from_atomic_requests_has_no_transaction(
    site: Site, urls: Urls, happened: list[str]
) -> None:
    pattern = site.kind.make()
    if not isinstance(pattern, URLPattern):  # the view of django-ninja is one for all operations
        pattern = next(one for one in pattern.url_patterns if "pk" in str(one.pattern))
    found = wrapping(pattern.callback) if site.kind.rules else pattern.callback
    urls(path("<str:pk>/", transaction.non_atomic_requests(found), name="pay"))

    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse(b"atomic" if connection.in_atomic_block else b"done")

    body[:] = [view]
    assert site.post().content == b"done"
    assert happened == ["lock", "release"]


@pytest.mark.parametrize("site", cells(lambda kind: kind.is_async), indirect=True)
def test_an_async_view_under_atomic_requests_is_djangos_error(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    with pytest.raises(RuntimeError, match="You cannot use ATOMIC_REQUESTS with async views"):
        site.post()
    assert not Order.objects.exists()


@pytest.mark.parametrize("site", cells(lambda kind: kind.is_async), indirect=True)
def test_an_async_view_is_locked_by_a_wsgi_server_too(site: Site) -> None:
    with held_elsewhere(NAME):
        assert Client().post("/7/").status_code == 423
        assert not Order.objects.exists()
    assert Client().post("/7/").content == b"done"
    assert is_free(NAME)
    assert iscoroutinefunction(resolve("/7/").func)


PLACES = ("Put @lock_resource above", 'name="dispatch"', "LockAPIMixin", "django-ninja")
"""The advice about each framework, in the errors about a transaction around the lock."""


def test_a_transaction_that_reads_old_data_is_refused(
    site: Site, monkeypatch: pytest.MonkeyPatch, happened: list[str]
) -> None:
    monkeypatch.setattr(
        "redlock_django.locking.transactions.sees_commits", lambda connection: False
    )
    if site.atomic and site.kind.inside:
        with pytest.raises(InvalidRedlock, match="is called inside an open") as refused:
            site.post()
        assert [place for place in PLACES if place not in str(refused.value)] == []
        assert happened == ["BEGIN", "lock", "ROLLBACK"]
        assert not Order.objects.exists()
    else:
        assert site.post().content == b"done"


@pytest.mark.parametrize("site", cells(lambda kind: not kind.rules), indirect=True)
def test_a_transaction_around_needs_the_middleware(
    site: Site, settings: Settings, happened: list[str]
) -> None:
    settings.MIDDLEWARE = []
    if site.atomic and site.kind.inside:
        with pytest.raises(InvalidRedlock, match="only LockMiddleware can answer") as refused:
            site.post()
        assert LOCK_MIDDLEWARE in str(refused.value)
        assert happened == ["BEGIN", "ROLLBACK"]
        assert not Order.objects.exists()
    else:
        assert site.post().content == b"done"


def test_a_lock_that_another_client_holds_is_answered_423(site: Site) -> None:
    with held_elsewhere(NAME):
        answer = site.post()
        assert not Order.objects.exists()
        assert site.post("/8/").content == b"done"
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (423, "resource-locked")
    assert (problem["retryable"], answer["Cache-Control"]) == (True, "no-store")
    assert 1 <= int(answer["Retry-After"]) <= 60


def test_a_store_that_is_down_is_answered_503(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*args: object, **_: object) -> None:
        raise QuorumUnreachable("no master answers")

    async def aunreachable(*args: object, **_: object) -> None:
        unreachable()

    backend = locks["default"].backend
    monkeypatch.setattr(backend, "acquire", unreachable)
    monkeypatch.setattr(backend, "aacquire", aunreachable)
    answer = site.post()
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (503, "lock-unavailable")
    assert "Nothing was changed" in problem["detail"]
    assert not Order.objects.exists()


def test_a_value_that_is_no_key_is_answered_400(
    site: Site, happened: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    answer = site.post("/seven/")
    assert (answer.status_code, answer.json()["code"]) == (400, "bad-resource")
    (logged,) = [one.getMessage() for one in caplog.records if one.name == "redlock_django"]
    request, _, reason = logged.partition(" was answered 400: ")
    assert (request, reason.startswith("<int:"), "seven" in reason) == ("POST /seven/", True, False)
    assert "is not a valid 'int'" in reason
    assert "lock" not in happened
    assert not Order.objects.exists()


def test_a_lost_lock_is_rolled_back_or_keeps_the_response(
    site: Site, lose_locks: Callable[[], None], happened: list[str]
) -> None:
    def view(request: HttpRequest) -> HttpResponse:
        response = write()
        lose_locks()
        return response

    body[:] = [view]
    answer = site.post()
    if site.rolls_back:
        problem = answer.json()
        assert (answer.status_code, problem["code"]) == (503, "lock-lost")
        assert (problem["retryable"], answer["Retry-After"]) == (True, "1")
        assert Order.objects.count() == 0
        assert happened == [*site.begun, "guard", "ROLLBACK", "release"]
    else:  # nothing can undo what the view has done
        assert (answer.status_code, answer.content) == (200, b"done")
        assert Order.objects.count() == 1


class Outer:
    """A middleware with a transaction around every request."""

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> Any:
        with transaction.atomic():
            return self.get_response(request)


@pytest.mark.parametrize("order", [1, -1], ids=["inside of LockMiddleware", "around it"])
@pytest.mark.parametrize("site", cells(lambda kind: not kind.is_async), indirect=True)
def test_a_lost_lock_rolls_back_the_transaction_of_a_middleware(
    site: Site,
    settings: Settings,
    lose_locks: Callable[[], None],
    happened: list[str],
    order: int,
) -> None:
    def view(request: HttpRequest) -> HttpResponse:
        response = write()
        lose_locks()
        return response

    settings.MIDDLEWARE = [LOCK_MIDDLEWARE, f"{__name__}.Outer"][::order]
    body[:] = [view]
    answer = site.post(raise_request_exception=False)
    assert Order.objects.count() == 0
    assert happened[:2] == ["BEGIN", "lock"]
    # ATOMIC_REQUESTS is a savepoint here: with the lock inside, the work of the view is gone with
    # it. LockMiddleware has then ended a middleware inside of it, but not one around it, whose
    # COMMIT is refused where nothing answers any more.
    is_savepoint = site.atomic and site.kind.inside
    if is_savepoint and order == -1:
        assert (answer.status_code, happened[-2:]) == (500, ["ROLLBACK", "release"])
        return
    assert (answer.status_code, answer.json()["code"]) == (503, "lock-lost")
    assert answer.json()["retryable"] is True
    assert happened[-2:] == ["COMMIT" if is_savepoint else "ROLLBACK", "release"]


def test_an_error_of_the_view_is_raised_and_frees_the_lock(site: Site, happened: list[str]) -> None:
    def view(request: HttpRequest) -> HttpResponse:
        write()
        raise KeyError("mine")

    body[:] = [view]
    with pytest.raises(KeyError, match="mine"):
        site.post()
    assert is_free(NAME)
    assert Order.objects.count() == (0 if site.rolls_back else 1)
    if site.rolls_back:
        assert happened == [*site.begun, "ROLLBACK", "release"]


ERRORS: dict[str, tuple[Exception, int]] = {
    "resource-locked": (ResourceLocked("x", retry_after=4), 423),
    "lock-unavailable": (StoreUnavailable("x"), 503),
    "lock-lost": (LockLost("x"), 503),
    "bad-resource": (BadResource("x"), 400),
}


def test_a_lock_error_of_the_view_is_answered(site: Site) -> None:
    for code, (error, status) in ERRORS.items():

        def view(request: HttpRequest, error: Exception = error) -> HttpResponse:
            write()
            raise error

        body[:] = [view]
        Order.objects.all().delete()
        answer = site.post()
        assert (answer.status_code, answer.json()["code"]) == (status, code)
        assert Order.objects.count() == (0 if site.rolls_back else 1), code
        assert is_free(NAME), code


def breaks_a_rule(request: HttpRequest) -> HttpResponse:
    with pytest.raises(IntegrityError), transaction.atomic():
        write()
    return HttpResponse()


def rolls_back(request: HttpRequest) -> HttpResponse:
    transaction.set_rollback(True)
    return HttpResponse(status=409)


def commits_inside(request: HttpRequest) -> HttpResponse:
    with (
        pytest.raises(RuntimeError, match="durable atomic block"),
        transaction.atomic(durable=True),
    ):
        pass
    return HttpResponse()


def fails_after_commit(request: HttpRequest) -> HttpResponse:
    transaction.on_commit(lambda: 1 / 0)
    return HttpResponse()


ENDS: dict[str, tuple[Callable[[HttpRequest], HttpResponse], int, int]] = {
    "a 500 that is returned": (lambda request: HttpResponse(status=500), 500, 1),
    "its own rollback": (rolls_back, 409, 0),
    "a savepoint": (breaks_a_rule, 200, 1),
    "a durable block": (commits_inside, 200, 1),
    "a hook that fails": (fails_after_commit, 500, 1),
}
"""How a view may end its transaction: the status of the answer, and how many orders there are."""


@pytest.mark.parametrize("site", cells(modes=(True,)), indirect=True)
def test_a_transaction_ends_as_in_django(site: Site, happened: list[str]) -> None:
    for end, (work, status, orders) in ENDS.items():

        def view(
            request: HttpRequest, work: Callable[[HttpRequest], HttpResponse] = work
        ) -> HttpResponse:
            write()
            return work(request)

        body[:] = [view]
        Order.objects.all().delete()
        happened.clear()
        assert site.post(raise_request_exception=False).status_code == status, end
        ends = [*site.guards, "COMMIT"] if orders else ["guard", "ROLLBACK"]
        assert happened == [*site.begun, *ends, "release"], end
        assert Order.objects.count() == orders, end


@pytest.mark.parametrize("site", cells(lambda kind: not kind.is_async), indirect=True)
def test_hooks_of_the_commit_run_before_the_release(site: Site, happened: list[str]) -> None:
    def view(request: HttpRequest) -> HttpResponse:
        transaction.on_commit(lambda: happened.append("hook"))
        return HttpResponse()

    body[:] = [view]
    assert site.post().status_code == 200
    begun = [*site.begun, *site.guards, "COMMIT"] if site.atomic else ["lock"]
    assert happened == [*begun, "hook", "release"]


async def ahands_on(request: HttpRequest) -> HttpResponse:
    held = await lock(NAME, reentrant=True).aacquire()
    return HttpResponse(await held.atransfer(ttl=60))


def test_the_lock_of_the_view_is_handed_on(site: Site) -> None:
    def hands_on(request: HttpRequest) -> HttpResponse:
        return HttpResponse(lock(NAME, reentrant=True).acquire().transfer(ttl=60))

    body[:] = [ahands_on if site.kind.is_async else hands_on]
    ticket = site.post().content.decode()
    assert not is_free(NAME)
    with resume_lock(ticket) as taken:
        taken.ensure_held()
    assert is_free(NAME)


def test_another_lock_that_is_refused_promises_nothing_without_a_rollback(site: Site) -> None:
    def view(request: HttpRequest) -> HttpResponse:
        write()
        with lock("stock:1", until_commit=False):
            return HttpResponse()

    body[:] = [view]
    with held_elsewhere("stock:1"):
        answer = site.post()
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (423, "resource-locked")
    assert problem["retryable"] is ("Retry-After" in answer) is site.rolls_back
    assert ("not known whether anything was changed" in problem["detail"]) is not site.rolls_back
    assert Order.objects.count() == (0 if site.rolls_back else 1)
    assert is_free(NAME)


@pytest.mark.parametrize("site", cells(lambda kind: not kind.is_async), indirect=True)
def test_a_stream_keeps_the_lock_until_it_is_closed(site: Site) -> None:
    body[:] = [lambda request: StreamingHttpResponse(iter([b"a", b"b"]))]
    answer = site.post()
    assert not is_free(NAME)
    assert answer.getvalue() == b"ab"
    assert is_free(NAME)


def test_a_template_is_rendered_under_the_lock(
    site: Site, monkeypatch: pytest.MonkeyPatch, happened: list[str]
) -> None:
    def render(response: Any) -> str:
        happened.append("render")
        return "free" if is_free(NAME) else "locked"

    monkeypatch.setattr(SimpleTemplateResponse, "rendered_content", property(render))
    body[:] = [lambda request: SimpleTemplateResponse("any.html")]
    assert site.post().content == b"locked"
    assert is_free(NAME)
    if site.rolls_back:
        ends = ["render", *site.guards, "COMMIT"]
        if site.kind.renders_late:
            ends = [*site.guards, "COMMIT", "render"]
        assert happened == [*site.begun, *ends, "release"]

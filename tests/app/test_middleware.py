"""LockMiddleware: answers for any view, and locks that outlive the view that acquired them."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from asgiref.sync import iscoroutinefunction, sync_to_async
from django.core.exceptions import PermissionDenied
from django.db import connection, connections, transaction
from django.http import HttpRequest, HttpResponse
from django.template import engines
from django.template.response import TemplateResponse
from django.test import AsyncClient, Client, RequestFactory
from django.urls import path
from django.views.generic import View
from pytest_django import Settings

import redlock_django
from redlock_django import lock, lock_resource, resource
from redlock_django.exceptions import BadName, ResourceLocked
from redlock_django.middleware import LockMiddleware
from redlock_django.signals import lock_released
from redlock_django.testing import held_elsewhere, lose_lock
from redlock_django.web.request import RequestState
from testproject.shop.models import Order
from tests.app.conftest import ADDS_CONTEXT, LOCK_MIDDLEWARE, Configure, Urls, order, sender
from tests.inspecting import is_free
from tests.views.kinds import BareRest, Rest, body, of_class

WRITES = pytest.mark.django_db(transaction=True)
pytestmark = pytest.mark.usefixtures("lock_middleware")
LAYER = tuple(str(Path(redlock_django.__file__).with_name(name)) for name in ("web", "middleware"))
locked = lock_resource("order:<int:pk>")


def respond(request: HttpRequest, **_: int) -> HttpResponse:
    return HttpResponse()


# Answers.


@pytest.mark.attack
@pytest.mark.django_db
def test_a_bad_name_of_the_site_is_no_answer_to_the_client(
    urls: Urls, client: Client, sees_commits: None
) -> None:
    def view(request: HttpRequest) -> HttpResponse:
        with lock(f"order {request.GET['order']}"):
            return HttpResponse()

    def careful(request: HttpRequest) -> HttpResponse:
        with lock(resource("order:<int:get:order>", **{"get:order": request.GET["order"]})):
            return HttpResponse()

    urls(path("", view), path("careful/", careful))
    with pytest.raises(BadName, match="makes a valid name"):
        client.get("/?order=7")
    assert client.get("/careful/?order=seven").status_code == 400
    assert client.get("/careful/?order=7").status_code == 200


@pytest.mark.parametrize(
    ("view", "calls"),
    [(respond, range(5, 13)), (locked(respond), range(50, 111))],
    ids=["not touched", "locked"],
)
def test_a_request_calls_few_functions(
    rf: RequestFactory, plain: None, view: Callable[..., HttpResponse], calls: range
) -> None:
    middleware: Any = LockMiddleware(lambda request: view(request, pk=7))
    middleware(rf.get("/"))  # what is done once is done
    request = rf.get("/")
    called: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if "call" in event and frame.f_code.co_filename.startswith(LAYER):
            called.append(frame.f_code.co_qualname if event == "call" else event)

    sys.setprofile(note)
    try:
        middleware(request)
    finally:
        sys.setprofile(None)

    assert len(called) in calls, called


async def test_the_middleware_is_async_where_its_neighbour_is(urls: Urls) -> None:
    async def respond(request: HttpRequest) -> HttpResponse:
        return HttpResponse(str(threading.get_ident()))

    def respond_sync(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    asynchronous: Any = LockMiddleware(respond)
    assert iscoroutinefunction(asynchronous)
    assert not iscoroutinefunction(LockMiddleware(respond_sync))
    response = await asynchronous(RequestFactory().get("/"))
    assert response.content.decode() == str(threading.get_ident())


# A handler method inside the transaction that Django has opened.


class Handler(View):
    @lock_resource(
        "order:<int:pk>", on_locked=lambda request, error: HttpResponse("own", status=202)
    )
    def post(self, request: HttpRequest, pk: int) -> HttpResponse:
        order()
        return HttpResponse()


@WRITES
def test_a_refused_handler_answers_in_its_own_way_after_rollback(
    urls: Urls, client: Client, happened: list[str], sees_commits: None
) -> None:
    urls(path("<int:pk>/", Handler.as_view()))
    with held_elsewhere("order:7"):
        happened.clear()
        response = client.post("/7/")
        assert (response.status_code, response.content) == (202, b"own")
        assert happened == ["BEGIN", "lock", "ROLLBACK"]


@pytest.mark.attack
@WRITES
def test_a_template_response_is_changed_by_middleware_and_rendered_under_the_lock(
    settings: Settings, urls: Urls, client: Client, happened: list[str]
) -> None:
    @locked
    def rendering(request: HttpRequest, pk: int) -> HttpResponse:
        def render() -> str:
            happened.append("free" if is_free("order:7") else "render")
            return "late, "

        template: Any = engines["django"].from_string("{{ f }}{{ added }}")
        return TemplateResponse(request, template, {"f": render})

    settings.MIDDLEWARE = [LOCK_MIDDLEWARE, ADDS_CONTEXT]
    urls(path("<int:pk>/", rendering))
    assert client.get("/7/").content == b"late, by the middleware"
    assert happened == ["lock", "BEGIN", "guard", "COMMIT", "render", "release"]


# A transaction of another middleware, around LockMiddleware.

OUTER = "reversion.middleware.RevisionMiddleware"


@WRITES
@pytest.mark.parametrize("middleware", [[OUTER, LOCK_MIDDLEWARE], [LOCK_MIDDLEWARE, OUTER]])
@pytest.mark.parametrize("asgi", [True, False])
def test_the_lock_outlives_the_transaction_of_a_middleware(
    settings: Settings,
    urls: Urls,
    happened: list[str],
    sees_commits: None,
    middleware: list[str],
    asgi: bool,
) -> None:
    settings.MIDDLEWARE = middleware
    urls(path("<int:pk>/", Handler.as_view()))
    assert sender(asgi)("/7/").status_code == 200
    assert happened[-2:] == ["COMMIT", "release"]
    assert "release" not in happened[: happened.index("lock")]


@pytest.mark.attack
@WRITES
@pytest.mark.parametrize("atomic_requests", [True, False])
@pytest.mark.parametrize("place", ["as_view", "dispatch"])
def test_the_answer_inside_a_transaction_of_a_middleware_says_what_is_kept(
    settings: Settings,
    urls: Urls,
    client: Client,
    sees_commits: None,
    monkeypatch: pytest.MonkeyPatch,
    atomic_requests: bool,
    place: str,
) -> None:
    class Busy(View):
        def post(self, request: HttpRequest, pk: int) -> HttpResponse:
            order()
            with lock("other"):
                return HttpResponse()

    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", atomic_requests)
    settings.MIDDLEWARE = [OUTER, LOCK_MIDDLEWARE]
    view = locked(Busy.as_view()) if place == "as_view" else of_class(Busy, locked)
    urls(path("<int:pk>/", view))
    with held_elsewhere("other"):
        response = client.post("/7/")
    assert response.status_code == 423
    is_kept = Order.objects.count() == 1
    assert is_kept is not atomic_requests
    assert response.json()["retryable"] is not is_kept


@WRITES
def test_a_view_keeps_its_own_block_inside_the_transaction_of_a_middleware(
    settings: Settings, urls: Urls, client: Client, sees_commits: None
) -> None:
    @locked
    def view(request: HttpRequest, pk: int) -> HttpResponse:
        order()
        raise PermissionDenied

    settings.MIDDLEWARE = [OUTER, LOCK_MIDDLEWARE]
    urls(path("<int:pk>/", view))
    assert client.post("/7/").status_code == 403
    assert Order.objects.count() == 0


# Cancellation.


async def test_cancelled_async_work_frees_at_once(urls: Urls, plain: None) -> None:
    entered = asyncio.Event()

    async def view(request: HttpRequest) -> HttpResponse:
        async with lock("nightly"):
            entered.set()
            await asyncio.Event().wait()
        return HttpResponse()

    urls(path("", view))
    task = asyncio.create_task(AsyncClient().get("/"))
    await entered.wait()
    assert not is_free("nightly")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert is_free("nightly")


async def test_a_cancelled_task_waits_for_its_thread_before_its_release() -> None:
    begun, go_on, freed = threading.Event(), threading.Event(), threading.Event()

    def note(**_: object) -> None:
        freed.set()

    lock_released.connect(note)
    free_meanwhile: list[bool] = []

    def work() -> None:
        begun.set()
        assert go_on.wait(60)
        free_meanwhile.append(is_free("nightly"))

    async def locked() -> None:
        async with lock("nightly"):
            await sync_to_async(work)()

    task = asyncio.create_task(locked())
    await asyncio.to_thread(begun.wait, 20)
    task.cancel()
    await asyncio.sleep(0.01)
    task.cancel()  # a second time, as a server does at shutdown
    await asyncio.sleep(0.01)
    assert not is_free("nightly")
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.to_thread(freed.wait, 20)
    assert is_free("nightly")
    assert free_meanwhile == [False]


def test_a_lock_kept_while_another_is_released_is_released_too() -> None:
    state, first, second = RequestState(), lock("order:1"), lock("order:2")
    state.keep(first.acquire())
    second.acquire()

    def keep(resources: tuple[str, ...], **_: object) -> None:
        if resources == ("order:1",):
            state.keep(second)

    lock_released.connect(keep)
    state.release_locks()
    assert not first.locked
    assert not second.locked


# The promise of an answer: that nothing was changed, only if that is certain. For locked views,
# `tests/views` shows it.


def plain(request: HttpRequest, **_: int) -> HttpResponse:
    """Change something, and end as if another lock was not acquired."""
    order()
    raise ResourceLocked("stock:1", retry_after=4)


async def aplain(request: HttpRequest, **_: int) -> HttpResponse:
    """Change something, and fail to get another lock."""
    await Order.objects.acreate(number="A-1", total=1)
    async with lock("stock:1"):
        return HttpResponse()


def after_commit(request: HttpRequest, **_: int) -> HttpResponse:
    """Fail to get a lock in a hook, after COMMIT."""
    transaction.on_commit(lambda: lock("stock:1").acquire())
    order()
    return HttpResponse()


SYNC: dict[str, Any] = {
    "plain": plain,
    "other method": lock_resource("order:1", methods=["GET"])(plain),
    "API": BareRest.as_view(),
    "API with the mixin": Rest.as_view(),
}


@pytest.fixture
def send(
    urls: Urls, monkeypatch: pytest.MonkeyPatch, settings: Settings, transactional_db: None
) -> Callable[..., Any]:
    def send(view: Any, *, atomic: bool, method: str = "POST") -> Any:
        monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", atomic)
        body[:] = [plain]
        urls(path("<int:pk>/", view))
        with held_elsewhere("stock:1"):
            return sender(iscoroutinefunction(view), method.lower())("/7/")

    handler = "redlock_django.contrib.drf.exception_handler"
    settings.REST_FRAMEWORK = {"EXCEPTION_HANDLER": handler}
    return send


def promises(answer: Any) -> bool:
    """Return whether the answer says that the request may be sent again."""
    retryable = "Retry-After" in answer
    body = answer.json()
    if "retryable" in body:
        assert body["retryable"] is retryable
    assert ("not known whether anything was changed" in body["detail"]) is not retryable
    return retryable


@pytest.mark.attack
@pytest.mark.parametrize(
    ("view", "atomic", "kept"),
    [
        *(pytest.param(view, True, 0, id=f"{name}, atomic") for name, view in SYNC.items()),
        *(pytest.param(view, False, 1, id=name) for name, view in SYNC.items()),
        pytest.param(aplain, False, 1, id="async"),
        pytest.param(after_commit, True, 1, id="hook"),
        pytest.param(lock_resource("order:1")(after_commit), True, 1, id="locked hook"),
    ],
)
def test_after_a_rollback_only_the_request_may_be_sent_again(
    send: Callable[..., Any], view: Any, atomic: bool, kept: int
) -> None:
    answer = send(view, atomic=atomic)
    assert (answer.status_code, Order.objects.count()) == (423, kept)
    assert promises(answer) is (kept == 0)


def test_the_status_of_a_refusal_of_any_view_is_that_of_the_settings(
    send: Callable[..., Any], memory: Configure, happened: list[str]
) -> None:
    memory(STATUS=409)
    assert send(plain, atomic=True).status_code == 409
    assert happened[-2:] == ["BEGIN", "ROLLBACK"]


@pytest.mark.parametrize("view", [plain, aplain])
def test_a_safe_method_may_always_be_sent_again(send: Callable[..., Any], view: Any) -> None:
    assert promises(send(view, atomic=False, method="GET"))


def test_a_lost_lock_without_a_transaction_promises_nothing(send: Callable[..., Any]) -> None:
    def view(request: HttpRequest, pk: int) -> HttpResponse:
        with lock("order:2") as held:
            lose_lock("order:2")
            held.ensure_held()
        return HttpResponse()

    answer = send(view, atomic=False)
    assert (answer.status_code, answer.json()["code"]) == (503, "lock-lost")
    assert not promises(answer)

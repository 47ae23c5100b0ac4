"""Async views: the record is written before and after the view, or completed by the view."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.contrib.auth.models import User
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.test import AsyncClient
from django.utils import translation
from pytest_django import Settings

from redlock_django import idempotent, lock, lock_resource
from redlock_django.exceptions import InvalidRedlock
from redlock_django.idempotency.key import Claim
from redlock_django.idempotency.records import RecordStore
from redlock_django.models import IdempotencyRecord
from testproject.shop.models import Order
from tests.app.conftest import LOCK_MIDDLEWARE
from tests.disconnects import Visit, is_cancelled
from tests.idempotency.conftest import KEY, Site, make_order, masters_forget, record
from tests.inspecting import is_free
from tests.waiting import until_wanted

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("plain")]


@pytest.fixture
def client(site: Site) -> AsyncClient:
    client = AsyncClient(raise_request_exception=False)
    client.cookies = site.client.cookies
    return client


async def post(client: AsyncClient, key: str | None = KEY, body: str = "{}", **headers: str) -> Any:
    headers |= {} if key is None else {"Idempotency-Key": key}
    return await client.post("/", body, content_type="application/json", headers=headers)


async def amake_order(request: HttpRequest, **_: Any) -> HttpResponse:
    count = await Order.objects.acount()
    await Order.objects.acreate(number=f"A-{count + 1}", total=1)
    return JsonResponse({"order": f"A-{count + 1}"}, status=201)


locked = lock_resource("order:7")


async def test_a_sync_view_under_asgi(site: Site, client: AsyncClient, happened: list[str]) -> None:
    site.serve(idempotent(locked(make_order)))
    happened.clear()
    assert [(await post(client)).status_code for _ in range(2)] == [201, 201]
    # The transaction is in another thread, whose connection this test does not record.
    assert happened == ["lock", "lock", "guard", "release", "release"]
    assert await Order.objects.acount() == 1


def test_an_async_view_stays_a_coroutine_function() -> None:
    assert iscoroutinefunction(idempotent(amake_order))
    assert not hasattr(idempotent(amake_order), "_non_atomic_requests")


async def test_a_request_that_waits_is_given_the_same_answer(
    site: Site, client: AsyncClient
) -> None:
    running = asyncio.Event()

    async def view(request: HttpRequest, **_: Any) -> HttpResponse:
        running.set()
        await asyncio.sleep(0.05)
        return await amake_order(request)

    site.serve(idempotent(wait=20)(view))
    first = asyncio.create_task(post(client))
    await running.wait()
    assert (await post(client)).content == (await first).content
    assert await Order.objects.acount() == 1


def visit_of(client: AsyncClient, key: str | None = KEY) -> Visit:
    """Return a view that makes an order, and the request of a client that disconnects."""
    return Visit(partial(post, client, key), amake_order)


@pytest.mark.attack
@pytest.mark.parametrize("given", [{}, {"key": "header:Idempotency-Key", "scope": "acme"}])
async def test_a_view_whose_client_has_gone_runs_to_its_end(
    site: Site, client: AsyncClient, given: Any
) -> None:
    visit = visit_of(client)
    site.serve(idempotent(**given)(locked(visit.view)))
    gone = await visit.leave()
    assert (await post(client)).json()["code"] == "idempotency-key-in-flight"
    visit.opened.set()
    assert await is_cancelled(gone)
    answer = await post(client)
    assert (answer.status_code, answer["Idempotent-Replayed"]) == (201, "true")
    assert await Order.objects.acount() == 1
    assert is_free("order:7")


async def test_a_client_that_goes_while_the_record_is_written_leaves_a_replay(
    site: Site, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, begins = RecordStore.begin, threading.Event()

    def slow(self: Any, claim: Claim, **options: Any) -> None:
        begins.set()
        assert leaves.wait(60)
        begin(self, claim, **options)

    leaves = threading.Event()
    monkeypatch.setattr(RecordStore, "begin", slow)
    site.serve(idempotent(amake_order))
    gone = asyncio.create_task(post(client))
    while not begins.is_set():  # noqa: ASYNC110 - the thread cannot set an asyncio.Event
        await asyncio.sleep(0.001)
    gone.cancel()
    leaves.set()
    assert await is_cancelled(gone)
    assert (await post(client))["Idempotent-Replayed"] == "true"
    assert await Order.objects.acount() == 1


async def test_a_client_that_leaves_during_its_wait_for_a_resource_leaves_nothing(
    site: Site, client: AsyncClient
) -> None:
    site.serve(idempotent(lock_resource("order:7", wait=30)(amake_order)))
    async with lock("order:7"):
        gone = asyncio.create_task(post(client))
        await until_wanted("order:7")
        gone.cancel()
        assert await is_cancelled(gone)
    assert await Order.objects.acount() == 0
    assert (await asyncio.create_task(post(client)))["Idempotent-Replayed"] == "false"


async def test_a_retry_without_the_lock_does_not_run_the_view(
    site: Site, client: AsyncClient
) -> None:
    visit = visit_of(client)
    site.serve(idempotent(visit.view))
    first = asyncio.create_task(post(client))
    await visit.entered.wait()
    masters_forget()
    assert (await post(client)).json()["code"] == "idempotency-outcome-uncertain"
    visit.opened.set()
    assert (await first).status_code == 201
    assert (await post(client))["Idempotent-Replayed"] == "true"
    assert await Order.objects.acount() == 1


async def test_a_view_that_sends_its_own_request_again_is_still_running(
    site: Site, client: AsyncClient
) -> None:
    """The task that sends it holds the lock of the key, which must not count as its own."""
    inner = []

    async def view(request: HttpRequest, **_: Any) -> HttpResponse:
        inner.extend([await post(client), await post(client, body="[]")])
        return await amake_order(request)

    site.serve(idempotent(view))
    first, again = await post(client), await post(client)
    assert [(answer.status_code, answer.json()["code"]) for answer in inner] == [
        (409, "idempotency-key-in-flight"),
        (422, "idempotency-key-reused"),
    ]
    assert (first.status_code, again["Idempotent-Replayed"]) == (201, "true")
    assert await Order.objects.acount() == 1


async def test_a_request_without_a_key_is_cancelled_with_its_client(
    site: Site, client: AsyncClient
) -> None:
    visit = visit_of(client, key=None)
    site.serve(idempotent(visit.view))
    assert await is_cancelled(await visit.leave())


async def test_a_failure_without_a_client_is_logged_and_recorded(
    site: Site, client: AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    visit = visit_of(client)

    async def view(request: HttpRequest, **_: Any) -> HttpResponse:
        await visit.view(request)
        raise RuntimeError("after its client")

    site.serve(idempotent(view))
    gone = await visit.leave()
    visit.opened.set()
    assert await is_cancelled(gone)
    assert "after its client" in caplog.text
    assert (await post(client)).json()["code"] == "idempotency-outcome-uncertain"


async def test_a_stream_without_a_client_is_closed(site: Site, client: AsyncClient) -> None:
    visit = visit_of(client)
    closed: list[int] = []

    async def view(request: HttpRequest, **_: Any) -> StreamingHttpResponse:
        await visit.view(request)
        response = StreamingHttpResponse(iter([b"x"]))
        response._resource_closers.append(lambda: closed.append(1))  # type: ignore[attr-defined]
        return response

    site.serve(idempotent(locked(view)))
    await visit.finish_without_client()
    assert closed == [1]
    assert (await post(client)).json()["code"] == "idempotency-result-unavailable"


async def test_a_context_variable_set_by_a_view_reaches_middleware(
    site: Site, client: AsyncClient
) -> None:
    languages: list[str] = []

    @idempotent
    async def decorated(request: HttpRequest, **_: Any) -> HttpResponse:
        response = await amake_order(request)
        translation.activate("fr")
        return response

    async def above(request: HttpRequest, **_: Any) -> HttpResponse:
        response = await decorated(request)
        languages.append(translation.get_language())
        return response

    site.serve(above)
    with translation.override("en"):
        await post(client)
    assert languages == ["fr"]


async def test_callables_of_the_site_may_be_coroutines(site: Site, client: AsyncClient) -> None:
    async def scope(request: HttpRequest, **_: Any) -> str:
        return "everybody"

    def tenant(request: HttpRequest, **_: Any) -> str:
        return "here"

    async def check(request: HttpRequest, **_: Any) -> bool:
        return "X-Refused" not in request.headers

    site.serve(idempotent(anonymous_scope=scope, tenant=tenant, replay_check=check)(amake_order))
    client.cookies.clear()
    await post(client)
    assert (await post(client))["Idempotent-Replayed"] == "true"
    assert (await post(client, **{"X-Refused": "1"})).status_code == 403


# Completed by the view, in its own transaction.


def work(request: Any, *, fail_after: bool = False, inside: bool = True) -> HttpResponse:
    """Do the work and complete the record in one transaction, in a thread."""
    with transaction.atomic() if inside else nullcontext():
        response = make_order(request)
        request.idempotency.complete(response)
        if fail_after:
            raise RuntimeError
        return response


async def test_a_record_completed_by_hand_is_committed_with_its_effects(
    site: Site, client: AsyncClient
) -> None:
    async def view(request: HttpRequest, **_: Any) -> HttpResponse:
        await sync_to_async(work)(request)
        raise RuntimeError  # or the process is killed here

    site.serve(idempotent(view))
    assert (await post(client)).status_code == 500
    again = await post(client)
    assert (again.status_code, again.json()) == (201, {"order": "A-1"})
    assert await Order.objects.acount() == 1


async def test_a_record_completed_by_hand_and_rolled_back_runs_again(
    site: Site, client: AsyncClient
) -> None:
    fails = iter([True, False])

    async def view(request: HttpRequest, **_: Any) -> HttpResponse:
        return await sync_to_async(work)(request, fail_after=next(fails))

    site.serve(idempotent(view))
    assert [(await post(client)).status_code for _ in range(3)] == [500, 201, 201]
    assert await Order.objects.acount() == 1
    assert await IdempotencyRecord.objects.acount() == 1


@pytest.mark.attack
@pytest.mark.parametrize(("status", "ran", "made"), [(500, 2, 0), (429, 1, 1)])
async def test_completing_by_hand_counts_as_the_answer_of_a_view(
    site: Site, client: AsyncClient, status: int, ran: int, made: int
) -> None:
    runs: list[int] = []

    def work(request: Any) -> HttpResponse:
        runs.append(1)
        with transaction.atomic():
            make_order(request)
            response = HttpResponse(status=status)
            request.idempotency.complete(response)
        return response

    async def view(request: HttpRequest, **_: Any) -> HttpResponse:
        return await sync_to_async(work)(request)

    site.serve(idempotent(view))
    assert [(await post(client)).status_code for _ in range(2)] == [status, status]
    assert (len(runs), await Order.objects.acount()) == (ran, made)


async def test_completing_by_hand_without_a_record_is_an_error(
    site: Site, client: AsyncClient
) -> None:
    errors: list[Exception] = []

    async def view(request: HttpRequest, **_: Any) -> HttpResponse:
        try:
            await sync_to_async(work)(request, inside=False)
        except InvalidRedlock as error:
            errors.append(error)
        return HttpResponse()

    def sync(request: HttpRequest, **_: Any) -> HttpResponse:
        try:
            work(request)
        except InvalidRedlock as error:
            errors.append(error)
        return HttpResponse()

    for key, decorated in enumerate([idempotent(view), idempotent(sync)]):
        site.serve(decorated)
        assert (await post(client, str(key))).status_code == 200
    assert ["atomic" in str(error) for error in errors] == [True, False]
    assert "async views" in str(errors[1])


def a_user_of_the_site(request: HttpRequest, **_: Any) -> str:
    return User.objects.get(username="ann").username


HOOKS: dict[str, dict[str, Any]] = {
    "anonymous_scope": {"anonymous_scope": a_user_of_the_site},
    "tenant": {"tenant": a_user_of_the_site},
    "replay_check": {"replay_check": a_user_of_the_site},
    "key": {"key": a_user_of_the_site},
    "scope": {"key": "header:idempotency-key", "scope": a_user_of_the_site},
    "lambda of a coroutine": {"tenant": lambda request: a_name()},
}


async def a_name() -> str:
    return (await User.objects.aget(username="ann")).username


@pytest.mark.parametrize("hook", HOOKS)
async def test_a_plain_hook_may_query_the_database(
    site: Site, client: AsyncClient, hook: str
) -> None:
    site.serve(idempotent(**HOOKS[hook])(amake_order))
    if hook == "anonymous_scope":
        client.cookies.clear()
    assert [(await post(client)).status_code for _ in range(2)] == [201, 201]
    assert await Order.objects.acount() == 1


async def test_a_plain_function_that_names_a_lock_may_query_the_database(
    site: Site, client: AsyncClient
) -> None:
    def order_of(request: HttpRequest, **_: Any) -> str:
        return f"order:{a_user_of_the_site(request)}"

    site.serve(lock_resource(order_of)(amake_order))
    assert (await post(client)).status_code == 201


@pytest.mark.parametrize("is_coroutine", [False, True])
def test_hooks_of_an_async_view_may_query_under_wsgi(site: Site, is_coroutine: bool) -> None:
    async def tenant(request: HttpRequest, **_: Any) -> str:
        return await a_name()

    hook = tenant if is_coroutine else a_user_of_the_site
    site.serve(idempotent(tenant=hook, replay_check=hook)(amake_order))
    assert [site.post().status_code for _ in range(2)] == [201, 201]
    assert Order.objects.count() == 1


async def test_a_coroutine_hook_runs_in_the_loop_of_its_view(
    site: Site, client: AsyncClient
) -> None:
    loops = [asyncio.get_running_loop()]

    async def tenant(request: HttpRequest, **_: Any) -> str:
        loops.append(asyncio.get_running_loop())
        return await a_name()

    site.serve(idempotent(tenant=tenant)(amake_order))
    assert (await post(client)).status_code == 201
    assert loops[0] is loops[1]


class OutOfStock(Exception):
    """An error of the site, which its middleware answers."""


class AnswersErrors:
    """Middleware of a site that has its own page for some errors."""

    sync_capable, async_capable = False, True

    def __init__(self, get_response: Callable[[HttpRequest], Awaitable[Any]]) -> None:
        self.get_response = get_response
        markcoroutinefunction(self)

    async def __call__(self, request: HttpRequest) -> Any:
        response = await self.get_response(request)
        if retry := request.headers.get("X-Retry-Inside"):
            client = AsyncClient(raise_request_exception=False)
            client.cookies.load(request.COOKIES)
            response["X-Inner"] = (await post(client, key=retry)).json()["code"]
        return response

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        if isinstance(error, OutOfStock):
            return JsonResponse({"sold out": Order.objects.count()}, status=409)
        return HttpResponse("not here", status=404) if isinstance(error, Http404) else None


@pytest.fixture
def answers_errors(settings: Settings) -> None:
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, f"{__name__}.AnswersErrors"]


def failing(error: Exception) -> Any:
    async def view(request: HttpRequest, **_: Any) -> HttpResponse:
        await sync_to_async(make_order)(request)
        raise error

    return view


@pytest.mark.usefixtures("answers_errors")
@pytest.mark.parametrize("decorate", [idempotent, lambda view: idempotent(locked(view))])
@pytest.mark.parametrize(
    ("error", "status", "content"),
    [(OutOfStock(), 409, b'{"sold out": 1}'), (Http404(), 404, b"not here")],
)
async def test_an_answer_of_the_site_is_replayed(
    site: Site, client: AsyncClient, decorate: Any, error: Exception, status: int, content: bytes
) -> None:
    site.serve(decorate(failing(error)))
    first, again = await post(client), await post(client)
    assert (first.status_code, first.content) == (status, content)
    assert (again.status_code, again.content) == (status, content)
    assert again["Idempotent-Replayed"] == "true"
    assert await Order.objects.acount() == 1


@pytest.mark.usefixtures("answers_errors")
async def test_an_answer_that_cannot_be_redacted_is_sent_all_the_same(
    site: Site, client: AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    def redact(request: HttpRequest, body: bytes) -> bytes:
        return json.dumps({**json.loads(body), "card": ""}).encode()

    site.serve(idempotent(redact=redact)(failing(Http404())))
    first = await post(client)
    assert (first.status_code, first.content) == (404, b"not here")
    assert "JSONDecodeError" in caplog.text
    assert (await sync_to_async(record)()).state == "uncertain"
    assert (await post(client)).json()["code"] == "idempotency-outcome-uncertain"
    assert await Order.objects.acount() == 1


@pytest.mark.usefixtures("answers_errors")
async def test_the_key_is_locked_until_the_answer_is_recorded(
    site: Site, client: AsyncClient
) -> None:
    site.serve(idempotent(failing(OutOfStock())))
    first = await post(client, **{"X-Retry-Inside": KEY})
    assert first["X-Inner"] == "idempotency-key-in-flight"
    assert (await post(client)).content == first.content
    assert await Order.objects.acount() == 1
    async with lock(f"idempotency~{(await sync_to_async(record)()).key_hash}"):
        pass  # it is free


@pytest.mark.parametrize("key", [KEY, None])
async def test_without_lock_middleware_an_async_view_is_refused(
    site: Site, client: AsyncClient, settings: Settings, key: str | None
) -> None:
    settings.MIDDLEWARE = [name for name in settings.MIDDLEWARE if name != LOCK_MIDDLEWARE]
    site.serve(idempotent(failing(OutOfStock())))
    client.raise_request_exception = True
    with pytest.raises(InvalidRedlock, match="to MIDDLEWARE"):
        await post(client, key)
    assert await Order.objects.acount() == 0

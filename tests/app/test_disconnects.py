"""Async views whose client disconnects, and what is finished although its caller is cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.template.response import SimpleTemplateResponse
from django.test import AsyncClient
from django.urls import path
from django.utils.decorators import async_only_middleware, sync_only_middleware
from pytest_django import Settings

from redlock_django import idempotent, lock, lock_resource
from redlock_django.locking.event_loops import finish_despite_cancellation
from tests.app.conftest import ADDS_CONTEXT, LOCK_MIDDLEWARE, Configure, Urls
from tests.disconnects import Visit, is_cancelled
from tests.inspecting import is_free
from tests.views.kinds import KINDS, body, kinds

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("memory")]

ROWS = [name for name, kind in KINDS.items() if kind.is_async and not kind.alone]


@pytest.fixture(autouse=True)
def _plain(settings: Settings, plain: None) -> None:
    settings.MIDDLEWARE = []


@pytest.fixture
def serve(urls: Urls, memory: Configure, settings: Settings) -> Callable[..., None]:
    """Return a function that serves a view, locked in one of the possible ways, and no other."""

    def put(view: Callable[..., Any], row: str = "async function", **options: Any) -> None:
        kind = kinds(**options)[row]
        if kind.rules:
            settings.MIDDLEWARE = [LOCK_MIDDLEWARE]
        memory(RULES=kind.rules)
        body[:] = [view]
        urls(kind.make())

    return put


async def post() -> Any:
    return await AsyncClient().post("/7/")


@pytest.mark.parametrize("row", ROWS)
async def test_the_lock_is_held_until_the_view_has_finished(
    serve: Callable[..., None], row: str
) -> None:
    visit = Visit(post)
    serve(visit.view, row)
    gone = await visit.leave()
    assert not is_free("order:7")
    async with asyncio.timeout(60):  # the view would wait for ever, if its lock were free
        assert (await post()).status_code == 423
    visit.opened.set()
    assert await is_cancelled(gone)
    assert visit.finished
    assert is_free("order:7")


@pytest.mark.parametrize("row", ROWS)
async def test_a_view_may_be_cancelled_with_its_client(
    serve: Callable[..., None], row: str
) -> None:
    visit = Visit(post)
    serve(visit.view, row, on_disconnect="cancel")
    assert await is_cancelled(await visit.leave())
    assert not visit.finished
    assert is_free("order:7")


async def test_a_client_that_leaves_during_its_wait_is_cancelled_at_once(
    serve: Callable[..., None],
) -> None:
    visit = Visit(post)
    serve(visit.view, wait=60)
    async with lock("order:7"):
        gone = asyncio.create_task(post())
        for _ in range(100):
            await asyncio.sleep(0)
        gone.cancel()
        assert await is_cancelled(gone)
    assert not visit.entered.is_set()
    assert is_free("order:7")


async def test_the_lock_of_an_idempotent_view_decides_where_there_is_no_key(urls: Urls) -> None:
    visit = Visit()
    urls(path("", idempotent(lock_resource("order:7")(visit.view))))
    await visit.finish_without_client()


async def test_the_lock_of_a_sync_view_is_held_until_its_thread_has_finished(
    urls: Urls, settings: Settings
) -> None:
    """LockMiddleware is cancelled, and releases the lock, which the request has, after that."""
    settings.MIDDLEWARE = [LOCK_MIDDLEWARE, ADDS_CONTEXT]
    begun, ends = threading.Event(), threading.Event()
    free: list[bool] = []

    @lock_resource("order:7")
    def view(request: HttpRequest) -> HttpResponse:
        begun.set()
        assert ends.wait(60)
        free.append(is_free("order:7"))
        return HttpResponse()

    urls(path("", view))
    gone = asyncio.create_task(AsyncClient().get("/"))
    assert await asyncio.to_thread(begun.wait, 60)
    gone.cancel()
    for _ in range(100):
        await asyncio.sleep(0)
    free.append(is_free("order:7"))
    ends.set()
    assert await is_cancelled(gone)
    assert free == [False, False]
    assert is_free("order:7")


@pytest.mark.parametrize("middleware", [[], [LOCK_MIDDLEWARE]], ids=["alone", "middleware"])
async def test_a_stream_without_a_client_is_closed(
    serve: Callable[..., None], settings: Settings, middleware: list[str]
) -> None:
    settings.MIDDLEWARE = middleware
    visit = Visit(post)
    closed: list[bool] = []

    async def chunks() -> AsyncIterator[bytes]:
        yield b"never sent"

    class Stream(StreamingHttpResponse):
        def close(self) -> None:
            closed.append(is_free("order:7"))
            super().close()

    async def view(request: HttpRequest) -> StreamingHttpResponse:
        await visit.view(request)
        return Stream(chunks())

    serve(view)
    await visit.finish_without_client()
    assert closed == [False]


async def test_a_template_response_without_a_client_is_rendered_under_the_lock(
    serve: Callable[..., None],
) -> None:
    visit = Visit(post)
    free: list[bool] = []

    class Rendered(SimpleTemplateResponse):
        @property
        def rendered_content(self) -> str:
            free.append(is_free("order:7"))
            return "done"

    async def view(request: HttpRequest) -> Rendered:
        await visit.view(request)
        return Rendered("none.html")

    serve(view)
    await visit.finish_without_client()
    assert free == [False]


async def test_a_failure_without_a_client_is_logged(
    serve: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    visit = Visit(post)

    async def view(request: HttpRequest) -> HttpResponse:
        await visit.view(request)
        raise RuntimeError("out of paper")

    serve(view)
    await visit.finish_without_client()
    (record,) = [one for one in caplog.records if one.name == "redlock_django"]
    assert record.levelname == "ERROR"
    assert "out of paper" in str(record.exc_info)


# The view runs in a task of its own, which holds the locks of the task that called it.


@async_only_middleware
def locking(get_response: Any) -> Any:
    async def middleware(request: HttpRequest) -> Any:
        async with lock("order:7"):
            return await get_response(request)

    return middleware


@sync_only_middleware
def sync_locking(get_response: Any) -> Any:
    def middleware(request: HttpRequest) -> Any:
        with lock("order:7"):
            return get_response(request)

    return middleware


@pytest.mark.parametrize("name", ["locking", "sync_locking"])
async def test_a_lock_of_a_middleware_is_shared(urls: Urls, settings: Settings, name: str) -> None:
    settings.MIDDLEWARE = [f"{__name__}.{name}"]

    def work() -> bool:
        with lock("order:7", reentrant=True) as shared:
            return shared.locked

    @lock_resource("order:8")
    async def view(request: HttpRequest) -> HttpResponse:
        if name == "sync_locking":  # the lock of a thread is shared by sync code that it waits for
            return HttpResponse(str(await sync_to_async(work)()))
        async with lock("order:7", reentrant=True) as shared:
            return HttpResponse(str(shared.locked))

    urls(path("", view))
    assert (await AsyncClient().get("/")).content == b"True"


async def test_a_task_that_a_view_creates_does_not_share_its_locks(urls: Urls) -> None:
    async def other() -> bool:
        with contextlib.suppress(Exception):
            async with lock("order:7", reentrant=True):
                return True
        return False

    @lock_resource("order:7")
    async def view(request: HttpRequest) -> HttpResponse:
        own = await other()
        return HttpResponse(f"{own} {await asyncio.create_task(other())}")

    urls(path("", view))
    assert (await AsyncClient().get("/")).content == b"True False"


async def _ignore(task: asyncio.Task[str]) -> None:
    pass


async def _turns_of(function: Callable[[], Awaitable[object]]) -> int:
    """Return how many turns of the loop pass while a function is awaited."""
    loop, turns, over = asyncio.get_running_loop(), 0, False

    def turn() -> None:
        nonlocal turns
        if not over:
            turns += 1
            loop.call_soon(turn)

    loop.call_soon(turn)
    await function()
    over = True
    return turns


async def test_the_caller_runs_in_the_turn_after_the_end_of_the_work() -> None:
    async def work() -> str:
        return "done"

    async def request() -> None:
        assert await finish_despite_cancellation(work(), lambda: True, _ignore) == "done"

    assert await _turns_of(request) == 2  # one begins the task, the next one is the caller's


async def test_a_caller_that_is_cancelled_repeatedly_waits_for_the_work() -> None:
    entered, opened, discarded = asyncio.Event(), asyncio.Event(), []

    async def work() -> str:
        entered.set()
        await opened.wait()
        return "done"

    async def discard(task: asyncio.Task[str]) -> None:
        discarded.append(task.result())

    caller = asyncio.create_task(finish_despite_cancellation(work(), entered.is_set, discard))
    await entered.wait()
    for _ in range(3):
        caller.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert not caller.done()
    opened.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert discarded == ["done"]


async def test_a_task_that_is_cancelled_before_it_begins_cancels_its_caller() -> None:
    async def work() -> None:
        raise AssertionError("never")

    caller = asyncio.create_task(finish_despite_cancellation(work(), lambda: False, _ignore))
    others = asyncio.all_tasks()
    await asyncio.sleep(0)
    [task] = asyncio.all_tasks() - others
    task.cancel()  # as code of a site does that cancels the tasks it does not know
    await asyncio.wait((caller,), timeout=30)
    assert caller.cancelled()

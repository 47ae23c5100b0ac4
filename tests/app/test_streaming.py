"""A stream holds its lock until it is closed: renewed, cut when lost, released once."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.http import FileResponse, HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import AsyncClient, AsyncRequestFactory, Client, RequestFactory
from django.urls import path
from django.utils.deprecation import MiddlewareMixin
from pytest_django import Settings

from redlock_django import LockLost, lock_resource, locks
from redlock_django.backends.memory.backend import MemoryBackend
from redlock_django.locking.caller import held_leases
from redlock_django.signals import lock_released
from tests.app.conftest import LOCK_MIDDLEWARE, Configure, Urls, wake_renewals
from tests.inspecting import is_free
from tests.waiting import until

pytestmark = pytest.mark.django_db

TTL = 10
factory = RequestFactory()


@pytest.fixture(autouse=True)
def _site(memory: Configure, plain: None) -> None:
    memory(TTL=TTL)


@pytest.fixture(params=[[], [LOCK_MIDDLEWARE]], ids=["alone", "middleware"])
def middleware(settings: Settings, request: pytest.FixtureRequest) -> None:
    settings.MIDDLEWARE = request.param


def is_renewed() -> bool:
    """Return whether the lock has nearly its whole TTL left."""
    return any(
        held_lease.seconds_left() > 0.8 * TTL
        for held_lease in held_leases(locks["default"].backend, "nightly")
    )


def pass_two_ttls() -> None:
    """Advance the clock by two TTLs in steps, each renewed by the thread that renews streams."""
    for _ in range(4):
        MemoryBackend.advance(TTL / 2)
        wake_renewals()
        until(is_renewed, "the renewal")


@pytest.fixture
def released(hear: Callable[..., list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return hear(lock_released)


@lock_resource("nightly")
def stream(request: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse(iter([b"a", b"b", b"c"]))


@lock_resource("nightly")
async def astream(request: HttpRequest) -> StreamingHttpResponse:
    async def content() -> AsyncIterator[bytes]:
        for chunk in (b"a", b"b", b"c"):
            yield chunk

    return StreamingHttpResponse(content())


@lock_resource("nightly")
def file(request: HttpRequest) -> FileResponse:
    return FileResponse(io.BytesIO(b"abc"), filename="a.txt")


@pytest.mark.parametrize("view", [stream, file])
def test_a_stream_holds_its_lock_renewed_until_closed_and_releases_once(
    urls: Urls, middleware: None, released: list[dict[str, Any]], view: Callable[..., Any]
) -> None:
    urls(path("", view))
    response: Any = Client().get("/")
    pass_two_ttls()
    assert not is_free("nightly")
    assert response.getvalue() == b"abc"  # the test client closes it at its end
    assert is_free("nightly")
    response.close()
    assert [one["resources"] for one in released] == [("nightly",)]


def test_a_file_keeps_its_headers() -> None:
    response = file(factory.get("/"))
    assert response["Content-Length"] == "3"
    assert "a.txt" in response["Content-Disposition"]
    response.close()


async def test_the_lock_of_an_async_stream_is_renewed_and_released(
    urls: Urls, middleware: None, released: list[dict[str, Any]]
) -> None:
    urls(path("", astream))
    response: Any = await AsyncClient().get("/")
    await asyncio.to_thread(pass_two_ttls)
    assert not is_free("nightly")
    assert [chunk async for chunk in response.streaming_content] == [b"a", b"b", b"c"]
    assert is_free("nightly")
    async with asyncio.timeout(60):
        while not released:  # noqa: ASYNC110 - signals are sent by tasks and threads
            await asyncio.sleep(0.005)
    assert [one["resources"] for one in released] == [("nightly",)]


@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume")
def test_an_async_stream_under_wsgi_outlives_its_loop(urls: Urls, middleware: None) -> None:
    urls(path("", astream))
    # The loop of the view is closed when this returns.
    response: Any = async_to_sync(astream)(factory.get("/"))
    pass_two_ttls()
    assert not is_free("nightly")
    assert b"".join(response) == b"abc"
    response.close()
    assert is_free("nightly")


async def test_the_end_of_an_async_stream_is_under_the_lock() -> None:
    free_at_the_end: list[bool] = []

    @lock_resource("nightly")
    async def view(request: HttpRequest) -> StreamingHttpResponse:
        async def content() -> AsyncIterator[bytes]:
            try:
                yield b"a"
                yield b"b"
            finally:
                free_at_the_end.append(is_free("nightly"))

        return StreamingHttpResponse(content())

    response = await view(AsyncRequestFactory().get("/"))
    async for chunk in response:
        assert chunk == b"a"
        break
    await sync_to_async(response.close)()  # as the ASGI handler does it
    assert free_at_the_end == [False]
    assert is_free("nightly")


def test_a_lost_lock_cuts_the_stream(lose_locks: Callable[[], None]) -> None:
    response = stream(factory.get("/"))
    content = iter(response)
    assert next(content) == b"a"
    lose_locks()
    with pytest.raises(LockLost):
        next(content)
    response.close()


async def test_a_lost_lock_cuts_an_async_stream(lose_locks: Callable[[], None]) -> None:
    response = await astream(AsyncRequestFactory().get("/"))
    content = aiter(response)
    assert await anext(content) == b"a"
    lose_locks()
    with pytest.raises(LockLost):
        await anext(content)
    await sync_to_async(response.close)()


def test_the_lock_of_a_stream_that_is_never_sent_is_released(
    urls: Urls, settings: Settings
) -> None:
    settings.MIDDLEWARE = [LOCK_MIDDLEWARE, f"{__name__}.Fails"]
    urls(path("", stream))
    with pytest.raises(ZeroDivisionError):
        Client().get("/")
    assert is_free("nightly")


class Fails(MiddlewareMixin):
    def process_response(self, request: HttpRequest, response: Any) -> HttpResponse:
        raise ZeroDivisionError


class ReplacedBy304(MiddlewareMixin):
    """A middleware that sends another response instead of the stream, which nobody closes then."""

    def process_response(self, request: HttpRequest, response: Any) -> HttpResponse:
        return HttpResponse(status=304)


@pytest.mark.attack
def test_a_stream_that_a_middleware_replaces_frees_its_lock(
    settings: Settings, urls: Urls, middleware: None
) -> None:
    settings.MIDDLEWARE = [f"{__name__}.ReplacedBy304", *settings.MIDDLEWARE]
    urls(path("", stream), path("async/", astream))
    for url in ("/", "/async/"):
        assert Client().get(url).status_code == 304
        assert is_free("nightly")


@pytest.mark.attack
def test_a_second_request_in_the_thread_of_an_open_stream_is_refused(
    urls: Urls, middleware: None
) -> None:
    urls(path("", stream))
    first = Client().get("/")
    assert Client().get("/").status_code == 423
    assert list(first) == [b"a", b"b", b"c"]
    first.close()
    assert is_free("nightly")

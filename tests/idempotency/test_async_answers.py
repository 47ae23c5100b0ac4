"""The answer to an error of an async view is replayed as it was sent, whoever wrote it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from asgiref.sync import markcoroutinefunction, sync_to_async
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.test import AsyncClient
from pytest_django import Settings

from redlock_django import idempotent, lock, lock_resource
from redlock_django.exceptions import InvalidRedlock
from testproject.shop.models import Order
from tests.idempotency.conftest import KEY, Site, make_order, record

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("plain")]
LOCK_MIDDLEWARE = "redlock_django.middleware.LockMiddleware"


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


async def post(client: AsyncClient, key: str = KEY, **headers: str) -> Any:
    headers = {"Idempotency-Key": key, **headers}
    return await client.post("/pay", "{}", content_type="application/json", headers=headers)


@pytest.fixture
def client(site: Site, settings: Settings) -> AsyncClient:
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, f"{__name__}.AnswersErrors"]
    client = AsyncClient(raise_request_exception=False)
    client.cookies = site.client.cookies
    return client


def failing(error: Exception) -> Any:
    async def view(request: HttpRequest, **_: Any) -> HttpResponse:
        await sync_to_async(make_order)(request)
        raise error

    return view


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


def locked(view: Any) -> Any:
    return lock_resource("order:7")(view)


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
    site: Site, settings: Settings, key: str | None
) -> None:
    settings.MIDDLEWARE = [name for name in settings.MIDDLEWARE if name != LOCK_MIDDLEWARE]
    site.serve(idempotent(failing(OutOfStock())))
    client = AsyncClient()
    client.cookies = site.client.cookies
    headers = {} if key is None else {"Idempotency-Key": key}
    with pytest.raises(InvalidRedlock, match="to MIDDLEWARE"):
        await client.post("/pay", headers=headers)
    assert await Order.objects.acount() == 0

"""Streams on real masters are renewed even if the loop of the view has been closed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.http import HttpRequest, StreamingHttpResponse
from django.test import AsyncRequestFactory, RequestFactory
from pytest_django import Settings

from redlock_django import lock_resource
from redlock_django.locking.services import locks
from redlock_django.testing.masters import LocalMaster
from tests.live.left_over import nothing_left
from tests.operate.planted import on
from tests.timeouts import generous_timeouts

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.django_db]

TTL = 3.0  # a busy machine may stop this process for a second or two


@pytest.fixture(autouse=True)
def _masters(settings: Settings, masters: list[LocalMaster]) -> None:
    urls = [master.url for master in masters]
    settings.REDLOCK = {
        "default": {"MASTERS": urls, "RESTART_DELAY": 0, "TTL": TTL, **generous_timeouts(TTL)}
    }


@lock_resource("nightly")
async def stream(request: HttpRequest) -> StreamingHttpResponse:
    async def content() -> AsyncIterator[bytes]:
        yield b"a"
        yield b"b"

    return StreamingHttpResponse(content())


@pytest.mark.fault
@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume")
def test_a_stream_is_renewed_after_the_loop_of_its_view(masters: list[LocalMaster]) -> None:
    response = async_to_sync(stream)(RequestFactory().get("/"))
    time.sleep(1.3 * TTL)
    assert on(masters, "nightly") >= 3
    assert b"".join(response) == b"ab"
    response.close()
    nothing_left(masters, 1)


async def test_a_stream_is_renewed_while_its_loop_runs(masters: list[LocalMaster]) -> None:
    response = await stream(AsyncRequestFactory().get("/"))
    await asyncio.sleep(1.3 * TTL)
    assert on(masters, "nightly") >= 3
    assert [chunk async for chunk in response] == [b"a", b"b"]
    await sync_to_async(response.close)()
    await asyncio.to_thread(nothing_left, masters, 1)
    await locks.aclose()

"""The same increment with the lock in every possible position."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.utils.decorators import method_decorator
from django.views.generic import View

from redlock_django import LockResourceMixin, lock, lock_resource
from tests.live.site.models import Counter
from tests.waiting import until

PAUSE = 0.001  # seconds between reading and writing
WAIT = 50  # seconds
locked = lock_resource("counter:<int:pk>", wait=WAIT)


def increment(pk: int, by: int = 1) -> HttpResponse:
    """Read, wait, write: an increment is lost if another one happens in between."""
    counter = Counter.objects.get(pk=pk)
    time.sleep(PAUSE)
    counter.value += by
    counter.save()
    return HttpResponse()


async def aincrement(pk: int) -> HttpResponse:
    """Increment as `increment` does."""
    counter = await Counter.objects.aget(pk=pk)
    await asyncio.sleep(PAUSE)
    counter.value += 1
    await counter.asave()
    return HttpResponse()


def unlocked(request: HttpRequest, pk: int) -> HttpResponse:
    """Increment without a lock."""
    return increment(pk)


function = locked(unlocked)


def with_lock(request: HttpRequest, pk: int) -> HttpResponse:
    """Lock inside the view, and so inside its transaction."""
    with lock(f"counter:{pk}", wait=WAIT):
        return increment(pk)


@locked
async def async_function(request: HttpRequest, pk: int) -> HttpResponse:
    """An async view, for which Django does not allow ATOMIC_REQUESTS."""
    return await aincrement(pk)


class Handler(View):
    """Locked inside the transaction that Django has opened."""

    @method_decorator(locked)
    def post(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Increment."""
        return increment(pk)


class AsyncMixin(LockResourceMixin, View):
    """Locked by attributes, and async."""

    lock_key = "counter:<int:pk>"
    lock_wait = WAIT

    async def post(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Increment."""
        return await aincrement(pk)


# Slow views, for clients that disconnect.


def write_twice(pk: int) -> HttpResponse:
    """Increment before and after the twin becomes 2: no holder of the lock sees the first alone."""
    with transaction.atomic():
        increment(pk)
        until(lambda: Counter.objects.get(pk=-pk).value == 2, "not released")
        return increment(pk)


@locked
def slow(request: HttpRequest, pk: int) -> HttpResponse:
    """Write twice in the thread of the request."""
    return write_twice(pk)


class SlowHandler(View):
    """The same as `slow`, locked inside the transaction."""

    @locked
    def post(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Increment twice."""
        return write_twice(pk)


@lock_resource("counter:<int:pk>", wait=WAIT, on_disconnect="cancel")
async def cancelled(request: HttpRequest, pk: int) -> HttpResponse:
    """Wait for a minute."""
    await asyncio.sleep(60)
    return HttpResponse()


def slow_work(pk: int) -> HttpResponse:
    """Set the twin to 1, and write twice."""
    try:
        Counter.objects.filter(pk=-pk).update(value=1)
        return write_twice(pk)
    finally:
        # Django closes the connections of the request's own thread only.
        connections.close_all()


@lock_resource("counter:<int:pk>", wait=WAIT, on_disconnect="cancel")
async def slow_thread(request: HttpRequest, pk: int) -> HttpResponse:
    """An async view whose work is done in the thread of the request, which is waited for."""
    return await sync_to_async(slow_work)(pk)


@locked
async def slow_to_thread(request: HttpRequest, pk: int) -> HttpResponse:
    """An async view whose work is done in a thread that a cancellation does not wait for."""
    return await asyncio.to_thread(slow_work, pk)


class SlowPool(LockResourceMixin, View):
    """The same, in a class and in another such thread."""

    lock_key = "counter:<int:pk>"
    lock_wait = WAIT

    async def post(self, request: HttpRequest, pk: int) -> HttpResponse:
        """Increment twice."""
        return await sync_to_async(slow_work, thread_sensitive=False)(pk)


@locked
def stream(request: HttpRequest, pk: int) -> StreamingHttpResponse:
    """A response that is not finished when the view returns."""

    def chunks() -> Iterator[bytes]:
        for _ in range(int(request.GET.get("chunks", 10))):
            yield b"x" * 1000
            time.sleep(0.1)

    return StreamingHttpResponse(chunks())


@locked
async def async_stream(request: HttpRequest, pk: int) -> StreamingHttpResponse:
    """The same as `stream`; it increments the counter at its end, still under the lock."""

    async def chunks() -> AsyncIterator[bytes]:
        try:
            for _ in range(int(request.GET.get("chunks", 10))):
                yield b"x" * 1000
                await asyncio.sleep(0.1)
        finally:
            await aincrement(pk)

    return StreamingHttpResponse(chunks())


KINDS: dict[str, Any] = {
    "unlocked": unlocked,
    "function": function,
    "handler": Handler.as_view(),
    "with-lock": with_lock,
    "async-function": async_function,
    "async-mixin": AsyncMixin.as_view(),
    "two-keys": lock_resource("counter:<int:pk>", "twin:<int:pk>", wait=WAIT)(unlocked),
    "two-keys-turned": lock_resource("twin:<int:pk>", "counter:<int:pk>", wait=WAIT)(unlocked),
    "slow": slow,
    "slow-handler": SlowHandler.as_view(),
    "cancelled": cancelled,
    "slow-thread": slow_thread,
    "slow-to-thread": slow_to_thread,
    "slow-pool": SlowPool.as_view(),
    "stream": stream,
    "async-stream": async_stream,
}
"""Every view by the first part of its path."""

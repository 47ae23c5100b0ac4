"""An async view that waits in the middle, and its client, which disconnects meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient

from tests.inspecting import is_free


async def _done(request: HttpRequest) -> HttpResponse:
    return HttpResponse("done")


async def _get() -> Any:
    return await AsyncClient().get("/")


class Visit:
    """A view that waits after it has responded, and the request of a client that disconnects."""

    def __init__(
        self,
        send: Callable[[], Coroutine[Any, Any, Any]] = _get,
        respond: Callable[[HttpRequest], Awaitable[HttpResponse]] = _done,
    ) -> None:
        self.entered, self.opened = asyncio.Event(), asyncio.Event()
        self.finished = False
        self._send, self._respond = send, respond

    async def view(self, request: HttpRequest, **_: Any) -> Any:
        response = await self._respond(request)
        self.entered.set()
        await self.opened.wait()
        self.finished = True
        return response

    async def leave(self) -> asyncio.Task[Any]:
        """Send the request, and cancel it in the view, as Django does for a client that leaves."""
        gone = asyncio.create_task(self._send())
        entered = asyncio.create_task(self.entered.wait())
        await asyncio.wait({gone, entered}, return_when=asyncio.FIRST_COMPLETED)
        assert entered.done(), gone.result()
        gone.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        return gone

    async def finish_without_client(self) -> None:
        """Continue after the client has left: the lock is held until the end of the view."""
        gone = await self.leave()
        assert not is_free("order:7")
        self.opened.set()
        assert await is_cancelled(gone)
        assert self.finished
        assert is_free("order:7")


async def is_cancelled(task: asyncio.Task[Any]) -> bool:
    await asyncio.wait({task}, timeout=60)
    return task.cancelled()

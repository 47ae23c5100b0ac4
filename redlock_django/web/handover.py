"""Locks that outlive their view: they belong to the request, and `LockMiddleware` frees them.

So it is where a lock is taken inside a transaction that somebody else commits, and where a
response is rendered or streamed after the view has returned it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from asgiref.sync import async_to_sync
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase

from redlock_django.locking.lock import Lock

_ATTRIBUTE = "_redlock_handover"


class Handover:
    """What was handed to one request: locks, and the answer to an error on its way out."""

    def __init__(self, request: HttpRequest) -> None:
        self.locks: list[Lock] = []
        self._answer: tuple[Exception, HttpResponse] | None = None
        setattr(request, _ATTRIBUTE, self)

    @staticmethod
    def of(request: HttpRequest) -> Handover | None:
        """Give the handover of a request that has come through `LockMiddleware`."""
        handover: Handover | None = getattr(request, _ATTRIBUTE, None)
        return handover

    def prepare(self, error: Exception, answer: HttpResponse) -> None:
        """Keep the answer to an error that has yet to roll a transaction back."""
        self._answer = (error, answer)

    def answer_to(self, error: Exception) -> HttpResponse | None:
        """Give the answer that was prepared for this error."""
        if self._answer is not None and self._answer[0] is error:
            return self._answer[1]
        return None

    def settle(self, response: HttpResponseBase) -> None:
        """Free the locks now that the response is finished, or when its stream is closed."""
        if response.streaming:
            on_close(response, self.free)
        else:
            self.free()

    def free(self) -> None:
        """Free the locks, in a thread or a loop; never waits inside a running loop."""
        while self.locks:
            self.locks.pop().release()


def on_close(response: Any, free: Callable[[], object]) -> None:
    """Have the lock of a stream freed when its response is closed, after its content is."""
    response._resource_closers.append(free)


def guard_stream(response: StreamingHttpResponse, held: Lock) -> None:
    """Let a stream be cut by LockLost as soon as its lock is lost."""
    if response.is_async:
        response.streaming_content = _AsyncStream(response._iterator, held)  # type: ignore[attr-defined]
    else:
        response.streaming_content = _stream(response.streaming_content, held)


def _stream(content: Any, held: Lock) -> Any:
    for chunk in content:
        held.ensure_held()
        yield chunk


class _AsyncStream:
    """An asynchronous stream that is closed when its response is, and not some time later."""

    def __init__(self, content: Any, held: Lock) -> None:
        self._content = content
        self._held = held

    def __aiter__(self) -> _AsyncStream:
        return self

    async def __anext__(self) -> Any:
        chunk = await anext(self._content)
        self._held.ensure_held()
        return chunk

    def close(self) -> None:
        """End the content's own work, under the lock still. Called by `response.close()`."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            async_to_sync(self._aclose)()
        # Only test clients call it inside a loop, when the content has come to its end.

    async def _aclose(self) -> None:
        if hasattr(self._content, "aclose"):
            await self._content.aclose()

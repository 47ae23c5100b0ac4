"""Streaming responses whose lock is held until the stream is closed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from asgiref.sync import async_to_sync
from django.http import StreamingHttpResponse

if TYPE_CHECKING:
    from redlock_django.locking.lock import Lock


def call_on_close(response: Any, request: Any, function: Callable[[], object]) -> None:
    """Call a function when a response is closed, after its content is closed.

    A middleware may send another response instead, such as a 304, and then this one is never
    closed. Django closes the request together with the response that it sends, so the function is
    called then in any case; it may be called twice.
    """
    response._resource_closers.append(function)
    request = getattr(request, "_request", request)
    close = request.close

    def close_and_call() -> None:
        close()
        function()

    request.close = close_and_call


def guard_stream(response: StreamingHttpResponse, lock: Lock) -> None:
    """Make a stream raise LockLost at its next chunk once its lock is lost."""
    if response.is_async:
        response.streaming_content = _AsyncStream(response._iterator, lock)  # type: ignore[attr-defined]
    else:
        response.streaming_content = _guarded(response.streaming_content, lock)


def _guarded(content: Any, lock: Lock) -> Any:
    for chunk in content:
        lock.ensure_held()
        yield chunk


class _AsyncStream:
    """An asynchronous stream that is closed together with its response.

    An async generator in its place would be closed only when the loop finalizes it.
    """

    def __init__(self, content: Any, lock: Lock) -> None:
        self._content = content
        self._lock = lock

    def __aiter__(self) -> _AsyncStream:
        return self

    async def __anext__(self) -> Any:
        chunk = await anext(self._content)
        self._lock.ensure_held()
        return chunk

    def close(self) -> None:
        """Close the content while the lock is still held. `response.close()` calls this."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            async_to_sync(self._aclose)()
        # Only test clients close a response inside a loop, when the content is exhausted.

    async def _aclose(self) -> None:
        if hasattr(self._content, "aclose"):
            await self._content.aclose()

"""Finish an async view although its client has disconnected.

Django cancels an async view when the client disconnects. Its effects would then be unknown, and the
retry, for which the client has sent its key, could only be refused.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from typing import Any

from asgiref.sync import sync_to_async

logger = logging.getLogger("redlock_django")


async def finish_despite_cancellation(
    work: Coroutine[Any, Any, Any], has_begun: Callable[[], bool]
) -> Any:
    """Return the result of `work`. If the caller is cancelled, finish it first if it has begun.

    The caller's CancelledError is raised when the work is over, so that everything around it (the
    thread of the request, middleware that releases locks) is still there until then. Work that has
    not begun is cancelled at once.
    """
    context = copy_context()
    task = asyncio.create_task(work, context=context)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
            if not has_begun():
                task.cancel()
    if cancelled is None:
        _adopt(context)
        return task.result()
    if not task.cancelled():
        await _discard(task)
    raise cancelled


def _adopt(context: Context) -> None:
    """Set the context variables that the task has set, such as the language, in this context."""
    missing = object()
    for variable in context:
        if variable.get(missing) is not context[variable]:
            variable.set(context[variable])


async def _discard(task: asyncio.Task[Any]) -> None:
    """Log the error of a view without a client, or close its response."""
    error = task.exception()
    if error is not None:
        logger.error("idempotency: a view failed after its client had left", exc_info=error)
        return
    response = task.result()
    if getattr(response, "streaming", False):
        await sync_to_async(response.close)()  # releases the lock that is kept for the stream

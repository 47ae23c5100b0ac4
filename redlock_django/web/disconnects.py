"""Clients that disconnect while their async view runs.

Django cancels an async view when the client disconnects. That stops neither a thread of
`asyncio.to_thread` nor a query, so the lock would be free before their work is committed, and the
effects of a request with an idempotency key would be unknown. So the view is finished first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from asgiref.sync import sync_to_async

from redlock_django.locking.event_loops import finish_despite_cancellation

logger = logging.getLogger("redlock_django")


async def finish_without_client(
    view: Coroutine[Any, Any, Any], has_begun: Callable[[], bool]
) -> Any:
    """Return the response of a view. If the client leaves, finish the view first if it has begun.

    Its response is then closed, and its error is logged.
    """
    return await finish_despite_cancellation(view, has_begun, _discard)


async def _discard(task: asyncio.Task[Any]) -> None:
    """Log the error of a view without a client, or close its response."""
    error = task.exception()
    if error is not None:
        logger.error("redlock: a view failed after its client had left", exc_info=error)
        return
    response = task.result()
    if getattr(response, "streaming", False):
        await sync_to_async(response.close)()  # releases the lock that is kept for the stream

"""Leaving a task that is cancelled while threads still work for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from asgiref.sync import sync_to_async

_leaving: set[asyncio.Task[None]] = set()  # a loop keeps only weak references to its tasks


async def behind_threads(finish: Callable[[], Awaitable[object] | None]) -> None:
    """Call `finish`, and await what it gives, once the threads of this task have done their work.

    That is what sync views, `sync_to_async` and Django's own async methods do in a thread.
    Cancelling the caller again does not cancel it.
    """

    async def last() -> None:
        # An executor that is shut down has no work left.
        with suppress(RuntimeError):
            await sync_to_async(_nothing)()
        rest = finish()
        if rest is not None:
            await rest

    task = asyncio.create_task(last())
    _leaving.add(task)
    task.add_done_callback(_leaving.discard)
    await asyncio.shield(task)


def _nothing() -> None:
    """Stand in the queue of the request's thread."""

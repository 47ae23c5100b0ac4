"""Cleanup after the cancellation of a task whose threads are still working."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from asgiref.sync import sync_to_async

_tasks: set[asyncio.Task[None]] = set()  # a loop keeps only weak references to its tasks


async def call_after_threads(function: Callable[[], Awaitable[object] | None]) -> None:
    """Call `function`, and await its result, when the threads of this task have finished.

    Such threads run sync views, `sync_to_async` and Django's own async methods. If the caller is
    cancelled again, `function` is still called.
    """

    async def run() -> None:
        # An executor that has been shut down has no work left.
        with suppress(RuntimeError):
            # The executor runs one call after the other, so this one comes last.
            await sync_to_async(_nothing)()
        result = function()
        if result is not None:
            await result

    task = asyncio.create_task(run())
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
    await asyncio.shield(task)


def _nothing() -> None:
    """Do nothing, in the thread that serves the request."""

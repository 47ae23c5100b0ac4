"""Cancelled tasks: cleanup while their threads still work, and work that is finished first."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from contextvars import Context, copy_context
from typing import Any
from weakref import WeakKeyDictionary

from asgiref.sync import sync_to_async

_tasks: set[asyncio.Task[None]] = set()  # a loop keeps only weak references to its tasks
_callers: WeakKeyDictionary[asyncio.Task[Any], asyncio.Task[Any]] = WeakKeyDictionary()
"""The tasks of `finish_despite_cancellation`, each with the task whose work it does."""


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


async def finish_despite_cancellation(
    work: Coroutine[Any, Any, Any],
    has_begun: Callable[[], bool],
    discard: Callable[[asyncio.Task[Any]], Awaitable[None]],
) -> Any:
    """Return the result of `work`. If the caller is cancelled, finish it first if it has begun.

    The work runs in a task, which holds the locks of the caller. Once it is over, `discard` is
    called with it and the caller's CancelledError is raised, so that everything around the work
    (the thread of the request, middleware that releases locks) is still there until then. Work that
    has not begun is cancelled at once.
    """
    context = copy_context()
    task = asyncio.create_task(work, context=context)
    if (caller := asyncio.current_task()) is not None:
        _callers[task] = first_caller(caller)
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
        await discard(task)
    raise cancelled


def first_caller(task: asyncio.Task[Any]) -> asyncio.Task[Any]:
    """Return the task whose work a task does; that is the task itself unless it finishes work."""
    return _callers.get(task, task) if _callers else task


def _adopt(context: Context) -> None:
    """Set the context variables that the task has set, such as the language, in this context."""
    missing = object()
    for variable in context:
        if variable.get(missing) is not context[variable]:
            variable.set(context[variable])

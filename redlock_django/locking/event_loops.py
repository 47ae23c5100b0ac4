"""Event loops: the one that runs here, the threads of its sync code, and cancelled tasks.

`running_loop()` returns the loop that runs in this thread. `sync_to_async` runs the sync code of
async code in a thread, in which a transaction may be open. A cancelled task stops no thread.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from asyncio import AbstractEventLoop
from asyncio.events import _get_running_loop
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from functools import partial
from types import FrameType
from typing import Any
from weakref import WeakValueDictionary

from asgiref.sync import AsyncToSync, SyncToAsync, sync_to_async
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from django.dispatch import receiver
from django.utils.asyncio import async_unsafe

running_loop: Callable[[], AbstractEventLoop | None] = _get_running_loop

USE_ASYNC = (
    "A running event loop would be blocked while a lock is acquired, extended or verified: use "
    "'async with lock(...)', aacquire(), aextend() or averify()."
)


@async_unsafe(USE_ASYNC)
def refuse_in_loop() -> None:
    """Raise SynchronousOnlyOperation inside a running event loop.

    This is called by the method that acquires, and is not a wrapper around it: a signal that is
    handled when a wrapper returns would lose an acquired lock.
    """


_connections: WeakValueDictionary[tuple[int | None, str], BaseDatabaseWrapper] = (
    WeakValueDictionary()
)
"""The connections by the thread and the alias for which they were opened."""

_data = getattr(getattr(AsyncToSync.executors, "_storage", None), "_data", None)
_executors = _data if isinstance(_data, ContextVar) else None
"""The variable in which asgiref keeps `AsyncToSync.executors.current`; older ones have several."""


@receiver(connection_created)
def _note_connection(connection: BaseDatabaseWrapper, **_: Any) -> None:
    _connections[threading.get_ident(), connection.alias] = connection


def has_sync_caller() -> bool:
    """Return whether sync code waits for this coroutine in `async_to_sync`.

    A transaction may then be open around it, in the thread of that code, where `sync_to_async` runs
    its calls.
    """
    if _executor_of_caller() is not None:
        return True
    return running_loop() in AsyncToSync.loop_thread_executors


def _executor_of_caller() -> object:
    """Return what `getattr(AsyncToSync.executors, "current", None)` returns, in less time.

    Every lock asks twice. Where nothing was ever set, as in most tasks, asgiref raises an error
    whose text takes longer than all the rest.
    """
    if _executors is not None and _executors.get(None) is None:
        return None
    return getattr(AsyncToSync.executors, "current", None)


def has_left_open(is_open: Callable[[BaseDatabaseWrapper], bool]) -> bool:
    """Return whether a call of `sync_to_async` has left a connection in this state in its thread.

    So does `await sync_to_async(atomic.__enter__)()`. While a call runs in the thread, what is open
    may belong to that call, which may be another task's, and the answer is False.
    """
    if not _connections:
        return False
    executor: Any = SyncToAsync.single_thread_executor
    if (context := SyncToAsync.thread_sensitive_context.get(None)) is not None:
        executor = SyncToAsync.context_to_thread_executor.get(context)
    threads = [thread.ident for thread in getattr(executor, "_threads", ())]
    found = [
        _connections.get((thread, alias)) for thread in threads for alias in connections.settings
    ]
    is_left_open = any(one is not None and is_open(one) for one in found)
    return is_left_open and not any(map(_runs_a_call, threads))


def _runs_a_call(ident: int | None) -> bool:
    frame: FrameType | None = sys._current_frames().get(ident or 0)
    while frame is not None:
        if frame.f_code is SyncToAsync.thread_handler.__code__:
            return True
        frame = frame.f_back
    return False


_tasks: set[asyncio.Task[None]] = set()  # a loop keeps only weak references to its tasks
_callers: dict[asyncio.Task[Any], asyncio.Task[Any]] = {}
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
    loop, context = asyncio.get_running_loop(), copy_context()
    ended: asyncio.Future[None] = loop.create_future()
    task = loop.create_task(_report_end(work, ended), context=context)
    task.add_done_callback(partial(_end, ended), context=context)
    if (caller := asyncio.current_task()) is not None:
        _callers[task] = first_caller(caller)
    try:
        await ended
    except asyncio.CancelledError:
        await _outwait(task, has_begun)
        if not task.cancelled():
            await discard(task)
        raise
    finally:
        _callers.pop(task, None)
        if task.done():
            work.close()  # the task may have ended before it awaited the work
    _adopt(context)
    return task.result()


async def _report_end(work: Coroutine[Any, Any, Any], ended: asyncio.Future[None]) -> Any:
    """Return the result of `work`; set `ended` in the last step of its task.

    So the caller runs in the next turn of the loop. After a callback of the task, it would run one
    turn later, in each request of a locked async view. The callback is for a task that is cancelled
    or interrupted before this.
    """
    try:
        return await work
    finally:
        _end(ended)


def _end(ended: asyncio.Future[None], *_: object) -> None:
    if not ended.done():  # the caller may have been cancelled
        ended.set_result(None)


async def _outwait(task: asyncio.Task[Any], has_begun: Callable[[], bool]) -> None:
    """Wait for the end of a task, also if the caller is cancelled again."""
    while not task.done():
        if not has_begun():
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.wait((task,))


def first_caller(task: asyncio.Task[Any]) -> asyncio.Task[Any]:
    """Return the task whose work a task does; that is the task itself unless it finishes work."""
    return _callers.get(task, task)


def _adopt(context: Context) -> None:
    """Set the context variables that the task has set, such as the language, in this context."""
    missing = object()
    for variable, value in context.items():
        if variable.get(missing) is not value:
            variable.set(value)

"""The thread in which `sync_to_async` runs the sync code of async code, and what is open in it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextvars import ContextVar
from types import FrameType
from typing import Any
from weakref import WeakValueDictionary

from asgiref.sync import AsyncToSync, SyncToAsync
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from django.dispatch import receiver

from redlock_django.locking.running_loop import running_loop

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

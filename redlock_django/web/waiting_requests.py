"""The limits of the requests that wait: for a lock, or for the first request with their key."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connections

from redlock_django.locking.handler import locks
from redlock_django.locking.open_transactions import open_transactions
from redlock_django.locking.thread_state import reset_with_threads, threads_are_greenlets


class _WaitingThreads:
    """How many threads of the process are waiting in views."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self.changing = threading.Lock()
        self.count = 0


_waiting = _WaitingThreads()
reset_with_threads(_waiting._reset)


def has_room(using: str) -> bool:
    """Return whether one more request may wait in its thread: fewer than MAX_WAITERS do.

    Greenlets of gevent are not counted: one that waits occupies no thread.
    """
    return _waiting.count < locks[using].settings.max_waiters or threads_are_greenlets()


@contextmanager
def waiting_thread(using: str) -> Iterator[bool]:
    """Count the thread of a sync view as waiting, if it may wait; return whether it may.

    It may not if MAX_WAITERS threads of the process are waiting already: those that wait must not
    occupy the last thread of a server, which other requests need.
    """
    _ = locks[using]  # not inside the mutex: a new service imports its store
    with _waiting.changing:
        may_wait = has_room(using)
        _waiting.count += may_wait
    try:
        yield may_wait
    finally:
        with _waiting.changing:
            _waiting.count -= may_wait


def has_pools() -> bool:
    """Return whether a database has a pool of connections."""
    return any(entry["OPTIONS"].get("pool") for entry in connections.settings.values())


def return_pooled_connections() -> None:
    """Return the database connections of this thread to their pools, where other threads need them.

    The next query gets one again. A connection that is inside a transaction is kept, and so is one
    without a pool, which no other thread could use.
    """
    kept = open_transactions()
    for connection in connections.all(initialized_only=True):
        is_pooled = bool(connection.settings_dict["OPTIONS"].get("pool"))
        if is_pooled and not connection.in_atomic_block and connection not in kept:
            connection.close()

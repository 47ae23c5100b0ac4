"""The limits of a request that waits for the first request with its key."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connections

from redlock_django.idempotency.errors import TooManyWaiters

_changing = threading.Lock()
_waiting = 0


@contextmanager
def waiting_thread(limit: int) -> Iterator[None]:
    """Count the thread of a sync view as waiting.

    Raises TooManyWaiters if `limit` threads of the process are waiting already: a retry must not
    occupy the last thread of a server, which other requests need.
    """
    global _waiting
    with _changing:
        if _waiting >= limit:
            raise TooManyWaiters
        _waiting += 1
    try:
        yield
    finally:
        with _changing:
            _waiting -= 1


def return_pooled_connections() -> None:
    """Return the database connections of this thread to their pools, where other threads need them.

    The next query gets one again. A connection that is inside a transaction is kept, and so is one
    without a pool, which no other thread could use.
    """
    for connection in connections.all(initialized_only=True):
        if connection.settings_dict["OPTIONS"].get("pool") and not connection.in_atomic_block:
            connection.close()

"""Signals about locks, masters and repeated requests.

Every signal is sent robustly: an exception in a receiver is logged and never breaks a lock.
Receivers may be coroutine functions. Inside a running loop receivers are called soon after the
event, in a task; only `arelease()` waits for them, since the loop may end right after it.

Each signal has the keyword argument `using` (the alias) and those listed below. The sender of the
first four is the `Lock` class; they also have `resources` (a tuple) and `holder` (the mapping
passed to `lock(holder=...)`; for a request, its `path` and `user`). `fingerprint` identifies a
holder without revealing its token.

- `lock_acquired`: `fingerprint`, `waited` (seconds until the attempt that succeeded, 0.0 for the
  first attempt)
- `lock_refused`: `reason` (a string), `error` (ResourceLocked or StoreUnavailable), `waited`
- `lock_released`: `fingerprint`, `held` (seconds), `freed` (True, or None if too few masters have
  confirmed the release yet)
- `lock_lost`: `fingerprint`, `held`, `reason`; sent from the thread or task of the holder, or, if
  the renewal thread noticed the loss, from a thread for signals, where receivers delay no renewal
- `lock_force_released`: `resource` (the name), `by` (the user who released it), `freed` (a
  `forced_release.Freed`, whose `slot` is the slot of a name with a limit)
- `master_down`: `master` (its name), `reason`; sent once for each outage that this process
  notices. A connection that was lost and restored at once is not an outage
- `master_up`: `master`, `reason` (why the votes of the master are not counted yet, "" if they are)
- `request_replayed`: the `request` that was answered from a record, its `key_hash`, and the
  `response`; the sender is the `Idempotency` class

The signals about masters are sent from the thread that connects to the master. It continues when
all receivers have returned.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from django.dispatch import Signal

logger = logging.getLogger("redlock_django")

lock_acquired = Signal()
lock_refused = Signal()
lock_released = Signal()
lock_lost = Signal()
lock_force_released = Signal()
master_down = Signal()
master_up = Signal()
request_replayed = Signal()

_tasks: set[asyncio.Task[Any]] = set()  # a loop keeps only weak references to its tasks


def send(signal: Signal, **arguments: Any) -> None:
    """Send a signal from a thread or from a running loop; log the exceptions of its receivers."""
    if not signal.receivers:
        return
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        loop = None
    if loop is None:
        _log_failures(signal.send_robust(**arguments))
        return
    task = loop.create_task(signal.asend_robust(**arguments))
    _tasks.add(task)
    task.add_done_callback(_finish)


async def asend(signal: Signal, **arguments: Any) -> None:
    """Send a signal as `send` does, and wait until every receiver has returned."""
    if signal.receivers:
        _log_failures(await signal.asend_robust(**arguments))


def _finish(task: asyncio.Task[Any]) -> None:
    _tasks.discard(task)
    if not task.cancelled():
        _log_failures(task.result())


def _log_failures(responses: Any) -> None:
    for receiver, response in responses:
        if isinstance(response, Exception):
            logger.error("a receiver of a redlock signal failed: %r", receiver, exc_info=response)

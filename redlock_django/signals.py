"""What happened to locks and masters, for whoever wants to be told.

Every signal is sent robustly: a receiver that fails is logged, and never breaks a lock.
Receivers may be coroutine functions. Inside a running loop they are called soon after, in
a task; only `arelease()` waits for them, since the loop may end behind it.

Keyword arguments, beside `using` (the alias). Of the first four the sender is the `Lock` class;
they also have `resources` (a tuple) and `holder` (what `lock(holder=...)` was given: for a
request `path` and `user`). `fingerprint` tells holders apart without giving the token away.

- `lock_acquired`: `fingerprint`, `waited` (seconds until the try that won, 0.0 for the first)
- `lock_refused`: `reason` (text), `error` (ResourceLocked or QuorumUnreachable), `waited`
- `lock_released`: `fingerprint`, `held` (seconds), `freed` (True, or None where too few masters
  have confirmed it yet)
- `lock_lost`: `fingerprint`, `held`, `reason`; from the holder's thread, or from the one that
  renews
- `lock_force_released`: `resource`, `by` (who did it), `freed` (a `freeing.Freed`)
- `master_down`: `master` (its name), `reason`; once for each outage that this process notices. A
  connection that was lost and came back at once is none
- `master_up`: `master`, `reason` (why its votes are not counted yet, "" where they are)
- `request_replayed`: the `request` that was answered from a record, its `key_hash`, and the
  `response`; the sender is the `Idempotency` class

Those of the masters come from the thread that connects to that master, which goes on when all
receivers are done.
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

_telling: set[asyncio.Task[Any]] = set()  # a loop keeps only weak references to its tasks


def tell(signal: Signal, **said: Any) -> None:
    """Send a signal from wherever we are; failures of receivers are logged."""
    if not signal.receivers:
        return
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        loop = None
    if loop is None:
        _log(signal.send_robust(**said))
        return
    task = loop.create_task(signal.asend_robust(**said))
    _telling.add(task)
    task.add_done_callback(_told)


async def atell(signal: Signal, **said: Any) -> None:
    """As `tell`, and wait until every receiver is done."""
    if signal.receivers:
        _log(await signal.asend_robust(**said))


def _told(task: asyncio.Task[Any]) -> None:
    _telling.discard(task)
    if not task.cancelled():
        _log(task.result())


def _log(responses: Any) -> None:
    for receiver, response in responses:
        if isinstance(response, Exception):
            logger.error("a receiver of a redlock signal failed: %r", receiver, exc_info=response)

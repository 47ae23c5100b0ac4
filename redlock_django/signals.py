"""What happened to locks, for whoever wants to count or be woken.

Every signal is sent robustly: a receiver that fails never breaks a lock. The sender is
the `Lock` class; keyword arguments are `using` (the alias), `resources` (a tuple), and for
`lock_lost` and `lock_refused` a `reason`. Inside a running loop receivers are called soon
after, in a task; only `arelease()` waits for them, since the loop may end behind it.
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

_telling: set[asyncio.Task[Any]] = set()  # a loop keeps only weak references to its tasks


def tell(signal: Signal, **said: Any) -> None:
    """Send a signal from wherever we are; failures of receivers are logged."""
    if not signal.receivers:
        return
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
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

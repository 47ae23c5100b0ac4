"""`running_loop()`: the loop that runs in this thread, or None; the refusal to block it.

asyncio.get_running_loop() raises an exception where there is none. That takes ten times as long,
and most locks ask several times.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop
from asyncio.events import _get_running_loop
from collections.abc import Callable

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

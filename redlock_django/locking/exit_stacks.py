"""Locks that are released when a stack of context managers is closed.

`ExitStack.enter_context` acquires first and remembers the release after that. A signal that raises
in between would leave the lock to its TTL: see docs/explanation/interrupts.md. Here the release is
remembered first; releasing a lock that was not acquired does nothing.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, ExitStack
from typing import TypeVar

from redlock_django.locking.lock import Lock

_Lock = TypeVar("_Lock", bound=Lock)


def enter_in_stack(stack: ExitStack, lock: _Lock) -> _Lock:
    """Acquire a new lock as a `with` block does, release it with the stack; return it."""
    stack.push(lock)
    return lock.__enter__()


async def aenter_in_stack(stack: AsyncExitStack, lock: _Lock) -> _Lock:
    """Acquire a new lock as an `async with` block does, release it with the stack; return it."""
    stack.push_async_exit(lock)
    return await lock.__aenter__()

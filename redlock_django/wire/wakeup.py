"""Waking a thread or a task that waits: for every driver and every store.

Each counts several calls before a wait as one, and may be woken before it waits. A wait that is
cancelled or interrupted leaves nothing behind: docs/contributing/interrupts.md.
"""

from __future__ import annotations

import asyncio
import queue
from contextlib import suppress


class Wakeup:
    """Wake one waiting thread, from any thread.

    This is not an Event or a Condition: these acquire their mutex in Python, and an interrupt in
    that code leaves it locked for ever. A SimpleQueue is implemented in C, which a signal cannot
    interrupt.
    """

    __slots__ = ("_calls",)

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[None] = queue.SimpleQueue()

    def wake(self) -> None:
        """Wake the waiting thread, or make its next wait end immediately."""
        if self._calls.empty():
            self._calls.put(None)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for a call, for at most that many seconds (None: no limit); return if it came."""
        with suppress(queue.Empty):
            self._calls.get(timeout=seconds)
            return True
        return False


class LoopWakeup:
    """Wake one waiting task of the loop in which this is made."""

    __slots__ = ("_changed", "_is_called", "_loop")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._is_called = False

    def wake(self) -> None:
        """Wake the task, from any thread; do nothing if its loop has been closed."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.wake_here)

    def wake_here(self) -> None:
        """Wake the task from a callback or task of its loop, which takes no call to the kernel."""
        self._is_called = True
        self._changed.set()

    async def wait(self, seconds: float) -> bool:
        """Wait for a call, for at most that many seconds; return whether it came."""
        over = self._loop.call_later(seconds, self._changed.set)
        try:
            # Not wait_for(): on Python 3.11 it loses a cancellation that comes with the call.
            await self._changed.wait()
        finally:
            over.cancel()
        is_called, self._is_called = self._is_called, False
        self._changed.clear()
        return is_called

"""A wake-up call for one waiting thread, safe against signals.

docs/explanation/interrupts.md explains what a signal may interrupt.
"""

from __future__ import annotations

import queue
from contextlib import suppress


class Wakeup:
    """Wake the thread that waits; several calls before a wait count as one.

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

    def wait(self, seconds: float | None = None) -> None:
        """Wait for a call, for at most that many seconds (None: no limit)."""
        with suppress(queue.Empty):
            self._calls.get(timeout=seconds)

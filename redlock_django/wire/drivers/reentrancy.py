"""Notice that a lock operation interrupts another one of the same thread.

A signal handler, or a finalizer that the garbage collector runs, interrupts its thread between any
two steps: perhaps while that thread changes the links. What it may do then is explained in
docs/contributing/interrupts.md.
"""

from __future__ import annotations

import sys
import threading
from types import CodeType, FrameType

INTERRUPTS = (
    "A signal handler or a finalizer asked for a lock, or to extend one, while it interrupted a "
    "lock operation of the same thread, which cannot go on before it returns. Let the handler set "
    "a flag or start a thread, and use the lock there."
)


class Interrupting(RuntimeError):
    """An operation was refused because it interrupts another one of its thread."""

    def __init__(self) -> None:
        super().__init__(INTERRUPTS)


class Running:
    """A note of whether each thread is running a protocol on the links that have this object."""

    busy = False

    @staticmethod
    def of_threads() -> Running:
        """Return a note that each thread has for itself, or each greenlet of gevent."""
        # Not a class of this module: gevent may replace `threading.local` after the import.
        made: Running = type("RunningOfThreads", (Running, threading.local), {})()
        return made

    def is_interrupted(self, driver: CodeType, links: object) -> bool:
        """Return whether this thread is running one already, in the code of that driver.

        The stack is searched from the caller's caller on: the caller may be the driver itself.
        """
        if not self.busy:
            return False
        # An interrupt may have left the mark behind: only the stack is certain.
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            if frame.f_code is driver and frame.f_locals.get("self") is links:
                return True
            frame = frame.f_back
        return False

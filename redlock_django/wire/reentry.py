"""Notice that a lock operation interrupts another one of the same thread.

A signal handler, or a finalizer that the garbage collector runs, interrupts its thread between any
two steps: perhaps while that thread changes the links. What it may do then is explained in
docs/explanation/interrupts.md.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Generator
from types import CodeType, FrameType
from typing import Any

from redlock_django.engine.trampoline import is_finished

INTERRUPTS = (
    "A signal handler or a finalizer asked for a lock, or to extend one, while it interrupted a "
    "lock operation of the same thread, which cannot go on before it returns. Let the handler set "
    "a flag or start a thread, and use the lock there."
)


class Running(threading.local):
    """The protocol that each thread began last. Nothing has to be removed when it ends."""

    def __init__(self) -> None:
        self._protocol: weakref.ref[Generator[Any, Any, Any]] | None = None

    def begin(self, protocol: Generator[Any, Any, Any]) -> None:
        """Note that this thread begins to run a protocol."""
        self._protocol = weakref.ref(protocol)

    def is_interrupted(self, driver: CodeType) -> bool:
        """Return whether this thread is running a protocol already, in that driver's code."""
        protocol = None if self._protocol is None else self._protocol()
        if protocol is None or is_finished(protocol):
            return False
        # A traceback may keep a protocol that was abandoned: only the stack is certain.
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_code is driver and frame.f_locals.get("protocol") is protocol:
                return True
            frame = frame.f_back
        return False

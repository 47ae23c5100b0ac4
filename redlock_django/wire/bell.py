"""A bell: one thread waits for it, any thread may ring it, and Ctrl-C cannot break it."""

from __future__ import annotations

from contextlib import suppress
from queue import Empty, SimpleQueue


class Bell:
    """Wakes whoever waits; rings that nobody heard are one ring.

    Not an Event or a Condition: these take their mutex in Python, and an interrupt in there
    leaves it taken for ever. A queue of C does not.
    """

    __slots__ = ("_rings",)

    def __init__(self) -> None:
        self._rings: SimpleQueue[None] = SimpleQueue()

    def ring(self) -> None:
        """Wake the waiting thread, or let its next wait end at once."""
        if self._rings.empty():
            self._rings.put(None)

    def wait(self, seconds: float | None = None) -> None:
        """Wait for a ring, at most that long (None: for ever)."""
        with suppress(Empty):
            self._rings.get(timeout=seconds)

"""The result of connecting to a master, on its way from the connecting thread to an event loop."""

from __future__ import annotations

from collections import deque
from contextlib import suppress

from redlock_django.wire.links.dialing import discard
from redlock_django.wire.servers.handshake import Joined, Unfit


class Arrival:
    """The latest result of connecting to one master that its loop has not handled yet.

    Only one is kept: a loop that stands still while a master is down would otherwise collect the
    result of every attempt.
    """

    __slots__ = ("_results", "scheduled")

    def __init__(self) -> None:
        self._results: deque[Joined | Unfit] = deque(maxlen=1)
        self.scheduled = False  # a callback of the loop is to handle it

    def put(self, result: Joined | Unfit) -> None:
        """Store a result instead of the last one. The caller looks at `scheduled` afterwards."""
        self.drop()
        self._results.append(result)

    def take(self) -> Joined | Unfit | None:
        """Remove and return the result; None if there is none.

        The flag is reset first: a result that a thread stores meanwhile is either returned here, or
        the thread schedules another callback.
        """
        self.scheduled = False
        with suppress(IndexError):
            return self._results.pop()
        return None

    def drop(self) -> None:
        """Remove the result, and close its connection."""
        with suppress(IndexError):
            discard(self._results.pop())

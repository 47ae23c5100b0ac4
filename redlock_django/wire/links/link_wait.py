"""How long a round waits for connections under way."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from redlock_django.engine.quorum import quorum
from redlock_django.engine.steps import Round
from redlock_django.wire.links.master import Master

JOINING = 0.02
"""Seconds, at least, for which the first rounds wait for the links that a quorum does not need.

A link that is under way comes a few ms after the quorum. Otherwise the first lock of a process
would be set on a bare majority, and be lost with any of these masters."""


class LinkWait:
    """How long a round waits for the masters in `connecting`, whose connections are under way."""

    def __init__(
        self,
        masters: Sequence[Master],
        connecting: Collection[Master],
        connect_timeout: float,
        clock: Callable[[], float],
    ) -> None:
        self.connecting = connecting
        self.quorum = quorum(len(masters))
        self._masters = masters
        self._connect_timeout = connect_timeout
        self._clock = clock
        self._joining_until: float | None = None  # None: there has been no quorum yet

    def usable(self) -> int:
        """Return how many masters may vote now."""
        now = self._clock()
        return sum(1 for master in self._masters if not master.fault(now))

    def is_needed(self, asked: Round) -> bool:
        """Return whether a round waits for connections under way; see `seconds`."""
        trusted = any(c is not None and c.trusted for c in asked.commands)
        return trusted and self.seconds(self._clock()) > 0

    def seconds(self, began: float) -> float:
        """Return for how many seconds a round that began then waits.

        It waits as long as a quorum depends on connections under way. Once in the life of these
        links, rounds wait for the others, too, for as long again as the quorum took, and JOINING at
        least: a master that hangs costs no more than that.
        """
        connecting = len(self.connecting)
        usable = self.usable() if connecting else 0
        if not connecting or usable + connecting < self.quorum:
            return 0.0
        now = self._clock()
        if usable < self.quorum:
            return began + self._connect_timeout - now
        if self._joining_until is None:
            self._joining_until = now + max(now - began, JOINING)
        return self._joining_until - now

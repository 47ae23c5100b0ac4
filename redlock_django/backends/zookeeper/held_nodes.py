"""The nodes of the leases that a process holds in ZooKeeper, which does not know of TTLs."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class _Held:
    until: float
    nodes: tuple[str, ...]


class HeldNodes:
    """The nodes of each held lease, by token, and the moment at which its TTL ends.

    Callers add, prolong and remove leases; one thread removes those that are over.
    """

    def __init__(self) -> None:
        self._held: dict[str, _Held] = {}

    def __len__(self) -> int:
        return len(self._held)

    def add(self, token: str, until: float, nodes: tuple[str, ...]) -> None:
        """Add the nodes of a lease."""
        self._held[token] = _Held(until, nodes)

    def prolong(self, token: str, until: float) -> bool:
        """Hold the nodes of a lease longer; return False if they are not held any more."""
        held = self._held.get(token)
        if held is not None:
            held.until = max(held.until, until)
        return held is not None and self._held.get(token) is held

    def remove(self, token: str) -> None:
        """Remove a lease; does nothing if it is not held."""
        self._held.pop(token, None)

    def clear(self) -> None:
        """Remove all leases."""
        self._held.clear()

    def next_end(self) -> float:
        """Return the moment at which the next TTL ends."""
        return min((held.until for held in list(self._held.values())), default=math.inf)

    def pop_over(self, now: float) -> list[tuple[str, ...]]:
        """Remove the leases whose TTL has ended, and return their nodes."""
        over = []
        for token, held in list(self._held.items()):
            # Removed first: an extension that comes now finds that the lease is lost.
            if now >= held.until and self._held.pop(token, None) is held:
                if now >= held.until:
                    over.append(held.nodes)
                else:
                    self._held[token] = held
        return over

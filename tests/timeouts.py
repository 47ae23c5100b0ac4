"""Generous timeouts, for tests that do not test timeouts."""

from __future__ import annotations


def generous_timeouts(shortest_ttl: float = 30.0) -> dict[str, float]:
    """Return entries of REDLOCK with long timeouts: on a loaded machine, masters answer late.

    `shortest_ttl` is the TTL of the shortest lock in the test, in seconds: MASTER_TIMEOUT must be
    less than half of it.
    """
    return {"MASTER_TIMEOUT": min(2.0, 0.45 * shortest_ttl), "CONNECT_TIMEOUT": 5.0}

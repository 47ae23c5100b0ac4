"""How long tests wait for masters where lateness is not what they are about."""

from __future__ import annotations


def generous_timeouts(shortest_ttl: float = 30.0) -> dict[str, float]:
    """Give entries of REDLOCK: a machine with few cores and much to do may let a master wait.

    `shortest_ttl` is that of the shortest lock in the test, in seconds: MASTER_TIMEOUT must be
    less than half of it.
    """
    return {"MASTER_TIMEOUT": min(0.5, 0.45 * shortest_ttl), "CONNECT_TIMEOUT": 5.0}

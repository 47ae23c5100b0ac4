"""Generous timeouts, for tests that do not test timeouts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redlock_django.testing.masters import LocalMaster


def generous_timeouts(shortest_ttl: float = 30.0) -> dict[str, float]:
    """Return entries of REDLOCK with long timeouts: on a loaded machine, masters answer late.

    `shortest_ttl` is the TTL of the shortest lock in the test, in seconds: MASTER_TIMEOUT must be
    less than half of it.
    """
    return {"MASTER_TIMEOUT": min(2.0, 0.45 * shortest_ttl), "CONNECT_TIMEOUT": 5.0}


def redlock_of(*urls: str, shortest_ttl: float = 30.0, **section: Any) -> dict[str, dict[str, Any]]:
    """Return REDLOCK of a site with these servers and generous timeouts."""
    return {"default": {"MASTERS": [*urls], **generous_timeouts(shortest_ttl), **section}}


def patient_site(
    masters: Iterable[LocalMaster], shortest_ttl: float = 30.0, **section: Any
) -> dict[str, dict[str, Any]]:
    """Return REDLOCK of a site with these masters, trusted at once, and generous timeouts."""
    urls = [master.url for master in masters]
    return redlock_of(*urls, **{"shortest_ttl": shortest_ttl, "RESTART_DELAY": 0, **section})

"""The health of the servers: up or silent, trusted or not, and their faults."""

from __future__ import annotations

from django.utils.asyncio import async_unsafe

from redlock_django.backends.base import StoreSettings
from redlock_django.backends.inspection.contract import Inspection
from redlock_django.backends.inspection.results import QuorumHealth, ServerHealth
from redlock_django.backends.redis.settings import RedlockSettings
from redlock_django.locking.services import locks
from redlock_django.operate.inspection import inspection_of

__all__ = [
    "QuorumHealth",
    "ServerHealth",
    "caveat",
    "counted",
    "master_status",
    "server_word",
]

_FAILOVER = (
    "One server whose replica may take over: a failover may forget locks, so nothing is granted "
    "for %s s after it, and two clients hold a lock only while a former primary still answers one "
    "of them; fences and idempotency records in the database hold even then."
)


@async_unsafe
def master_status(
    using: str = "default", *, inspection: Inspection | None = None
) -> tuple[ServerHealth, ...]:
    """Return the health of every server of an alias, asked in an open inspection or a new one.

    The process also connects to the servers in the background: a master that is fresh or has
    restarted begins to be trusted when the first client meets it, and a site that is asked for its
    health may get no other request before. Raises InvalidRedlock only.
    """
    locks[using].backend.connect()
    with inspection_of(using, inspection) as inspection:
        return tuple(inspection.health())


def server_word(using: str) -> str:
    """Return what messages call a server of the alias, "master" or "server".

    Raises InvalidRedlock.
    """
    return "master" if locks[using].backend.servers_are_masters else "server"


def caveat(store: StoreSettings) -> str:
    """Return what a store does not exclude, in one sentence; "" if independent servers decide."""
    if isinstance(store, RedlockSettings) and store.deployment.failover:
        return _FAILOVER % f"{store.deployment.restart_delay:.0f}"
    return ""


def counted(quorum: QuorumHealth, word: str) -> str:
    """Return how many servers are counted, as "2 of 3 masters are counted"."""
    if quorum.servers == 1:
        return f"the only {word} is {'' if quorum.counted else 'not '}counted"
    return f"{quorum.counted} of {quorum.servers} {word}s are counted"

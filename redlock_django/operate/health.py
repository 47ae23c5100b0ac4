"""The health of the servers: up or silent, trusted or not, and their faults."""

from __future__ import annotations

from django.utils.asyncio import async_unsafe

from redlock_django.backends.inspection import Inspection
from redlock_django.backends.inspection_results import QuorumHealth, ServerHealth, quorums
from redlock_django.operate.inspection import inspection_of

__all__ = ["QuorumHealth", "ServerHealth", "master_status", "quorums"]


@async_unsafe
def master_status(
    using: str = "default", *, inspection: Inspection | None = None
) -> tuple[ServerHealth, ...]:
    """Return the health of every server of an alias, asked in an open inspection or a new one.

    Raises InvalidRedlock only.
    """
    with inspection_of(using, inspection) as inspection:
        return tuple(inspection.health())

"""Which locks are held, and by whom.

None of these functions uses the connections of locks, and none may be called inside a running
event loop.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from difflib import get_close_matches

from django.utils.asyncio import async_unsafe

from redlock_django.backends.inspection import MAX_LISTED, ORDERS, Inspection
from redlock_django.backends.inspection_results import HeldLocks
from redlock_django.engine.holders import HoldingState
from redlock_django.locking.handler import locks
from redlock_django.locking.names import check_resource

__all__ = [
    "MAX_LISTED",
    "ORDERS",
    "HeldLocks",
    "held_locks",
    "inspection_of",
    "nearest_held",
    "who_holds",
]


@async_unsafe
def held_locks(
    using: str = "default",
    *,
    search: str = "",
    state: HoldingState | None = None,
    order: str = "ttl",
    offset: int = 0,
    limit: int = 100,
    scan: bool = False,
    inspection: Inspection | None = None,
) -> HeldLocks:
    """Return a page of the locks that are held on the servers of an alias.

    `order` is one of ORDERS. `search` is a part of the resource name, in the same case. `scan`
    looks at every key of the servers, and so finds locks that other clients have set and that no
    client of ours has met. Servers that do not answer are reported in the result, never raised.
    Pass an open `inspection` to ask several questions with one timeout for a server that hangs.

    Raises InvalidRedlock, ValueError.
    """
    with inspection_of(using, inspection) as inspection:
        return inspection.page(
            search=search, state=state, order=order, offset=offset, limit=limit, scan=scan
        )


@async_unsafe
def who_holds(
    *resources: str, using: str = "default", inspection: Inspection | None = None
) -> HeldLocks:
    """Return what is known of these resources, as far as they are held.

    Raises InvalidRedlock, or BadResource for a string that cannot be a name.
    """
    names = [check_resource(resource) for resource in resources]
    with inspection_of(using, inspection) as inspection:
        return inspection.look(names)


def nearest_held(resource: str, using: str = "default") -> list[str]:
    """Return up to three held resources whose names are most like this one."""
    known = [holding.resource for holding in held_locks(using, limit=1000).locks]
    return get_close_matches(resource, known, n=3, cutoff=0.5)


def inspection_of(using: str, inspection: Inspection | None) -> AbstractContextManager[Inspection]:
    """Return the open inspection if there is one, otherwise a new one that ends with its block."""
    return nullcontext(inspection) if inspection is not None else locks[using].backend.inspect()

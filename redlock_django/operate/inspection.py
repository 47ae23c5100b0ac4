"""Which locks are held, and by whom.

None of these functions uses the connections of locks, and none may be called inside a running
event loop.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from difflib import get_close_matches
from typing import Any

from django.utils.asyncio import async_unsafe

from redlock_django.backends.inspection.contract import Inspection
from redlock_django.backends.inspection.filter import ORDERS
from redlock_django.backends.inspection.results import HeldLocks
from redlock_django.engine.protocol.slots import MOST_SLOTS, slot_resource
from redlock_django.locking.names import check_resource, check_slot
from redlock_django.locking.services import locks

__all__ = [
    "MAX_LISTED",
    "ORDERS",
    "HeldLocks",
    "held_locks",
    "inspection_of",
    "nearest_held",
    "who_holds",
]

MAX_LISTED = Inspection.MAX_LISTED


@async_unsafe
def held_locks(
    using: str = "default",
    *,
    scan: bool = False,
    inspection: Inspection | None = None,
    **wanted: Any,
) -> HeldLocks:
    """Return the locks that are held on the servers of an alias: at most MAX_LISTED.

    `wanted` are the fields of `LockFilter`: `search`, `prefix`, `holder`, `state` and `order`.
    `scan` also finds locks of other programs that are in no index yet. Servers that do not answer
    are reported in the result, never raised. Pass an open `inspection` to ask several questions
    with one timeout for a server that hangs.

    Raises InvalidRedlock, ValueError.
    """
    with inspection_of(using, inspection) as inspection:
        return inspection.held(scan=scan, **wanted)


@async_unsafe
def who_holds(
    *resources: str,
    using: str = "default",
    slots: bool = False,
    inspection: Inspection | None = None,
) -> HeldLocks:
    """Return what is known of these resources, as far as they are held.

    With `slots`, they are names, and the answer has every slot of those that have a limit.

    Raises InvalidRedlock, or BadResource for a string that cannot be a name.
    """
    if slots:
        names = [check_resource(resource) for resource in resources]
        wanted = [slot_resource(name, slot) for name in names for slot in range(MOST_SLOTS)]
    else:
        wanted = [check_slot(resource) for resource in resources]
    with inspection_of(using, inspection) as inspection:
        return inspection.look(wanted)


def nearest_held(resource: str, using: str = "default") -> list[str]:
    """Return up to three names that are held and most like this one."""
    known = {holding.name for holding in held_locks(using).locks}
    return get_close_matches(resource, known, n=3, cutoff=0.5)


def inspection_of(using: str, inspection: Inspection | None) -> AbstractContextManager[Inspection]:
    """Return the open inspection if there is one, otherwise a new one that ends with its block."""
    return nullcontext(inspection) if inspection is not None else locks[using].backend.inspect()

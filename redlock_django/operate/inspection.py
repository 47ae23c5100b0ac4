"""Which locks are held, and by whom.

None of these functions uses the connections of locks, and none may be called inside a running
event loop.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from difflib import get_close_matches

from django.utils.asyncio import async_unsafe

from redlock_django.backends.inspection.contract import Inspection
from redlock_django.backends.inspection.results import HeldLocks
from redlock_django.engine.protocol.slots import MOST_SLOTS, name_of, slot_resource
from redlock_django.locking.names import check_resource, check_slot
from redlock_django.locking.services import locks

__all__ = [
    "MAX_LISTED",
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
    search: str = "",
    offset: int = 0,
    limit: int | None = None,
    inspection: Inspection | None = None,
) -> HeldLocks:
    """Return a page of the locks that are held on the servers of an alias, of at most MAX_LISTED.

    Each word of `search` is a part of the name, or is about the holder (`Holding.fits`). Those that
    expire first come first. Servers that do not answer are reported in the result, never raised.
    Pass an open `inspection` to ask several questions with one timeout for a server that hangs.

    Raises InvalidRedlock.
    """
    with inspection_of(using, inspection) as inspection:
        return inspection.held(search=search, offset=offset, limit=limit)


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
    with locks[using].backend.inspect() as inspection:
        known = {name_of(name) for name in inspection.listing().names}
    return get_close_matches(resource, known, n=3, cutoff=0.5)


def inspection_of(using: str, inspection: Inspection | None) -> AbstractContextManager[Inspection]:
    """Return the open inspection if there is one, otherwise a new one that ends with its block."""
    return nullcontext(inspection) if inspection is not None else locks[using].backend.inspect()

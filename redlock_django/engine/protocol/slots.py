"""The slots of a name that several clients may hold at once, each of which is a lock of its own.

Slot 0 is the name itself, so `limit=1` is an ordinary lock. Slot 2 of `export` is the resource
`export[2]`; no name that a user may choose contains a bracket.
"""

from __future__ import annotations

import re
from functools import lru_cache

MOST_SLOTS = 1000
"""The largest limit of a name."""

SUFFIX = len(f"[{MOST_SLOTS - 1}]")
"""How many bytes longer the resource of a slot may be than its name."""

_SLOT = re.compile(r"(.+)\[(\d+)\]", re.DOTALL)


def slot_resource(name: str, slot: int) -> str:
    """Return the resource that is a slot of a name."""
    return f"{name}[{slot}]" if slot else name


def name_of(resource: str) -> str:
    """Return the name whose slot a resource is; the resource itself if it is slot 0."""
    return name_and_slot(resource)[0]


def slot_of(resource: str) -> int:
    """Return the number of the slot that a resource is, counted from 0."""
    return name_and_slot(resource)[1]


@lru_cache(maxsize=1024)
def name_and_slot(resource: str) -> tuple[str, int]:
    """Return the name whose slot a resource is, and the number of the slot."""
    # Nearly every resource is slot 0.
    if resource.endswith("]") and (found := _SLOT.fullmatch(resource)):
        return found[1], int(found[2])
    return resource, 0

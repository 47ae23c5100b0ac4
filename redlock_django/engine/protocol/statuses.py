"""The statuses with which the Lua scripts answer: one table for Lua and Python.

A script writes a status by its name (`return { round, NOT_READY, now }`). `commands.script`
replaces each name by its number before the script is sent to a master.

`Command.vote` gives the meaning of each status as a vote. Documented in
docs/contributing/on-the-wire.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

GRANTED: Final = 1
REFUSED: Final = 0  # another client has the lock
NOT_READY: Final = -1  # the marker is absent or another one, or its ready-at is in the future
BURIED: Final = -2  # there is a tombstone: the token was released before its acquire arrived
FENCE_AHEAD: Final = -3  # a stored fence is further ahead of the clock than a valid one can be
CORRUPT: Final = -4  # a key has another type, or a fence is not a number
ABSENT: Final = -5  # the master does not have the lock (any more)
RESERVED: Final = -7  # the lock is free, but it is another waiter's turn
USED: Final = -8  # take.lua: another token has replaced the expected one

# join.lua alone:
KNOWN: Final = 1  # the marker was right and is unchanged
MARKED: Final = 2  # the marker was written just now
UNMARKED: Final = 3  # there is no marker, and this mode writes none
MISMATCH: Final = -6  # the marker has the fingerprint of another deployment

STATUSES: Mapping[str, int] = {
    "GRANTED": GRANTED,
    "REFUSED": REFUSED,
    "NOT_READY": NOT_READY,
    "BURIED": BURIED,
    "FENCE_AHEAD": FENCE_AHEAD,
    "CORRUPT": CORRUPT,
    "ABSENT": ABSENT,
    "RESERVED": RESERVED,
    "USED": USED,
    "KNOWN": KNOWN,
    "MARKED": MARKED,
    "UNMARKED": UNMARKED,
    "MISMATCH": MISMATCH,
}
"""The number of each status, by its name in the scripts."""

UNCOUNTED: Mapping[int, str] = {
    NOT_READY: "not trusted yet",
    BURIED: "this token was released already",
    FENCE_AHEAD: "its fence is ahead of its clock",
    CORRUPT: "one of its keys has another type or is not a number",
}
"""Why a vote with this status does not count."""

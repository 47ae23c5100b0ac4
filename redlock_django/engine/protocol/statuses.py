"""The statuses with which the Lua scripts answer: one table for Lua and Python.

A script writes a status by its name (`struct.pack('<i8i8i8', round, NOT_READY, now)`).
`commands.script` replaces each name by its number before the script is sent to a master.

`Command.vote` gives the meaning of each status as a vote. Documented in
docs/contributing/on-the-wire.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum


class Status(IntEnum):
    """The status of a reply. The names are those in the scripts."""

    GRANTED = 1
    REFUSED = 0  # another client has the lock
    NOT_READY = -1  # the marker is absent or another one, or its ready-at is in the future
    BURIED = -2  # there is a tombstone: the token was released before its acquire arrived
    FENCE_AHEAD = -3  # a stored fence is further ahead of the clock than a valid one can be
    CORRUPT = -4  # a key has another type, or a fence is not a number
    ABSENT = -5  # the master does not have the lock (any more)
    RESERVED = -7  # the lock is free, but it is another waiter's turn
    USED = -8  # take.lua: another token has replaced the expected one

    # join.lua alone:
    KNOWN = 2  # the marker was right and is unchanged
    MARKED = 3  # the marker was written, as the mode says
    FRESH = 4  # the marker was written: there was none
    RESTARTED = 5  # the marker was written: there was that of another run of the server
    STEPPED = 6  # the marker was written: the master's clock stepped
    UNMARKED = 7  # there is no marker, and this mode writes none
    MISMATCH = -6  # the marker has the fingerprint of another deployment


UNCOUNTED: Mapping[int, str] = {
    Status.NOT_READY: "not trusted yet",
    Status.BURIED: "this token was released already",
    Status.FENCE_AHEAD: "its fence is ahead of its clock",
    Status.CORRUPT: "one of its keys has another type or is not a number",
}
"""Why a vote with this status does not count."""

"""The data of one master in memory: strings and sorted sets that expire."""

from __future__ import annotations

import math
from collections.abc import Callable

ScriptReply = list[int | bytes]


class Keyspace:
    """The strings and sorted sets of one server, by key, as its scripts see them.

    `time` returns the server's clock in µs. All keys expire by the time at which the running
    script began.
    """

    def __init__(self, time: Callable[[], int]) -> None:
        self.time = time
        self.strings: dict[str, tuple[bytes, float]] = {}  # key -> value, expiry in ms
        self.sets: dict[str, dict[bytes, float]] = {}
        self.ends: dict[str, float] = {}  # the expiry of a set, in ms, if it has one
        # Publishes a message on a channel and returns the number of its subscribers.
        self.publish: Callable[[str, bytes], int] = lambda channel, message: 0
        self.script_ms = 0  # the time at which the running script began; 0 between scripts

    def _moment(self) -> int:
        """Return the time in ms; within a script, the time at which it began."""
        return self.script_ms or self.time() // 1000

    # The commands of a server that the scripts use.

    def get(self, key: str) -> bytes | None:
        """Return the value of a string, or None if it is absent or has expired."""
        stored = self.strings.get(key)
        if stored is None:
            return None
        value, expiry = stored
        if self._moment() > expiry:
            del self.strings[key]
            return None
        return value

    def set(self, key: str, value: bytes, px: float = math.inf) -> None:
        """Store a string for `px` ms and replace any other value of the key."""
        self.sets.pop(key, None)
        self.ends.pop(key, None)
        self.strings[key] = (value, self._moment() + px)

    def pttl(self, key: str) -> int:
        """Return the ms until a string expires, -1 if it never does, -2 if it is absent."""
        if self.get(key) is None:
            return -2
        expiry = self.strings[key][1]
        return -1 if expiry == math.inf else int(expiry - self._moment())

    def sorted_set(self, key: str) -> dict[bytes, float]:
        """Return a sorted set; empty if it is absent, has expired or has another type."""
        end = self.ends.get(key)
        if end is not None and self._moment() > end:
            self.sets.pop(key, None)
            del self.ends[key]
        return self.sets.get(key, {})

    def remove(self, key: str, member: bytes) -> None:
        """Remove a member of a sorted set, which is deleted with its last one."""
        members = self.sorted_set(key)
        members.pop(member, None)
        if not members:
            self.sets.pop(key, None)
            self.ends.pop(key, None)

    def clear(self) -> None:
        """Delete every key, as FLUSHALL does."""
        self.strings.clear()
        self.sets.clear()
        self.ends.clear()

    # The index: the sorted set of the held resources, by expiry in ms; as in index.lua.

    def add_to_index(self, key: str, left: int, resource: bytes, *, new_only: bool = False) -> None:
        """Add a lock that lasts `left` ms, whichever program has set it."""
        if self.get(key) is not None:
            return  # another type: only inspection needs the index
        self.sorted_set(key)
        index = self.sets.setdefault(key, {})
        if not (new_only and resource in index):
            index[resource] = self.script_ms + left
        if self.ends.get(key, 0.0) - self.script_ms < left:
            self.ends[key] = self.script_ms + 2 * left

    def add_grant(self, key: str, ttl: int, resource: bytes, max_ttl: int) -> None:
        """Add the granted lock of a resource."""
        self.sorted_set(key)
        index = self.sets.setdefault(key, {})
        entries = {resource: self.script_ms + ttl, b"": -(self.script_ms // max_ttl)}
        if all(index.get(member) != score for member, score in entries.items()):
            self.ends[key] = self.script_ms + 2 * max_ttl
        index.update(entries)

    def trim_index(self, key: str, now_ms: int) -> None:
        """Remove up to 100 entries of locks that have expired."""
        index = self.sorted_set(key)
        stale = sorted((m for m, e in index.items() if 0 <= e < now_ms), key=index.__getitem__)
        for member in stale[:100]:
            self.remove(key, member)

    def still_held(self, key: str, now_ms: int) -> dict[bytes, float]:
        """Return the entries of the index that have not expired."""
        return {m: expiry for m, expiry in self.sorted_set(key).items() if expiry >= now_ms}

"""The data of one master in memory: strings and sorted sets that expire."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache


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
        self.began = 0  # the time (µs) at which the running script began; 0 between scripts

    def now(self) -> int:
        """Return the time in µs; within a script, the time at which it began."""
        return self.began or self.time()

    def get(self, key: str) -> bytes | None:
        """Return the value of a string; None if it is absent, expired or has another type."""
        stored = self.strings.get(key)
        if stored is None:
            return None
        value, expiry = stored
        if (self.began or self.time()) // 1000 > expiry:
            del self.strings[key]
            return None
        return value

    def set(self, key: str, value: bytes, px: float = math.inf) -> None:
        """Store a string for `px` ms and replace any other value of the key."""
        self.sets.pop(key, None)
        self.ends.pop(key, None)
        self.strings[key] = (value, self.now() // 1000 + px)

    def pttl(self, key: str) -> int:
        """Return the ms until a key expires, -1 if it never does, -2 if it is absent."""
        if self.get(key) is not None:
            end = self.strings[key][1]
        elif self.sorted_set(key):
            end = self.ends.get(key, math.inf)
        else:
            return -2
        return -1 if end == math.inf else int(end - self.now() // 1000)

    def expire(self, key: str, left: float) -> bool:
        """Set the ms that a key lasts; return whether it is there."""
        end = self.now() // 1000 + left
        if (value := self.get(key)) is not None:
            self.strings[key] = (value, end)
        elif self.sorted_set(key):
            self.ends[key] = end
        else:
            return False
        return True

    def sorted_set(self, key: str) -> dict[bytes, float]:
        """Return a sorted set; empty if it is absent, has expired or has another type."""
        end = self.ends.get(key)
        if end is not None and (self.began or self.time()) // 1000 > end:
            self.sets.pop(key, None)
            del self.ends[key]
        return self.sets.get(key) or {}

    def remove(self, key: str, member: bytes) -> None:
        """Remove a member of a sorted set, which is deleted with its last one."""
        members = self.sorted_set(key)
        members.pop(member, None)
        if not members:
            self.sets.pop(key, None)
            self.ends.pop(key, None)

    def drop(self, key: str) -> bool:
        """Delete a key; return whether it was there."""
        was_there = self.pttl(key) != -2
        self.strings.pop(key, None)
        self.sets.pop(key, None)
        self.ends.pop(key, None)
        return was_there

    def still_held(self, key: str, now_ms: int) -> dict[bytes, float]:
        """Return the entries of an index that have not expired."""
        return {m: expiry for m, expiry in self.sorted_set(key).items() if expiry >= now_ms}

    def clear(self) -> None:
        """Delete every key, as FLUSHALL does."""
        self.strings.clear()
        self.sets.clear()
        self.ends.clear()


@lru_cache
def key_of(key: bytes) -> str:
    """Return a key as it is stored, from what a script calls it."""
    return key.decode(errors="surrogatepass")


@lru_cache
def bytes_of(key: str) -> bytes:
    """Return a key as a script calls it."""
    return key.encode(errors="surrogatepass")

"""The queues of one master in memory: the functions that queue.lua gives the other scripts."""

from __future__ import annotations

import math
from collections.abc import Sequence

from redlock_django.backends.memory.keyspace import Keyspace

TURN = 100_000  # µs in which a waiter that was called must try again; as in queue.lua
LINGER = 3000  # ms that a queue is kept after its lock has expired; as in queue.lua
LATE = 4e15  # µs added to the score of a late waiter; as in queue.lua
NEWEST = 8  # how many of the last waiters may be asked to watch a turn; as in queue.lua


class Queues:
    """The queues of one server: the functions of queue.lua, to be read next to it."""

    __slots__ = ("_keyspace",)

    def __init__(self, keyspace: Keyspace) -> None:
        self._keyspace = keyspace

    def call_first(
        self,
        key: str,
        now: int,
        waiter: bytes = b"",
        ticket: float = math.inf,
        free: int = 1,
        slots: Sequence[int] = (),
    ) -> tuple[bytes, float] | None:
        """Call the first waiters whose processes listen, so that `free` waiters have a turn.

        Returns one of the called waiters and the µs that its turn lasts; None if fewer are in front
        of `waiter`. The message contains the number of a slot if there are `slots`.
        """
        turns = 0
        for _ in range(1000):
            queue = self._keyspace.sorted_set(key)
            order = sorted(queue, key=lambda name: (queue[name], name))
            name = order[turns] if turns < len(order) else waiter
            score = queue.get(name, 0.0)
            if name == waiter or (score >= 0 and (ticket, waiter) < (score, name)):
                return None
            if queue.get(waiter, 0.0) >= LATE:
                return None
            left = -score - now if score < 0 and now < -score else 0
            channel = channel_of(name)
            slot = b"/%d" % slots[turns % len(slots)] if slots else b""
            if left:
                turns += 1
            elif not channel:
                self._keyspace.remove(key, name)
            elif score < 0:
                queue[name] = LATE + now
                if channel != channel_of(waiter):
                    self._remove_process(key, channel, name)
                    turns = 0
            elif not self._keyspace.publish(channel.decode(), name + slot):
                self._remove_process(key, channel)
                turns = 0
            elif score >= LATE:
                return None
            else:
                queue[name] = -now - TURN
                if not waiter:
                    self._ask_to_watch(queue, name)
                turns, left = turns + 1, TURN
            if left and turns >= free:
                return name, left
        return None

    def _remove_process(self, key: str, channel: bytes, but: bytes = b"") -> None:
        for name in list(self._keyspace.sorted_set(key)):
            if name != but and channel_of(name) == channel:
                self._keyspace.remove(key, name)

    def _ask_to_watch(self, queue: dict[bytes, float], name: bytes) -> None:
        last = sorted(queue, key=lambda name: (queue[name], name))[-NEWEST:]
        newest = [other for other in reversed(last) if other != name and channel_of(other)]
        others = [other for other in newest if channel_of(other) != channel_of(name)]
        for watcher in (*others, *newest)[:1]:
            self._keyspace.publish(channel_of(watcher).decode(), b" " + watcher)

    def stand(self, key: str, waiter: bytes, ticket: float, lasts: int) -> int:
        """Join the queue of a lock that lasts `lasts` ms; return the number of waiters in front."""
        if not waiter or self._keyspace.get(key) is not None:
            return -1
        self._keyspace.sorted_set(key)
        queue = self._keyspace.sets.setdefault(key, {})
        queue[waiter] = ticket
        self._keyspace.ends[key] = self._keyspace.script_ms + lasts + LINGER
        return sorted(queue, key=lambda name: (queue[name], name)).index(waiter)


def channel_of(name: bytes) -> bytes:
    """Return the wake channel of a waiter, b"" for an invalid name."""
    return name.rpartition(b" ")[0]

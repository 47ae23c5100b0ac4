"""The queues of one master in memory: the functions that queue.lua gives the other scripts."""

from __future__ import annotations

import math

from redlock_django.backends.memory_keyspace import Keyspace

TURN = 100_000  # µs in which a waiter that was called must try again; as in queue.lua
LINGER = 3000  # ms that a queue is kept after its lock has expired; as in queue.lua


class QueueScripts(Keyspace):
    """The functions of queue.lua, line by line, to be read next to it."""

    def _call_first(
        self, key: str, now: int, waiter: bytes = b"", ticket: float = math.inf
    ) -> tuple[bytes, float] | None:
        for _ in range(1000):
            queue = self.queue(key)
            name = min(queue, key=lambda name: (queue[name], name), default=waiter)
            score = queue.get(name, 0.0)
            if name == waiter or (score >= 0 and (ticket, waiter) < (score, name)):
                return None
            if score < 0 and now < -score:
                return name, -score - now
            channel, blank, _number = name.rpartition(b" ")
            if score >= 0 and blank and self.publish(channel.decode(), name):
                queue[name] = -now - TURN
                return name, TURN
            self._leave(key, name)
        return None

    def _leave(self, key: str, name: bytes) -> None:
        queue = self.queue(key)
        queue.pop(name, None)
        if not queue:
            self.sets.pop(key, None)
            self.ends.pop(key, None)

    def _stand(self, key: str, waiter: bytes, ticket: float, lasts: int) -> int:
        if not waiter or self.get(key) is not None:
            return -1
        self.queue(key)
        queue = self.sets.setdefault(key, {})
        queue[waiter] = ticket
        self.ends[key] = self._ms + lasts + LINGER
        return sorted(queue, key=lambda name: (queue[name], name)).index(waiter)

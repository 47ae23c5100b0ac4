"""The script shorten.lua in Python, to be read next to it."""

from __future__ import annotations

from redlock_django.backends.memory_keyspace import Reply
from redlock_django.backends.memory_queue import QueueScripts, channel_of
from redlock_django.engine.statuses import ABSENT, GRANTED, REFUSED


class ReleaseScripts(QueueScripts):
    """The script of a release that leaves the lock for a while, and the reply of a refusal."""

    def _refuse(self, now: int, index: int, key: str, lock: bytes, fence: int = 0) -> Reply:
        return [REFUSED, now, index, self.pttl(key), fence, lock[:32]]

    def _shorten(self, now: int, keys: list[str], argv: list[bytes]) -> Reply:
        waiter, left, count = argv[3], int(argv[4]), len(argv) - 5
        fault, other_key = 0, ""
        other: bytes | None = None
        locks, queues = keys[2 : 2 + count], keys[2 + count :]
        for index, (key, queue) in enumerate(zip(locks, queues, strict=True), 1):
            self.remove(queue, waiter)
            lock = self.get(key)
            if lock != argv[1]:
                if not fault:
                    fault, other, other_key = index, lock, key
            elif self.pttl(key) > left:
                self.strings[key] = (lock, now // 1000 + left)
                listed, resource = self.queue(keys[0]), argv[4 + index]
                if resource in listed:
                    listed[resource] = now // 1000 + left
                if (first := self._first(queue)) and (channel := channel_of(first)):
                    self.publish(channel.decode(), b" " + first)
        if argv[2] != b"0":
            self.set(keys[1], b"1", int(argv[2]))
        if not fault:
            return [GRANTED, now]
        if other is not None:
            return self._refuse(now, fault, other_key, other)
        return [ABSENT, now, fault]

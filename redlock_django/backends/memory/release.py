"""The script release.lua in Python, to be read next to it."""

from __future__ import annotations

from redlock_django.backends.memory.keyspace import Reply
from redlock_django.backends.memory.queue import QueueScripts, channel_of
from redlock_django.engine.protocol.statuses import ABSENT, GRANTED, REFUSED


class ReleaseScripts(QueueScripts):
    """The script of a release, and the reply of a refusal."""

    def _refuse(self, now: int, index: int, key: str, lock: bytes, fence: int = 0) -> Reply:
        return [REFUSED, now, index, self.pttl(key), fence, lock[:32]]

    def _release(self, moment: int, keys: list[str], argv: list[bytes]) -> Reply:
        value, how, resources = argv[1], argv[2] or b"0 0 1 ", argv[3:]
        tomb, shorter, calls, waiter = how.split(b" ", 3)
        left, now = int(shorter), 0
        fault, other_key = 0, ""
        other: bytes | None = None
        locks, others = keys[1 : 1 + len(resources)], keys[1 + len(resources) :]
        queues = others if tomb == b"0" else others[1:]
        for index, (key, resource) in enumerate(zip(locks, resources, strict=True), 1):
            queue = queues[index - 1] if queues else ""
            lock = self.get(key)
            has_waiters = bool(self.queue(queue) or self.get(queue))
            is_called = has_waiters and calls == b"1"
            if is_called or left:
                now = moment
            if has_waiters:
                self.remove(queue, waiter)
            if lock == value and left:
                if self.pttl(key) > left:
                    self._shorten(keys[0], key, resource, left)
                    if is_called:
                        self._ask_to_try(queue)
            elif lock in (None, value):
                self.strings.pop(key, None)
                self.remove(keys[0], resource)
                if is_called:
                    self._call_first(queue, moment)
            if lock != value and not fault:
                fault, other, other_key = index, lock, key
        if tomb != b"0":
            self.set(others[0], b"1", int(tomb))
        if not fault:
            return [GRANTED, now]
        if other is not None:
            return self._refuse(now, fault, other_key, other)
        return [ABSENT, now, fault]

    def _shorten(self, held: str, key: str, resource: bytes, left: int) -> None:
        self.strings[key] = (self.strings[key][0], self._ms + left)
        listed = self.queue(held)
        if resource in listed:
            listed[resource] = self._ms + left

    def _ask_to_try(self, queue: str) -> None:
        if (first := self._first(queue)) and (channel := channel_of(first)):
            self.publish(channel.decode(), b" " + first)

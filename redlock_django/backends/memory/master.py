"""One master in memory: the scripts of `engine/protocol/lua` in Python.

`MemoryMaster` replies as a server does, and its clock can be set. The memory backend and
the simulator of the test suite both run it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from struct import Struct

from redlock_django.backends.memory.inspection import InspectionScripts
from redlock_django.backends.memory.keyspace import Argument, Reply
from redlock_django.backends.memory.release import ReleaseScripts
from redlock_django.engine.protocol.commands import Command
from redlock_django.engine.protocol.statuses import (
    ABSENT,
    BURIED,
    CORRUPT,
    FENCE_AHEAD,
    GRANTED,
    KNOWN,
    MARKED,
    MISMATCH,
    NOT_READY,
    RESERVED,
    UNMARKED,
)

_FENCE = re.compile(rb"\d{1,16}")
_OURS = re.compile(rb"[0-9a-fA-F]{32} \{")
_NUMBERS = Struct("<5d")
_NOBODY = (b"", b"", b"")
_MARKER = re.compile(rb"([0-9a-fA-F]+) (\d+) (\S+)")


def encoded(argv: Sequence[Argument]) -> list[bytes]:
    """Return ARGV as a server receives it, in bytes."""
    return [part if isinstance(part, bytes) else str(part).encode() for part in argv]


class MemoryMaster(ReleaseScripts, InspectionScripts):
    """One master in memory; `time` returns its clock in µs."""

    def say(self, command: Command, number: int, marker: bytes = b"", ready_at: int = 0) -> Reply:
        """Return the reply to a command, as it would arrive on a connection."""
        argv: list[Argument] = [number, *command.arguments()]
        if command.trusted:
            argv += [marker, ready_at]
        return self.eval(command.name, list(command.keys()), argv)

    def eval(self, script: str, keys: list[str], argv: list[Argument]) -> Reply:
        """Return the reply of the script of that name to these KEYS and ARGV."""
        return self.run(script, keys, encoded(argv))

    def run(self, script: str, keys: list[str], argv: list[bytes]) -> Reply:
        """Return the same reply for ARGV in bytes."""
        body: Callable[[int, list[str], list[bytes]], Reply] = getattr(self, f"_{script}")
        with self.alone:
            now = self.time()
            self._ms = now // 1000
            try:
                return [int(argv[0]), *body(now, keys, argv)]
            finally:
                self._ms = 0

    def _ready(self, keys: list[str], argv: list[bytes], now: int) -> bool:
        return self.get(keys[0]) == argv[-2] and now >= int(argv[-1])

    def _take(
        self,
        keys: list[str],
        pairs: list[tuple[str, str]],
        resources: list[bytes],
        fences: list[int],
        fence_ttl: int,
        value: bytes,
        ttl: int,
        max_ttl: int | None = None,
    ) -> bool:
        """Raise the fences and set the locks; return False if a lock key has another type."""
        done: list[tuple[str, bytes]] = []
        for (key, fence_key), resource, fence in zip(pairs, resources, fences, strict=True):
            if max_ttl is None:
                self._add_to_index(keys[1], ttl, resource)
            else:
                self._add_grant(keys[1], ttl, resource, max_ttl)
            self.set(fence_key, b"%d" % fence, fence_ttl)
            if self.get(key) is None:
                if key in self.sets:
                    self.remove(keys[1], resource)
                    for earlier, listed in done:
                        del self.strings[earlier]
                        self.remove(keys[1], listed)
                    return False
                self.set(key, value, ttl)
                done.append((key, resource))
        return True

    # The scripts, line by line as in engine/protocol/lua, to be read next to them.

    def _acquire(self, now: int, keys: list[str], argv: list[bytes]) -> Reply:
        value = argv[1]
        proposal, ttl, skew, fence_ttl, max_ttl = map(int, _NUMBERS.unpack(argv[2]))
        count = (len(keys) - 3) // 3
        number, _, waiter = argv[3 + count].partition(b" ") if len(argv) > 5 + count else _NOBODY
        age = proposal - int(number or 0)
        if not self._ready(keys, argv, now):
            return [NOT_READY, now]
        if self.get(keys[2]) is not None:
            return [BURIED, now]
        proposal = min(max(proposal, now - skew), now + skew)
        ticket = proposal - age if waiter else math.inf
        pairs, queues = list(zip(keys[3:-count:2], keys[4:-count:2], strict=True)), keys[-count:]
        fences = []
        for index, (key, fence_key) in enumerate(pairs, 1):
            queue = queues[index - 1]
            lock, fence = self.get(key), self.get(fence_key)
            if fence is not None and not _FENCE.fullmatch(fence):
                return [CORRUPT, now]
            stored = _number(fence)
            if lock is not None and lock != value:
                left = self.pttl(key)
                is_ours = _OURS.match(lock) is not None
                if left > max_ttl and is_ours:
                    left = max_ttl
                    self.strings[key] = (lock, now // 1000 + left)
                shown = max_ttl if left < 0 else left
                self._add_to_index(keys[1], shown, argv[2 + index], new_only=is_ours)
                ahead = self._stand(queue, waiter, ticket, max_ttl if left < 0 else left)
                self._pass_on(pairs, queues, index, waiter, now)
                return [*self._refuse(now, index, key, lock, stored), ahead]
            if lock is None:
                first = self._call_first(queue, now, waiter, ticket)
                if first is not None:
                    name, us = first
                    left = math.ceil(us / 1000)
                    ahead = self._stand(queue, waiter, ticket, left)
                    self._pass_on(pairs, queues, index, waiter, now)
                    return [RESERVED, now, index, left, stored, name, ahead]
            if lock is None or fence is None:
                stored = max(stored + 1, proposal)
            if stored > now + 2 * skew:
                return [FENCE_AHEAD, now]
            fences.append(stored)
        if self.get(keys[1]) is not None:
            return [CORRUPT, now]
        resources = argv[3 : 3 + count]
        if not self._take(keys, pairs, resources, fences, fence_ttl, value, ttl, max_ttl):
            return [CORRUPT, now]
        if now % 16 == 0:
            self._trim(keys[1], now // 1000)
        for queue in queues:
            self.remove(queue, waiter)
        return [GRANTED, now, *fences]

    def _pass_on(
        self,
        pairs: list[tuple[str, str]],
        queues: list[str],
        index: int,
        waiter: bytes,
        now: int,
    ) -> None:
        for another, ((key, _), queue) in enumerate(zip(pairs, queues, strict=True), 1):
            if another != index and waiter in self.queue(queue):
                self.remove(queue, waiter)
                if self.get(key) is None:
                    self._call_first(queue, now)

    def _confirm(self, now: int, keys: list[str], argv: list[bytes]) -> Reply:
        if not self._ready(keys, argv, now):
            return [NOT_READY, now]
        fences = []
        pairs = list(zip(keys[1::2], keys[2::2], argv[4:-2], strict=True))
        for index, (key, fence_key, wanted) in enumerate(pairs, 1):
            lock, fence = self.get(key), self.get(fence_key)
            if lock is None:
                return [ABSENT, now, index]
            if lock != argv[1]:
                return self._refuse(now, index, key, lock)
            if fence is not None and not _FENCE.fullmatch(fence):
                return [CORRUPT, now]
            fences.append(max(_number(fence), int(wanted)))
            if fences[-1] > now + 2 * int(argv[2]):
                return [FENCE_AHEAD, now]
        for (_, fence_key, _), raised in zip(pairs, fences, strict=True):
            self.set(fence_key, b"%d" % raised, int(argv[3]))
        return [GRANTED, now, *fences]

    def _extend(self, now: int, keys: list[str], argv: list[bytes]) -> Reply:
        if not self._ready(keys, argv, now):
            return [NOT_READY, now]
        value, ttl, absent = argv[1], int(argv[2]), 0
        for index, key in enumerate(keys[2:], 1):
            lock = self.get(key)
            if lock is not None and lock != value:
                return self._refuse(now, index, key, lock)
            if lock is None and not absent:
                absent = index
        if absent:
            return [ABSENT, now, absent]
        for key, resource in zip(keys[2:], argv[3:-2], strict=True):
            if self.pttl(key) < ttl:
                self.set(key, value, ttl)
                self._add_to_index(keys[1], ttl, resource)
        return [GRANTED, now]

    def _heal(self, now: int, keys: list[str], argv: list[bytes]) -> Reply:
        if not self._ready(keys, argv, now):
            return [NOT_READY, now]
        if self.get(keys[2]) is not None:
            return [BURIED, now]
        value = argv[1]
        ttl, skew, fence_ttl = map(int, argv[2:5])
        count = (len(keys) - 3) // 2
        resources, wanted = argv[5 : 5 + count], argv[5 + count : -2]
        pairs = list(zip(keys[3::2], keys[4::2], strict=True))
        fences = []
        for index, (key, fence_key) in enumerate(pairs, 1):
            lock, fence = self.get(key), self.get(fence_key)
            if lock is not None and lock != value:
                return self._refuse(now, index, key, lock)
            if fence is not None and not _FENCE.fullmatch(fence):
                return [CORRUPT, now]
            fences.append(max(_number(fence), int(wanted[index - 1])))
            if fences[-1] > now + 2 * skew:
                return [FENCE_AHEAD, now]
        if not self._take(keys, pairs, resources, fences, fence_ttl, value, ttl):
            return [CORRUPT, now]
        return [GRANTED, now, *fences]

    def _join(self, now: int, keys: list[str], argv: list[bytes]) -> Reply:
        run, fingerprint, delay, mode = argv[1], argv[2], int(argv[3]), argv[4]
        seen = self.get(keys[0]) or b""
        match = _MARKER.fullmatch(seen)
        why = b""
        if match is None:
            if mode in (b"join", b"distrust"):
                return [UNMARKED, now, 0, b"", b""]
            why = b"fresh"
        elif match[3] != fingerprint and mode != b"reconfigure":
            return [MISMATCH, now, int(match[2]), seen, match[3]]
        elif match[1] != run:
            why = b"restarted"
        elif mode == b"distrust":
            why = b"stepped"
        elif mode in (b"join", b"mark") and int(match[2]) <= now + delay:
            return [KNOWN, now, int(match[2]), seen, b""]
        ready = now if mode == b"trust" else now + delay
        marker = b"%s %d %s" % (run, ready, fingerprint)
        self.set(keys[0], marker)
        return [MARKED, now, ready, marker, why]


def _number(fence: bytes | None) -> int:
    return int(float(fence or 0))  # a double, as in Lua

"""The scripts that inspect one master in memory."""

from __future__ import annotations

import math
import re
from typing import Any

from redlock_django.backends.memory.keyspace import Keyspace, Reply
from redlock_django.engine.protocol.statuses import GRANTED


class InspectionScripts(Keyspace):
    """The scripts that inspect a master, line by line as in engine/protocol/lua."""

    def _held(self, now: int, keys: list[str], argv: list[bytes]) -> Reply:
        self._trim(keys[0], now // 1000)
        held = self.still_held(keys[0], now // 1000)
        order = sorted(held, key=lambda member: (held[member], member), reverse=argv[2] == b"1")
        reply: Reply = [GRANTED, now, len(held)]
        for member in order[: int(argv[1])]:
            reply += [member, _left(held[member], now // 1000)]
        return reply

    def _find(self, now: int, keys: list[str], argv: list[bytes]) -> Reply:
        held = self.still_held(keys[0], now // 1000)
        reply: Reply = [GRANTED, now, b"0"]
        for member in sorted(held):
            if _matches(member, argv[2]):
                reply += [member, _left(held[member], now // 1000)]
        return reply

    def _look(self, now: int, keys: list[str], argv: list[bytes]) -> list[Any]:
        reply: list[Any] = [GRANTED, now]
        for key, queue in zip(keys[: len(keys) // 2], keys[len(keys) // 2 :], strict=True):
            reply += [self.get(key), self.pttl(key), len(self.queue(queue))]
        return reply

    def _scan(self, now: int, keys: list[str], argv: list[bytes]) -> Reply:
        kept = {key for key in list(self.strings) if self.get(key) is not None}
        kept |= {key for key, members in self.sets.items() if members}
        names = (key.encode() for key in sorted(kept))
        return [GRANTED, now, b"0", *(name for name in names if _matches(name, argv[2]))]

    def still_held(self, key: str, now_ms: int) -> dict[bytes, float]:
        """Return the entries of the index that have not expired."""
        return {m: expiry for m, expiry in self.queue(key).items() if expiry >= now_ms}


def _left(expiry: float, now_ms: int) -> int:
    return -1 if expiry == math.inf else int(expiry - now_ms)


def _matches(name: bytes, pattern: bytes) -> bool:
    """Return whether a glob pattern matches; a backslash escapes the next character."""
    parts = re.findall(rb"\\.|.", pattern, re.DOTALL)
    plain = {b"*": b".*", b"?": b"."}
    regex = b"".join(plain.get(part) or re.escape(part[-1:]) for part in parts)
    return re.fullmatch(regex, name, re.DOTALL) is not None

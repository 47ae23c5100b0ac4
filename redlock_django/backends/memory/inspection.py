"""The scripts of `engine/protocol/lua` that inspect a master, in Python."""

from __future__ import annotations

import math
import re
from typing import Any

from redlock_django.backends.memory.keyspace import Keyspace, ScriptReply
from redlock_django.engine.protocol.statuses import GRANTED


def held(keyspace: Keyspace, now: int, keys: list[str], argv: list[bytes]) -> ScriptReply:
    """Return the number of locks in the index, and the first of them in the order asked for."""
    keyspace.trim_index(keys[0], now // 1000)
    held = keyspace.still_held(keys[0], now // 1000)
    order = sorted(held, key=lambda member: (held[member], member), reverse=argv[2] == b"1")
    reply: ScriptReply = [GRANTED, now, len(held)]
    for member in order[: int(argv[1])]:
        reply += [member, _left(held[member], now // 1000)]
    return reply


def find(keyspace: Keyspace, now: int, keys: list[str], argv: list[bytes]) -> ScriptReply:
    """Return the locks in the index whose names match a pattern."""
    held = keyspace.still_held(keys[0], now // 1000)
    reply: ScriptReply = [GRANTED, now, b"0"]
    for member in sorted(held):
        if _matches(member, argv[2]):
            reply += [member, _left(held[member], now // 1000)]
    return reply


def look(keyspace: Keyspace, now: int, keys: list[str], argv: list[bytes]) -> list[Any]:
    """Return the value, TTL and number of waiters of each resource."""
    reply: list[Any] = [GRANTED, now]
    for key, queue in zip(keys[: len(keys) // 2], keys[len(keys) // 2 :], strict=True):
        reply += [keyspace.get(key), keyspace.pttl(key), len(keyspace.sorted_set(queue))]
    return reply


def scan(keyspace: Keyspace, now: int, keys: list[str], argv: list[bytes]) -> ScriptReply:
    """Return the keys that match a pattern."""
    kept = {key for key in list(keyspace.strings) if keyspace.get(key) is not None}
    kept |= {key for key, members in keyspace.sets.items() if members}
    names = (key.encode() for key in sorted(kept))
    return [GRANTED, now, b"0", *(name for name in names if _matches(name, argv[2]))]


def _left(expiry: float, now_ms: int) -> int:
    return -1 if expiry == math.inf else int(expiry - now_ms)


def _matches(name: bytes, pattern: bytes) -> bool:
    """Return whether a glob pattern matches; a backslash escapes the next character."""
    parts = re.findall(rb"\\.|.", pattern, re.DOTALL)
    plain = {b"*": b".*", b"?": b"."}
    regex = b"".join(plain.get(part) or re.escape(part[-1:]) for part in parts)
    return re.fullmatch(regex, name, re.DOTALL) is not None

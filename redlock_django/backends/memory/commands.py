"""The commands of a server that the scripts use, over a `Keyspace`.

Each is the method of its name, and does what a server does for the arguments of the scripts, which
come in bytes. `tests/live/test_memory_commands.py` compares them with a real server.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from redlock_django.backends.memory.keyspace import Keyspace, key_of

WRONGTYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"

Members = dict[bytes, float]


class ServerError(Exception):
    """An error reply of a server in memory."""


def time(keyspace: Keyspace) -> list[bytes]:
    """Return the time at which the script began: seconds and µs."""
    seconds, micros = divmod(keyspace.now(), 1_000_000)
    return [b"%d" % seconds, b"%d" % micros]


# Keys of any type.


def delete(keyspace: Keyspace, *keys: bytes) -> int:
    """Delete keys; return how many there were."""
    return sum(keyspace.drop(key_of(key)) for key in keys)


def pttl(keyspace: Keyspace, key: bytes) -> int:
    """Return the ms that a key lasts, -1 without an end, -2 without a value."""
    return keyspace.pttl(key_of(key))


def pexpire(keyspace: Keyspace, key: bytes, left: bytes) -> int:
    """Set the ms that a key lasts; return whether there is one."""
    return int(keyspace.expire(key_of(key), float(left)))


def scan(keyspace: Keyspace, *args: bytes) -> list[Any]:
    """Return every key that matches, in one step."""
    return [b"0", [key for key in keyspace.names() if _is_chosen(key, args[1:])]]


# Strings.


def get(keyspace: Keyspace, key: bytes) -> bytes | None:
    """Return a string."""
    name = key_of(key)
    if keyspace.sorted_set(name):
        raise ServerError(WRONGTYPE)
    return keyspace.get(name)


def mget(keyspace: Keyspace, *keys: bytes) -> list[bytes | None]:
    """Return strings; None for keys of another type."""
    return [keyspace.get(key_of(key)) for key in keys]


def set_(keyspace: Keyspace, key: bytes, value: bytes, *options: bytes) -> bytes | None:
    """Set a string, with NX where no key is, with XX where one is, with PX for some ms."""
    name = key_of(key)
    if b"NX" in options or b"XX" in options:
        known = keyspace.pttl(name) != -2
        if known is not (b"XX" in options):
            return None
    keyspace.set(name, value, int(options[-1]) if b"PX" in options else math.inf)
    return b"OK"


# Sorted sets.


def zadd(keyspace: Keyspace, key: bytes, *args: bytes) -> int:
    """Add members; return how many are new, with CH how many are new or have another score."""
    name, flag = key_of(key), args[0] if args[0] in (b"NX", b"XX", b"CH") else b""
    pairs = args[1:] if flag else args
    members = _members(keyspace, key)
    added = changed = 0
    for score, member in zip(pairs[::2], pairs[1::2], strict=True):
        before = members.get(member)
        if before is None if flag == b"XX" else flag == b"NX" and before is not None:
            continue
        members[member] = float(score)
        added += before is None
        changed += before != members[member]
    if members:
        keyspace.sets[name] = members
    return changed if flag == b"CH" else added


def zrem(keyspace: Keyspace, key: bytes, *members: bytes) -> int:
    """Remove members; return how many there were."""
    known = _members(keyspace, key)
    gone = [member for member in members if member in known]
    for member in gone:
        keyspace.remove(key_of(key), member)
    return len(gone)


def zrange(
    keyspace: Keyspace, key: bytes, first: bytes, last: bytes, *options: bytes
) -> list[bytes]:
    """Return members by position; a negative position counts from the end."""
    ranked = _ranked(_members(keyspace, key))
    begin, end = (n if n >= 0 else len(ranked) + n for n in (int(first), int(last)))
    return _shown(ranked[max(begin, 0) : max(end + 1, 0)], options)


def zrank(keyspace: Keyspace, key: bytes, member: bytes) -> int | None:
    """Return the position of a member."""
    names = [name for name, _ in _ranked(_members(keyspace, key))]
    return names.index(member) if member in names else None


def zrangebyscore(
    keyspace: Keyspace, key: bytes, least: bytes, most: bytes, *options: bytes
) -> list[bytes]:
    """Return members by score, the least first."""
    return _shown(_within(keyspace, key, least, most), options)


def zcount(keyspace: Keyspace, key: bytes, least: bytes, most: bytes) -> int:
    """Return how many members have a score between two."""
    return len(_within(keyspace, key, least, most))


def publish(keyspace: Keyspace, channel: bytes, message: bytes) -> int:
    """Publish a message; return how many have heard it."""
    return int(keyspace.publish(key_of(channel), message))


COMMANDS: Mapping[bytes, Callable[..., Any]] = {
    b"DEL": delete,
    b"GET": get,
    b"MGET": mget,
    b"PEXPIRE": pexpire,
    b"PTTL": pttl,
    b"PUBLISH": publish,
    b"SCAN": scan,
    b"SET": set_,
    b"TIME": time,
    b"ZADD": zadd,
    b"ZCOUNT": zcount,
    b"ZRANGE": zrange,
    b"ZRANGEBYSCORE": zrangebyscore,
    b"ZRANK": zrank,
    b"ZREM": zrem,
}


def _members(keyspace: Keyspace, key: bytes) -> Members:
    name = key_of(key)
    if keyspace.get(name) is not None:
        raise ServerError(WRONGTYPE)
    return keyspace.sorted_set(name)


def _ranked(members: Members) -> list[tuple[bytes, float]]:
    return sorted(members.items(), key=lambda item: (item[1], item[0]))


def _within(keyspace: Keyspace, key: bytes, least: bytes, most: bytes) -> list[tuple[bytes, float]]:
    low, high = float(least.removeprefix(b"(")), float(most.removeprefix(b"("))
    return _ranked(
        {
            name: score
            for name, score in _members(keyspace, key).items()
            if (low < score if least.startswith(b"(") else low <= score)
            and (score < high if most.startswith(b"(") else score <= high)
        }
    )


def _shown(items: Iterable[tuple[bytes, float]], options: tuple[bytes, ...]) -> list[bytes]:
    chosen = list(items)
    if b"LIMIT" in options:
        at = options.index(b"LIMIT")
        chosen = chosen[int(options[at + 1]) :][: int(options[at + 2])]
    if b"WITHSCORES" not in options:
        return [member for member, _ in chosen]
    return [part for member, score in chosen for part in (member, b"%.17g" % score)]


def _is_chosen(name: bytes, options: tuple[bytes, ...]) -> bool:
    """Return whether the glob pattern of MATCH matches; a backslash escapes the next character."""
    if b"MATCH" not in options:
        return True
    pattern = options[options.index(b"MATCH") + 1]
    parts = re.findall(rb"\\.|.", pattern, re.DOTALL)
    plain = {b"*": b".*", b"?": b"."}
    regex = b"".join(plain.get(part) or re.escape(part[-1:]) for part in parts)
    return re.fullmatch(regex, name, re.DOTALL) is not None

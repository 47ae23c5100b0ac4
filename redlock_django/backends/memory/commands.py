"""The commands of a server that the scripts use, over a `Keyspace`.

Each is the function of its name, and does what a server does for the arguments of the scripts.
Keys, members and messages come in bytes, numbers as such or in bytes. False means that there is no
value. `tests/live/test_memory_commands.py` compares the replies with those of a real server.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

from redlock_django.backends.memory.keyspace import Keyspace, key_of

WRONGTYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"

Members = dict[bytes, float]
Number = bytes | float
Nil = Literal[False]
Ranked = tuple[float, bytes]  # a score and its member


class ServerError(Exception):
    """An error reply of a server in memory."""


def time(keyspace: Keyspace) -> list[bytes]:
    """Return the time at which the script began: seconds and µs."""
    seconds, micros = divmod(keyspace.now(), 1_000_000)
    return [b"%d" % seconds, b"%d" % micros]


# Keys of any type.


def delete(keyspace: Keyspace, *keys: bytes) -> int:
    """Delete keys; return how many there were."""
    return sum([keyspace.drop(key_of(key)) for key in keys])


def pttl(keyspace: Keyspace, key: bytes) -> int:
    """Return the ms that a key lasts, -1 without an end, -2 without a value."""
    return keyspace.pttl(key_of(key))


def pexpire(keyspace: Keyspace, key: bytes, left: Number) -> int:
    """Set the ms that a key lasts; return whether there is one."""
    return int(keyspace.expire(key_of(key), float(left)))


# Strings.


def get(keyspace: Keyspace, key: bytes) -> bytes | Nil:
    """Return a string."""
    name = key_of(key)
    value = keyspace.get(name)
    if value is None and keyspace.sorted_set(name):
        raise ServerError(WRONGTYPE)
    return False if value is None else value


def mget(keyspace: Keyspace, *keys: bytes) -> list[bytes | Nil]:
    """Return strings; False for keys of another type."""
    values = [keyspace.get(key_of(key)) for key in keys]
    return [False if value is None else value for value in values]


def set_(keyspace: Keyspace, key: bytes, value: Number, *options: Number) -> bytes | Nil:
    """Set a string, with NX where no key is, with XX where one is, with PX for some ms."""
    name = key_of(key)
    if b"NX" in options or b"XX" in options:
        known = keyspace.pttl(name) != -2
        if known is not (b"XX" in options):
            return False
    text = value if isinstance(value, bytes) else b"%.17g" % value
    keyspace.set(name, text, int(options[-1]) if b"PX" in options else math.inf)
    return b"OK"


# Sorted sets.


def zadd(keyspace: Keyspace, key: bytes, *args: Any) -> int:
    """Add members; return how many are new, with CH how many are new or have another score."""
    flag = args[0] if args[0] in (b"NX", b"XX", b"CH") else b""
    pairs = args[1:] if flag else args
    members = _members(keyspace, key)
    added = changed = 0
    for score, member in zip(pairs[::2], pairs[1::2], strict=True):
        before = members.get(member)
        if before is None if flag == b"XX" else flag == b"NX" and before is not None:
            continue
        after = members[member] = float(score)
        added += before is None
        changed += before != after
    if added:
        keyspace.sets[key_of(key)] = members
    return changed if flag == b"CH" else added


def zrem(keyspace: Keyspace, key: bytes, *members: bytes) -> int:
    """Remove members; return how many there were."""
    known = _members(keyspace, key)
    gone = [member for member in members if member in known]
    for member in gone:
        keyspace.remove(key_of(key), member)
    return len(gone)


def zrange(
    keyspace: Keyspace, key: bytes, first: Number, last: Number, *options: bytes
) -> list[bytes]:
    """Return members by position; a negative position counts from the end."""
    ranked = _ranked(_members(keyspace, key))
    begin, end = (n if n >= 0 else len(ranked) + n for n in (int(first), int(last)))
    return _shown(ranked[max(begin, 0) : max(end + 1, 0)], options)


def zrank(keyspace: Keyspace, key: bytes, member: bytes) -> int | Nil:
    """Return the position of a member."""
    members = _members(keyspace, key)
    score = members.get(member)
    return score is not None and _ranked(members).index((score, member))


def zrangebyscore(
    keyspace: Keyspace, key: bytes, least: Number, most: Number, *options: Any
) -> list[bytes]:
    """Return members by score, the least first."""
    return _shown(_within(keyspace, key, least, most), options)


def zcount(keyspace: Keyspace, key: bytes, least: Number, most: Number) -> int:
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
    members = keyspace.sorted_set(name)
    if not members and keyspace.get(name) is not None:
        raise ServerError(WRONGTYPE)
    return members


def _ranked(members: Members) -> list[Ranked]:
    """Return scores and members in the order of a sorted set: equal scores by member."""
    return sorted([(score, name) for name, score in members.items()])


def _within(keyspace: Keyspace, key: bytes, least: Number, most: Number) -> list[Ranked]:
    (low, above), (high, below) = _bound(least), _bound(most)
    return _ranked(
        {
            name: score
            for name, score in _members(keyspace, key).items()
            if (low < score if above else low <= score)
            and (score < high if below else score <= high)
        }
    )


def _bound(bound: Number) -> tuple[float, bool]:
    """Return a bound, and whether it is excluded."""
    if isinstance(bound, bytes) and bound.startswith(b"("):
        return float(bound[1:]), True
    return float(bound), False


def _shown(items: list[Ranked], options: tuple[Any, ...]) -> list[bytes]:
    if b"LIMIT" in options:
        at = options.index(b"LIMIT")
        items = items[int(options[at + 1]) :][: int(options[at + 2])]
    if b"WITHSCORES" not in options:
        return [member for _, member in items]
    return [part for score, member in items for part in (member, b"%.17g" % score)]

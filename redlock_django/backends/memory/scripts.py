"""The scripts of `engine/protocol/lua` that lock, in Python, to be read next to them.

Each script gets the data of its server, the server's time in µs, KEYS and ARGV, and returns its
reply without the number of the round.
"""

from __future__ import annotations

import math
import re
from struct import Struct

from redlock_django.backends.memory.keyspace import Keyspace, ScriptReply
from redlock_django.backends.memory.queue import Queues, channel_of
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
    REFUSED,
    RESERVED,
    UNMARKED,
)

FENCE = re.compile(rb"\d{1,16}")
OURS = re.compile(rb"[0-9a-fA-F]{32} \{")
NUMBERS = Struct("<5d")
NOBODY = (b"", b"", b"")
_MARKER = re.compile(rb"([0-9a-fA-F]+) (\d+) (\S+)")


def acquire(keyspace: Keyspace, now: int, keys: list[str], argv: list[bytes]) -> ScriptReply:
    """Set every lock or none."""
    value = argv[1]
    proposal, ttl, skew, fence_ttl, max_ttl = map(int, NUMBERS.unpack(argv[2]))
    count = (len(keys) - 3) // 3
    number, _, waiter = argv[3 + count].partition(b" ") if len(argv) > 5 + count else NOBODY
    age = proposal - int(number or 0)
    if not is_trusted(keyspace, keys, argv, now):
        return [NOT_READY, now]
    if keyspace.get(keys[2]) is not None:
        return [BURIED, now]
    proposal = min(max(proposal, now - skew), now + skew)
    ticket = proposal - age if waiter else math.inf
    middle = 3 + 2 * count
    pairs = list(zip(keys[3:middle:2], keys[4:middle:2], strict=True))
    queue_keys = keys[middle : middle + count]
    queues, fences = Queues(keyspace), []
    for index, ((key, fence_key), queue) in enumerate(zip(pairs, queue_keys, strict=True), 1):
        lock, fence = keyspace.get(key), keyspace.get(fence_key)
        if fence is not None and not FENCE.fullmatch(fence):
            return [CORRUPT, now]
        stored = stored_fence(fence)
        status, left, other = REFUSED, 0, None
        if lock is not None and lock != value:
            left, other = keyspace.pttl(key), lock[:32]
            is_known = OURS.match(lock) is not None
            if left > max_ttl and is_known:
                left = max_ttl
                keyspace.strings[key] = (lock, now // 1000 + left)
            shown = max_ttl if left < 0 else left
            keyspace.add_to_index(keys[1], shown, argv[2 + index], new_only=is_known)
        elif lock is None:
            first = queues.call_first(queue, now, waiter, ticket)
            if first is not None:
                status, other, left = RESERVED, first[0], math.ceil(first[1] / 1000)
        if other is not None:
            lasts = max_ttl if left < 0 else left
            ahead = queues.stand(queue, waiter, ticket, lasts)
            pass_on(keyspace, pairs, queue_keys, index, waiter, now)
            return [status, now, index, left, stored, other, ahead]
        if lock is None or fence is None:
            stored = max(stored + 1, proposal)
        if stored > now + 2 * skew:
            return [FENCE_AHEAD, now]
        fences.append(stored)
    if keyspace.get(keys[1]) is not None:
        return [CORRUPT, now]
    resources = argv[3 : 3 + count]
    if not set_locks(keyspace, keys, pairs, resources, fences, fence_ttl, value, ttl, max_ttl):
        return [CORRUPT, now]
    if now % 16 == 0:
        keyspace.trim_index(keys[1], now // 1000)
    for queue in queue_keys:
        keyspace.remove(queue, waiter)
    return [GRANTED, now, *fences]


def pass_on(
    keyspace: Keyspace,
    pairs: list[tuple[str, str]],
    queue_keys: list[str],
    index: int,
    waiter: bytes,
    now: int,
) -> None:
    """Remove a waiter from all queues but one, so that their next waiters get their turns."""
    for another, ((key, _), queue) in enumerate(zip(pairs, queue_keys, strict=True), 1):
        if another != index and waiter in keyspace.sorted_set(queue):
            keyspace.remove(queue, waiter)
            if keyspace.get(key) is None:
                Queues(keyspace).call_first(queue, now)


def confirm(keyspace: Keyspace, now: int, keys: list[str], argv: list[bytes]) -> ScriptReply:
    """Store the fences where every lock still has this token."""
    if not is_trusted(keyspace, keys, argv, now):
        return [NOT_READY, now]
    fences = []
    pairs = list(zip(keys[1::2], keys[2::2], argv[4:-2], strict=True))
    for index, (key, fence_key, wanted) in enumerate(pairs, 1):
        lock, fence = keyspace.get(key), keyspace.get(fence_key)
        if lock is None:
            return [ABSENT, now, index]
        if lock != argv[1]:
            return refuse(keyspace, now, index, key, lock)
        if fence is not None and not FENCE.fullmatch(fence):
            return [CORRUPT, now]
        fences.append(max(stored_fence(fence), int(wanted)))
        if fences[-1] > now + 2 * int(argv[2]):
            return [FENCE_AHEAD, now]
    for (_, fence_key, _), raised in zip(pairs, fences, strict=True):
        keyspace.set(fence_key, b"%d" % raised, int(argv[3]))
    return [GRANTED, now, *fences]


def not_held(
    keyspace: Keyspace, now: int, locks: list[str], own: bytes, length: int | None = None
) -> ScriptReply | None:
    """Return the refusal unless the first `length` bytes of every lock are `own`; else None."""
    absent = 0
    for index, key in enumerate(locks, 1):
        lock = keyspace.get(key)
        if lock is not None and lock[:length] != own:
            return refuse(keyspace, now, index, key, lock)
        if lock is None and not absent:
            absent = index
    return [ABSENT, now, absent] if absent else None


def extend(keyspace: Keyspace, now: int, keys: list[str], argv: list[bytes]) -> ScriptReply:
    """Extend every lock if all of them still have this token."""
    if not is_trusted(keyspace, keys, argv, now):
        return [NOT_READY, now]
    value, ttl = argv[1], int(argv[2])
    if (refused := not_held(keyspace, now, keys[2:], value)) is not None:
        return refused
    for key, resource in zip(keys[2:], argv[3:-2], strict=True):
        if keyspace.pttl(key) < ttl:
            keyspace.set(key, value, ttl)
            keyspace.add_to_index(keys[1], ttl, resource)
    return [GRANTED, now]


def heal(keyspace: Keyspace, now: int, keys: list[str], argv: list[bytes]) -> ScriptReply:
    """Set the locks again on a master that forgot them."""
    if not is_trusted(keyspace, keys, argv, now):
        return [NOT_READY, now]
    if keyspace.get(keys[2]) is not None:
        return [BURIED, now]
    value = argv[1]
    ttl, skew, fence_ttl = map(int, argv[2:5])
    count = (len(keys) - 3) // 2
    resources, wanted = argv[5 : 5 + count], argv[5 + count : -2]
    pairs = list(zip(keys[3::2], keys[4::2], strict=True))
    fences = []
    for index, (key, fence_key) in enumerate(pairs, 1):
        lock, fence = keyspace.get(key), keyspace.get(fence_key)
        if lock is not None and lock != value:
            return refuse(keyspace, now, index, key, lock)
        if fence is not None and not FENCE.fullmatch(fence):
            return [CORRUPT, now]
        fences.append(max(stored_fence(fence), int(wanted[index - 1])))
        if fences[-1] > now + 2 * skew:
            return [FENCE_AHEAD, now]
    if not set_locks(keyspace, keys, pairs, resources, fences, fence_ttl, value, ttl):
        return [CORRUPT, now]
    return [GRANTED, now, *fences]


def swap(keyspace: Keyspace, now: int, keys: list[str], argv: list[bytes]) -> ScriptReply:
    """Replace the value of every lock, if all of them still have the old token."""
    if not is_trusted(keyspace, keys, argv, now):
        return [NOT_READY, now]
    value, old, ttl, tomb = argv[1], argv[2], int(argv[3]), int(argv[5])
    used, buried = keyspace.get(keys[2]), keyspace.get(keys[3])
    if used is not None or buried is not None:
        return [BURIED, now, (used or b"")[:32]]
    if (refused := not_held(keyspace, now, keys[4:], old + b" ", 33)) is not None:
        return refused
    rest = max(1, *map(keyspace.pttl, keys[4:]))
    left = max(ttl if argv[4] == b"1" else rest, ttl, 1)
    ends = b" %d " % (now // 1000 + rest)
    keyspace.set(keys[2], value[:32] + ends + (keyspace.get(keys[4]) or b""), tomb)
    for key, resource in zip(keys[4:], argv[6:-2], strict=True):
        keyspace.set(key, value, left)
        keyspace.add_to_index(keys[1], left, resource)
    return [GRANTED, now, rest]


def restore(keyspace: Keyspace, now: int, keys: list[str], argv: list[bytes]) -> ScriptReply:
    """Undo a swap: give every lock that has the new token the value and the end it had before."""
    value, tomb = argv[1], int(argv[2])
    by, _, rest = (keyspace.get(keys[0]) or b"").partition(b" ")
    ends, _, before = rest.partition(b" ")
    is_own = by == value[:32]
    reply: ScriptReply = [GRANTED, now]
    for index, (key, resource) in enumerate(zip(keys[3:], argv[3:], strict=True), 1):
        lock = keyspace.get(key)
        if lock == value and is_own:
            left = max(int(ends) - now // 1000, 1)
            keyspace.set(key, before, left)
            keyspace.add_to_index(keys[1], left, resource)
        elif lock is not None:
            reply = refuse(keyspace, now, index, key, lock)
        else:
            reply = [ABSENT, now, index]
    if is_own:
        keyspace.strings.pop(keys[0], None)
    keyspace.set(keys[2], b"1", tomb)
    return reply


def release(keyspace: Keyspace, moment: int, keys: list[str], argv: list[bytes]) -> ScriptReply:
    """Release every lock that has this token, and call its first waiter."""
    value, how, resources = argv[1], argv[2] or b"0 0 ", argv[3:]
    tomb, shorter, waiter = how.split(b" ", 2)
    left, now = int(shorter), 0
    fault, other_key = 0, ""
    other: bytes | None = None
    locks, others = keys[1 : 1 + len(resources)], keys[1 + len(resources) :]
    queue_keys = others if tomb == b"0" else others[1:]
    slots = queue_keys[len(resources) :]
    for index, (key, resource) in enumerate(zip(locks, resources, strict=True), 1):
        queue = queue_keys[index - 1] if queue_keys else ""
        lock = keyspace.get(key)
        has_waiters = bool(keyspace.sorted_set(queue) or keyspace.get(queue))
        if has_waiters or left:
            now = moment
        if has_waiters and waiter:
            keyspace.remove(queue, waiter)
        if lock == value and left:
            if keyspace.pttl(key) > left:
                shorten(keyspace, keys[0], key, resource, left)
                if has_waiters:
                    ask_to_try(keyspace, queue)
        elif lock in (None, value):
            keyspace.strings.pop(key, None)
            keyspace.remove(keys[0], resource)
            if has_waiters and not slots:
                Queues(keyspace).call_first(queue, moment)
        if has_waiters and slots:
            free = [slot for slot, lock in enumerate(slots) if keyspace.get(lock) is None]
            # The slot of this release is named last: earlier calls have named the others.
            free.sort(key=lambda slot: (slots[slot] == key, -slot))
            if free:
                Queues(keyspace).call_first(queue, moment, free=len(free), slots=free)
        if lock != value and not fault:
            fault, other, other_key = index, lock, key
    if tomb != b"0":
        keyspace.set(others[0], b"1", int(tomb))
    if not fault:
        return [GRANTED, now]
    if other is not None:
        return refuse(keyspace, now, fault, other_key, other)
    return [ABSENT, now, fault]


def shorten(keyspace: Keyspace, held: str, key: str, resource: bytes, left: int) -> None:
    """Shorten the TTL of a lock, and its entry in the index, to `left` ms."""
    keyspace.strings[key] = (keyspace.strings[key][0], keyspace.script_ms + left)
    listed = keyspace.sorted_set(held)
    if resource in listed:
        listed[resource] = keyspace.script_ms + left


def ask_to_try(keyspace: Keyspace, queue: str) -> None:
    """Ask the first waiter, which sleeps until the TTL that it knows, to try again."""
    waiters = keyspace.sorted_set(queue)
    first = min(waiters, key=lambda name: (waiters[name], name), default=b"")
    if channel := channel_of(first):
        keyspace.publish(channel.decode(), b" " + first)


def join(keyspace: Keyspace, now: int, keys: list[str], argv: list[bytes]) -> ScriptReply:
    """Read or write the marker by which clients trust this master."""
    run, fingerprint, delay, mode = argv[1], argv[2], int(argv[3]), argv[4]
    seen = keyspace.get(keys[0]) or b""
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
    keyspace.set(keys[0], marker)
    return [MARKED, now, ready, marker, why]


# What the scripts share: trusted.lua, set_locks.lua and the reply of a refusal.


def is_trusted(keyspace: Keyspace, keys: list[str], argv: list[bytes], now: int) -> bool:
    """Return whether the master has the expected marker, and its ready-at is past."""
    return keyspace.get(keys[0]) == argv[-2] and now >= int(argv[-1])


def set_locks(
    keyspace: Keyspace,
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
            keyspace.add_to_index(keys[1], ttl, resource)
        else:
            keyspace.add_grant(keys[1], ttl, resource, max_ttl)
        keyspace.set(fence_key, b"%d" % fence, fence_ttl)
        if keyspace.get(key) is None:
            if key in keyspace.sets:
                keyspace.remove(keys[1], resource)
                for earlier, listed in done:
                    del keyspace.strings[earlier]
                    keyspace.remove(keys[1], listed)
                return False
            keyspace.set(key, value, ttl)
            done.append((key, resource))
    return True


def refuse(keyspace: Keyspace, now: int, index: int, key: str, lock: bytes) -> ScriptReply:
    """Return the reply of a master on which another client holds a lock."""
    return [REFUSED, now, index, keyspace.pttl(key), 0, lock[:32]]


def stored_fence(fence: bytes | None) -> int:
    """Return a stored fence as a number, 0 if there is none."""
    return int(float(fence or 0))  # a double, as in Lua

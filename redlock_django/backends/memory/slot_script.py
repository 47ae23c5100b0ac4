"""The script acquire_slot.lua in Python, to be read next to it."""

from __future__ import annotations

import math

from redlock_django.backends.memory.keyspace import Keyspace, ScriptReply
from redlock_django.backends.memory.queue import Queues
from redlock_django.backends.memory.scripts import (
    FENCE,
    NOBODY,
    NUMBERS,
    OURS,
    is_trusted,
    set_locks,
    stored_fence,
)
from redlock_django.engine.protocol.commands import TOKEN
from redlock_django.engine.protocol.statuses import (
    BURIED,
    CORRUPT,
    FENCE_AHEAD,
    GRANTED,
    NOT_READY,
    REFUSED,
    RESERVED,
)


def acquire_slot(keyspace: Keyspace, now: int, keys: list[str], argv: list[bytes]) -> ScriptReply:
    """Set the lock of one slot of a name that has several."""
    value = argv[1]
    proposal, ttl, skew, fence_ttl, max_ttl = map(int, NUMBERS.unpack(argv[2]))
    number, _, waiter = argv[4].partition(b" ") if len(argv) > 6 else NOBODY
    age = proposal - int(number or 0)
    if not is_trusted(keyspace, keys, argv, now):
        return [NOT_READY, now]
    if keyspace.get(keys[2]) is not None:
        return [BURIED, now]
    proposal = min(max(proposal, now - skew), now + skew)
    ticket = proposal - age if waiter else math.inf
    key, fence_key, queue, slots = keys[3], keys[4], keys[5], keys[6:]
    lock, fence = keyspace.get(key), keyspace.get(fence_key)
    if fence is not None and not FENCE.fullmatch(fence):
        return [CORRUPT, now]
    stored, queues = stored_fence(fence), Queues(keyspace)
    free: list[int] = []
    if lock != value:
        holders = [keyspace.get(slot) for slot in slots]
        lasts = [
            shortened(keyspace, slot, holder, max_ttl)
            for slot, holder in zip(slots, holders, strict=True)
            if holder is not None
        ]
        free = [slot for slot, holder in enumerate(holders) if holder is None]
        status, left = REFUSED, min((left for left in lasts if left >= 0), default=-1)
        other = lock and lock[:32]
        taken = b"".join(b"0" if holder is None else b"1" for holder in holders)
        if free and (first := queues.call_first(queue, now, waiter, ticket, len(free), free)):
            status, other, left = RESERVED, first[0], math.ceil(first[1] / 1000)
            taken = b"1" * len(slots)
        if other is not None:
            if not (free or waiter) and len(other) == TOKEN:
                return [status, now, 1, left, stored, other, -1]
            ahead = queues.stand(queue, waiter, ticket, max_ttl if left < 0 else left)
            return [status, now, 1, left, stored, other, ahead, taken]
    if lock is None or fence is None:
        stored = max(stored + 1, proposal)
    if stored > now + 2 * skew:
        return [FENCE_AHEAD, now]
    if keyspace.get(keys[1]) is not None:
        return [CORRUPT, now]
    resources = argv[3:4]
    pairs = [(key, fence_key)]
    if not set_locks(keyspace, keys, pairs, resources, [stored], fence_ttl, value, ttl, max_ttl):
        return [CORRUPT, now]
    if now % 16 == 0:
        keyspace.trim_index(keys[1], now // 1000)
    keyspace.remove(queue, waiter)
    others = [slot for slot in free if slots[slot] != key]
    if waiter and others:
        queues.call_first(queue, now, free=len(others), slots=others)
    return [GRANTED, now, stored]


def shortened(keyspace: Keyspace, key: str, lock: bytes, max_ttl: int) -> int:
    """Return the ms that a lock lasts, at most `max_ttl` if it is one of this package."""
    left = keyspace.pttl(key)
    if left > max_ttl and OURS.match(lock):
        left = max_ttl
        keyspace.strings[key] = (lock, keyspace.script_ms + left)
    return left

"""The queues of one master in memory: the functions that queue.lua gives the other scripts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from redlock_django.backends.memory.keyspace import Keyspace
from redlock_django.engine.steps import proof_of_grant

TURN = 100_000  # µs in which a waiter that was called must try again; as in queue.lua
LINGER = 3000  # ms that a queue is kept after its lock has expired; as in queue.lua
LATE = 4e15  # µs added to the score of a late waiter; as in queue.lua
NEWEST = 8  # how many of the last waiters may be asked to watch a turn; as in queue.lua
FRESH, FRESHEST = 0.1, 1_000_000  # the part of the TTL, and the µs, for which an offer lasts


class StoredOffer(NamedTuple):
    """The offer of a waiter: what a release sets for it. Times are in µs, TTLs in ms."""

    value: bytes
    at: int
    proposal: int
    ttl: int
    skew: int
    fence_ttl: int
    max_ttl: int
    trusted: bytes
    tomb: str
    marker: str
    fence: str


class FreedLock(NamedTuple):
    """A lock that a release with this value has freed, to be granted to the next waiter."""

    value: bytes
    held: str
    lock: str
    resource: bytes


class Queues:
    """The queues of one server: the functions of queue.lua, to be read next to it.

    `offers` is the key of the offers of the queue, "" if there are none.
    """

    __slots__ = ("_keyspace", "_offers")

    def __init__(self, keyspace: Keyspace, offers: str = "") -> None:
        self._keyspace = keyspace
        self._offers = offers

    def call_first(
        self,
        key: str,
        now: int,
        waiter: bytes = b"",
        ticket: float = math.inf,
        free: int = 1,
        slots: Sequence[int] = (),
        freed: FreedLock | None = None,
    ) -> tuple[bytes, float] | None:
        """Call the first waiters whose processes listen, so that `free` waiters have a turn.

        A lock that is `freed` is granted to the first waiter, if that has left an offer. Returns
        one of the called waiters and the µs that its turn lasts; None if fewer are in front of
        `waiter`. The message contains the number of a slot if there are `slots`.
        """
        turns = 0
        for _ in range(1000):
            queue = self._keyspace.sorted_set(key)
            order = sorted(queue, key=lambda name: (queue[name], name))
            name = order[turns] if turns < len(order) else waiter
            score = queue.get(name, 0.0)
            if name == waiter or (score >= 0 and (ticket, waiter) < (score, name)):
                return None
            if queue.get(waiter, 0.0) >= LATE:
                return None
            left = -score - now if score < 0 and now < -score else 0
            channel = channel_of(name)
            slot = b"/%d" % slots[turns % len(slots)] if slots else b""
            if left:
                turns += 1
            elif not channel:
                self.leave(key, name)
            elif score < 0:
                queue[name] = LATE + now
                if channel != channel_of(waiter):
                    self._remove_process(key, channel, name)
                    turns = 0
            elif freed and score < LATE and self._grant(name, channel, now, freed):
                self._keyspace.remove(key, name)
                return None
            elif not self._keyspace.publish(channel.decode(), name + slot):
                self._remove_process(key, channel)
                turns = 0
            elif score >= LATE:
                return None
            else:
                queue[name] = -now - TURN
                if not waiter:
                    self._ask_to_watch(queue, name)
                turns, left = turns + 1, TURN
            if left and turns >= free:
                return name, left
        return None

    def _remove_process(self, key: str, channel: bytes, but: bytes = b"") -> None:
        for name in list(self._keyspace.sorted_set(key)):
            if name != but and channel_of(name) == channel:
                self.leave(key, name)

    def offer_of(self, name: bytes) -> StoredOffer | None:
        """Return the offer of a waiter, None if it has none."""
        offer = self._keyspace.hash(self._offers).get(name)
        return None if offer is None else StoredOffer(*offer)

    def _store_offer(self, name: bytes, offer: StoredOffer, lasts: int) -> None:
        keyspace, key = self._keyspace, self._offers
        if keyspace.get(key) is not None or keyspace.sorted_set(key):
            return  # another type
        keyspace.hash(key)
        keyspace.hashes.setdefault(key, {})[name] = offer
        keyspace.ends[key] = keyspace.script_ms + lasts + LINGER

    def leave(self, key: str, name: bytes) -> None:
        """Remove a waiter, with its offer."""
        self._keyspace.remove(key, name)
        self._keyspace.remove(self._offers, name)

    def _grant(self, name: bytes, channel: bytes, now: int, freed: FreedLock) -> bool:
        """Set a free lock by the offer of a waiter, and publish that; return whether it is set."""
        keyspace, offer = self._keyspace, self.offer_of(name)
        if offer is None or offer.value == freed.value:
            return False  # an undo must not set the lock again by the offer of its own attempt
        if not 0 <= now - offer.at <= min(offer.ttl * 1000 * FRESH, FRESHEST):
            return False
        if keyspace.get(offer.marker) != offer.trusted or keyspace.get(offer.tomb) is not None:
            return False
        stored = keyspace.get(offer.fence)
        stored = b"0" if stored is None else stored
        if not (stored.isdigit() and len(stored) <= 16):
            return False
        raised = max(int(stored) + 1, offer.proposal)
        if raised > now + 2 * offer.skew or keyspace.get(freed.held) is not None:
            return False
        keyspace.add_grant(freed.held, offer.ttl, freed.resource, offer.max_ttl)
        keyspace.set(offer.fence, b"%d" % raised, offer.fence_ttl)
        if keyspace.sorted_set(freed.lock) or keyspace.hash(freed.lock):
            keyspace.remove(freed.held, freed.resource)
            return False
        keyspace.set(freed.lock, offer.value, offer.ttl)
        proof = proof_of_grant(offer.value[:32], offer.trusted)
        if keyspace.publish(channel.decode(), b"%s=%s %d %d" % (name, proof, now, raised)):
            keyspace.ends[self._offers] = keyspace.script_ms + offer.ttl + LINGER
            return True
        del keyspace.strings[freed.lock]
        keyspace.remove(freed.held, freed.resource)
        return False

    def _ask_to_watch(self, queue: dict[bytes, float], name: bytes) -> None:
        last = sorted(queue, key=lambda name: (queue[name], name))[-NEWEST:]
        newest = [other for other in reversed(last) if other != name and channel_of(other)]
        others = [other for other in newest if channel_of(other) != channel_of(name)]
        for watcher in (*others, *newest)[:1]:
            self._keyspace.publish(channel_of(watcher).decode(), b" " + watcher)

    def stand(
        self,
        key: str,
        waiter: bytes,
        ticket: float,
        lasts: int,
        offer: StoredOffer | None = None,
    ) -> int:
        """Join the queue of a lock that lasts `lasts` ms, and leave an offer.

        Returns the number of waiters in front.
        """
        if not waiter or self._keyspace.get(key) is not None:
            return -1
        self._keyspace.sorted_set(key)
        queue = self._keyspace.sets.setdefault(key, {})
        queue[waiter] = ticket
        self._keyspace.ends[key] = self._keyspace.script_ms + lasts + LINGER
        if offer is not None:
            self._store_offer(waiter, offer, lasts)
        return sorted(queue, key=lambda name: (queue[name], name)).index(waiter)


def channel_of(name: bytes) -> bytes:
    """Return the wake channel of a waiter, b"" for an invalid name."""
    return name.rpartition(b" ")[0]

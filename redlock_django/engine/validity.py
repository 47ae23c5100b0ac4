"""How long a lock is valid: drift, the deadline, the lease and its states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from hashlib import sha256

from redlock_django.engine.protocol.slots import name_of, slot_of
from redlock_django.engine.quorum import Tally


def drift(ttl: float) -> float:
    """Return how far clocks may drift apart in `ttl` seconds: 1 % plus Redis's precision, 2 ms.

    Source: the Redlock page of redis.io, "clock drift".
    """
    return ttl * 0.01 + 0.002


def with_drift(seconds: float) -> float:
    """Return the TTL with which a master keeps a lock for at least `seconds` of any clock."""
    return seconds + drift(seconds)


def valid_until(ttl: float, started: float) -> float:
    """Return the moment up to which a lock of `ttl` seconds is certainly held.

    `started` is the clock before the first byte was sent, so the time that the round took is
    already subtracted.
    """
    return started + ttl - drift(ttl)


def end_of_min_hold(handed: Lease, left: float, now: float) -> float:
    """Return when the minimum hold of a lease ends that a client takes `now`; 0.0 if it has none.

    The servers had it for `left` seconds more: by that and the time that it was handed on for, the
    taker knows when that was, whatever its own clock shows. The lease of a giver has a `home`.
    """
    if not handed.earliest_end or handed.home is not None:
        return handed.earliest_end
    return now + handed.earliest_end - max(0.0, handed.until - left)


def fingerprint_of(token: bytes) -> str:
    """Return the fingerprint of a token, which may be shown: 8 hex digits of its hash."""
    return sha256(token).hexdigest()[:8]


class LeaseState(Enum):
    """The result of an extension."""

    RENEWED = "renewed"
    UNKNOWN = "unknown"  # too few masters answered; the lease keeps its old deadline
    LOST = "lost"


# A lease is never changed; a frozen class would take several times longer to create.
@dataclass(slots=True, unsafe_hash=True)
class Lease:
    """A held lock, as its holder knows it, whatever the store.

    `ttl` is in seconds; `started` and `until` are moments of the store's clock. `fences` has one
    fencing token for each resource. `holder` describes the holder to people, without the token.
    `waited` is the time in seconds before the attempt that won, 0.0 if that was the first;
    `attempts` is the number of that attempt, 0 if the store does not count them. `home` is the
    object that acquired the lease and must release it; only its store reads it.
    `earliest_end` is the end of the minimum hold, 0.0 if there is none: a release before that
    leaves the lock held until then, whatever happens to this process.
    """

    resources: tuple[str, ...]
    token: str = field(repr=False)
    """A value that no other lease has and that proves ownership. It is a secret: never show it."""

    holder: str = field(repr=False)
    ttl: float
    started: float
    until: float
    fences: tuple[int, ...]
    waited: float = 0.0
    attempts: int = 0
    home: object = field(default=None, repr=False, compare=False)
    earliest_end: float = field(default=0.0, kw_only=True)
    limit: int = field(default=1, kw_only=True)
    """How many clients may hold the name at once, each one slot of it."""
    givers: tuple[str, ...] = field(default=(), kw_only=True)
    """The fingerprints of the leases that were handed on before this one, the first one first."""
    ends: float = field(default=0.0, kw_only=True)
    """The end of a lease that was handed on, by the servers' clock; 0.0 if they share none."""

    @property
    def slot(self) -> int:
        """The number of the slot that this is, counted from 0."""
        return slot_of(self.resources[0])

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the resources; that of a slot is what it is a slot of."""
        return self.resources if self.limit == 1 else (name_of(self.resources[0]),)

    def held_for(self, clock: Callable[[], float]) -> float:
        """Return the seconds for which the lock stays held if it is released now."""
        return max(0.0, self.earliest_end - clock()) if self.earliest_end else 0.0

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the token, which may be shown and stored with a fence."""
        return fingerprint_of(self.token.encode())


@dataclass(slots=True, unsafe_hash=True)
class RedlockLease(Lease):
    """A lease on independent masters; its token has 32 hex digits.

    `granted` is how many masters had granted it when it was won. `reached` has the masters
    (0-based) that may have the lock, or still have `waiter` (its name, "" for none) in a queue.
    `tally` has the votes of the last extension or hand-on, which show the masters that still have
    the lock, and receives late ones. A lease that was only acquired has none: with many locks, the
    votes that granted them would make the garbage collector run twice as often.
    """

    granted: int = 0
    reached: frozenset[int] = frozenset()
    tally: Tally = field(default=Tally(0), repr=False, compare=False)
    waiter: str = ""

    @property
    def value(self) -> str:
        """The value of the lock's keys: the token, a space, and the holder."""
        return f"{self.token} {self.holder}"

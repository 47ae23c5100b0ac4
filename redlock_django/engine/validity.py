"""For how long a lock is ours: drift, the deadline, the lease and its states."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from hashlib import sha256

from redlock_django.engine.quorum import Tally


def drift(ttl: float) -> float:
    """How far clocks may run apart in `ttl` seconds: 1 % and 2 ms for Redis's own precision.

    Source: the Redlock page of redis.io, "clock drift".
    """
    return ttl * 0.01 + 0.002


def valid_until(ttl: float, started: float) -> float:
    """The moment up to which a lock of `ttl` seconds is surely ours.

    `started` is the clock before the first byte left, so whatever time the round took is
    gone from the validity already.
    """
    return started + ttl - drift(ttl)


def fingerprint_of(token: bytes) -> str:
    """What may be shown of a token: 8 hex digits of its hash."""
    return sha256(token).hexdigest()[:8]


class LeaseState(Enum):
    """What an extension found out."""

    RENEWED = "renewed"
    UNKNOWN = "unknown"  # too few masters answered; what was valid before still is
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A lock that is held, as one holder knows it.

    `value` is what stands on the masters: the token, a space, and who holds it. `ttl` in
    seconds; `started` and `until` are moments of the driver's clock. `fences` has one
    fencing token for each resource. `reached` holds the masters (0-based) that may carry
    the lock, or still have `waiter` (its name, "" for none) in a queue. `tally` is the last
    round's, whose late votes still come in. `waited` is how many seconds passed before the
    round that won it, 0.0 where that was the first. `home` is whatever took the lease and
    must give it back; the engine never looks at it.
    """

    resources: tuple[str, ...]
    value: str = field(repr=False)  # holds the token
    ttl: float
    started: float
    until: float
    fences: tuple[int, ...]
    reached: frozenset[int]
    tally: Tally = field(repr=False, compare=False)
    waiter: str = ""
    waited: float = 0.0
    home: object = field(default=None, repr=False, compare=False)

    @property
    def token(self) -> str:
        """The 32 hex digits that prove ownership: a capability, never to be shown."""
        return self.value.split(" ", 1)[0]

    @property
    def fingerprint(self) -> str:
        """What may be shown of the token, and stored beside a fence: 8 hex digits of its hash."""
        return fingerprint_of(self.token.encode())

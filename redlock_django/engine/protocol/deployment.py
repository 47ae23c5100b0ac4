"""The deployment all clients of the same masters share: masters, numbers, names of keys."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b

from redlock_django.engine.protocol.slots import name_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """The names of the masters, and the numbers that every client of them must share.

    `max_ttl`, `max_clock_skew`, `restart_delay` and `fence_ttl` are in seconds. `members`
    identifies the masters, so that clients with another list notice; it has letters and digits
    only (ValueError), and is "" for the `identity` of `names`. With `failover`, a replica may take
    the place of the only master at any time.
    """

    names: tuple[str, ...]
    prefix: str = "redlock"
    max_ttl: float = 60.0
    max_clock_skew: float = 0.5
    restart_delay: float = 63.75
    fence_ttl: float = 600.0
    members: str = ""
    failover: bool = False
    masters: int = field(init=False, compare=False, repr=False)
    """N: the number of configured masters, up or down."""
    skew: int = field(init=False, compare=False, repr=False)
    """`max_clock_skew` in µs."""
    constants: tuple[tuple[str, int], ...] = field(init=False, compare=False, repr=False)
    """The numbers that the scripts call by these names: `SKEW` is in µs, TTLs are in ms, and `NAME`
    is where the name of a resource begins in the key of its lock, counted from 1.
    """

    def __post_init__(self) -> None:
        object.__setattr__(self, "masters", len(self.names))
        object.__setattr__(self, "skew", round(self.max_clock_skew * 1_000_000))
        ttls = ("MAX_TTL", ms(self.max_ttl)), ("FENCE_TTL", ms(self.fence_ttl))
        name = len(self.lock("").encode()) + 1
        object.__setattr__(self, "constants", (("SKEW", self.skew), *ttls, ("NAME", name)))
        # A marker is read back by its words, and `numbers_of` by the letters of the last one.
        if not re.fullmatch(r"\w*", self.members):
            raise ValueError(f"members must be letters and digits only, not {self.members!r}")

    @property
    def fingerprint(self) -> str:
        """The numbers and the masters as one string, stored in every marker."""
        members = self.members or identity(self.names)
        # A client without PROFILE sends scripts that do not notice a failover.
        profile = "profile=failover," if self.failover else ""
        return (
            f"n={self.masters},{profile}ttl={ms(self.max_ttl)},skew={ms(self.max_clock_skew)},"
            f"delay={ms(self.restart_delay)},masters={members[:16]}"
        )

    @property
    def marker(self) -> str:
        """The key of the marker, which holds the time from which a master is trusted."""
        return f"{self.prefix}:master"

    @property
    def held(self) -> str:
        """The key of the index: a sorted set of the resources held on a master, by expiry in ms."""
        return f"{self.prefix}:held"

    def lock(self, resource: str) -> str:
        """Return the key of a lock."""
        return f"{self.prefix}:lock:{resource}"

    def fence(self, resource: str) -> str:
        """Return the key of a resource's fence counter."""
        return f"{self.prefix}:fence:{resource}"

    def queue(self, resource: str) -> str:
        """Return the key of a resource's queue: a sorted set of its waiters, by ticket.

        The slots of a name have one queue.
        """
        return f"{self.prefix}:queue:{name_of(resource)}"

    def wake(self, process: str) -> str:
        """Return the channel on which masters call the waiters of a process."""
        return f"{self.prefix}:wake:{process}"

    def tomb(self, token: str) -> str:
        """Return the key of a tombstone, which keeps a released token from being set again."""
        return f"{self.prefix}:tomb:{token}"


def identity(masters: Iterable[str]) -> str:
    """Return the identity of a list of masters: a hash, 32 hex digits. Their order is ignored."""
    return blake2b("\n".join(sorted(masters)).encode(), digest_size=16).hexdigest()


def numbers_of(fingerprint: str) -> str:
    """Return a deployment's fingerprint without the identity of its masters."""
    return re.sub(r",masters=\w+", "", fingerprint)


def ms(seconds: float) -> int:
    """Return seconds as whole milliseconds."""
    return round(seconds * 1000)

"""The vote: what the reply of one master means."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Ballot(Enum):
    """The kind of a master's answer."""

    GRANTED = "granted"
    REFUSED = "refused"  # the master answered no
    FAILED = "failed"  # the master did not answer, or its answer must not be counted


class Vote(NamedTuple):
    """The answer of one master in one round.

    `said` is its answer in words, "" for a lock that is held. `time` is the master's clock in µs,
    None if it did not answer. `fences` has one fencing token for each resource (granted), or the
    token of the resource at fault (refused). `ttl` is the remaining time of a refusing lock in ms,
    -1 if it has no expiry, or that of a lock before its token was replaced. `rival` identifies the
    holder or waiter in the way, `resource` is the index of the resource at fault, and `ahead` is
    the number of waiters in front of this client in its queue (-1 if the client is not in it).
    `reserved` is True if the lock is free, but it is a waiter's turn. `taken` has a character for
    each slot of a name that has several, "0" if this client may take it, or is empty if it may take
    none. `sent` is False only if no byte was sent to the master. `stale` is True if the vote failed
    because the connection had been closed while no client used it.
    """

    ballot: Ballot
    said: str = ""
    time: int | None = None
    fences: tuple[int, ...] = ()
    ttl: int | None = None
    rival: bytes | None = None
    resource: int = 0
    absent: bool = False
    ahead: int = -1
    reserved: bool = False
    taken: bytes = b""
    sent: bool = True
    stale: bool = False

    @property
    def reason(self) -> str:
        """The answer in words."""
        if self.said or self.ttl is None:
            return self.said
        why = "reserved for a waiter" if self.reserved else "held by another client"
        return f"{why} {'with no expiry' if self.ttl < 0 else f'for {self.ttl / 1000:.3g} s'}"

    def __repr__(self) -> str:  # without `rival`, which is a token
        return f"Vote({self.ballot.value}, {self.reason!r})"


def granted(time: int | None = None, fences: tuple[int, ...] = ()) -> Vote:
    """Return a vote that grants."""
    return Vote(Ballot.GRANTED, "granted", time, fences)


def failed(reason: str, *, sent: bool = True, time: int | None = None, stale: bool = False) -> Vote:
    """Return a vote that does not count, with its reason."""
    return Vote(Ballot.FAILED, reason, time, sent=sent, stale=stale)


NOT_ASKED = failed("not asked", sent=False)

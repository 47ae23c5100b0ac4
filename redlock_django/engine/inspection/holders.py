"""The holder of a resource, merged from what each deciding server has of it."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import NamedTuple

from redlock_django.engine.inspection.printable import printable
from redlock_django.engine.protocol.slots import MOST_SLOTS, name_of, slot_of
from redlock_django.engine.quorum import quorum
from redlock_django.engine.validity import fingerprint_of

EXPIRING = 2.0
"""Seconds left below which a held lock is called expiring: a renewed one keeps most of its TTL."""

_OURS = re.compile(rb"[0-9a-fA-F]{32} \{")
_YEAR_10000 = 253_402_300_800  # no date of Python's reaches it


class HoldingState(Enum):
    """The state of one resource, as far as its sightings show it."""

    HELD = "held"
    EXPIRING = "expiring"  # held, but not for long: it does not seem to be renewed
    PARTIAL = "partial"  # on too few servers: being acquired or released, or left behind
    DISAGREEING = "disagreeing"  # several holders, none of them on enough servers
    FOREIGN = "foreign"  # set by another client
    UNCLEAR = "unclear"  # on too few of those that answered; with the silent ones it may be held


def is_ours(value: bytes) -> bool:
    """Return whether this package wrote a lock's value: a token, a space, JSON of the holder."""
    return _OURS.match(value) is not None


class Sighting(NamedTuple):
    """The lock that one server, by name, has on a resource; `ttl` in seconds, None: no expiry."""

    server: str
    value: bytes
    ttl: float | None

    def __repr__(self) -> str:  # without the token
        return f"Sighting({self.server}, {self.fingerprint}, {self.left:g} s)"

    @property
    def ours(self) -> bool:
        """True if this package has set it."""
        return is_ours(self.value)

    @property
    def fingerprint(self) -> str:
        """The part of the token that may be shown: 8 hex digits of its hash."""
        return fingerprint_of(self.value.split(b" ", 1)[0] if self.ours else self.value)

    @property
    def left(self) -> float:
        """`ttl` as a number that can be compared."""
        return float("inf") if self.ttl is None else self.ttl


@dataclass(frozen=True, kw_only=True)
class Holding:
    """All that is known of one held resource.

    `servers` are the names of the servers that decide who holds it, answering or not, and `silent`
    those of them that did not answer. `leading` are the sightings of the holder that is on most
    servers, `rivals` those of all other holders. `waiters` is how many clients wait for the
    resource, by the longest queue on a server.
    """

    resource: str
    servers: tuple[str, ...]
    silent: frozenset[str]
    leading: tuple[Sighting, ...]
    rivals: tuple[Sighting, ...]
    waiters: int = 0

    @property
    def name(self) -> str:
        """The name that is held, which has several slots if it has a limit."""
        return name_of(self.resource)

    @property
    def slot(self) -> int | None:
        """The number of the slot of its name that this is; None for a lock."""
        return slot_in(self.resource, self.holder)

    @property
    def limit(self) -> int | None:
        """How many clients may hold the name at once, as its holder states; None for a lock."""
        return limit_of(self.holder)

    @property
    def label(self) -> str:
        """The name for people: "export, slot 1" for a slot."""
        return label_of(self.resource, self.holder)

    @property
    def value(self) -> bytes:
        """The whole value of the leading holder. It holds the token: never show it."""
        return self.leading[0].value

    @property
    def fingerprint(self) -> str:
        """Which lock this is, in 8 hex digits, without its token."""
        return self.leading[0].fingerprint

    @property
    def has_quorum(self) -> bool:
        """True if the leading holder is on enough servers to exclude all others."""
        return len(self.leading) >= quorum(len(self.servers))

    @property
    def missing(self) -> tuple[str, ...]:
        """The servers that answered and do not store a lock that a quorum stores."""
        if not self.has_quorum:
            return ()
        stored = {sighting.server for sighting in (*self.leading, *self.rivals)}
        return tuple(n for n in self.servers if n not in stored and n not in self.silent)

    @property
    def state(self) -> HoldingState:
        """The state, as far as the sightings show it."""
        if not self.leading[0].ours:
            return HoldingState.FOREIGN
        if self.has_quorum:
            expiring = self.ttl is not None and self.ttl < EXPIRING
            return HoldingState.EXPIRING if expiring else HoldingState.HELD
        if len(self.leading) + len(self.silent) >= quorum(len(self.servers)):
            return HoldingState.UNCLEAR
        return HoldingState.DISAGREEING if self.rivals else HoldingState.PARTIAL

    @property
    def ttl(self) -> float | None:
        """Seconds until too few servers hold it; if too few do already, until none does.

        None where that never happens.
        """
        longest = sorted((s.left for s in self.leading), reverse=True)
        left = longest[quorum(len(self.servers)) - 1] if self.has_quorum else longest[0]
        return None if left == float("inf") else left

    @cached_property
    def holder(self) -> Mapping[str, str | int | float]:
        """The holder's description of itself: `host`, `pid`, `app`, `at`, `path`, `user`, ...

        A client that can write to a server can write anything here; it is only made printable.
        """
        return holder_of(self.value)

    @property
    def since(self) -> float | None:
        """When it was acquired, in seconds since 1970 by the holder's clock; None if unknown."""
        at = self.holder.get("at")
        return float(at) if isinstance(at, int | float) and 0 <= at < _YEAR_10000 else None

    @property
    def minimum_hold_until(self) -> float | None:
        """When its minimum hold ends, as `since`; None if it has none, or has no quorum.

        Until then the lock may have been released already: a release only shortens its TTL.
        """
        since, least = self.since, self.holder.get("min_hold")
        if since is None or not isinstance(least, int | float) or not self.has_quorum:
            return None
        return since + least if 0 < least < _YEAR_10000 - since else None

    @property
    def handed_on(self) -> bool:
        """True if its holder has handed the lock on, and no client has taken it yet."""
        return self.holder.get("handed_on") == 1

    def fits(self, search: str) -> bool:
        """Return whether each word of `search` is in the name, or is about the holder.

        A word is a part of the holder's host, app, release or path, or all of its process id or
        user. Upper and lower case are the same.
        """
        about = {name: str(value).casefold() for name, value in self.holder.items()}
        fields = (about.get(name, "") for name in ("host", "app", "release", "path"))
        parts = [self.name.casefold(), *fields]
        ids = (about.get("pid"), about.get("user"))
        return all(
            word in ids or any(word in part for part in parts) for word in search.casefold().split()
        )

    def by_holder(self) -> list[Holding]:
        """Return a Holding for each of several holders of the resource, the leading one first."""
        seen = (*self.leading, *self.rivals)
        return [
            merge(self.resource, [s for s in seen if s.value == value], self.servers, ())
            for value in dict.fromkeys(sighting.value for sighting in seen)
        ]


def holder_of(value: bytes) -> Mapping[str, str | int | float]:
    """Return what a lock's value reports of its holder, printable in logs and any database.

    Empty where the value is not one of ours.
    """
    if not is_ours(value):
        return {}
    try:
        about = json.loads(value.split(b" ", 1)[1])
    except (ValueError, RecursionError):
        return {}
    return {
        printable(name): printable(said) if isinstance(said, str) else said
        for name, said in about.items()
        if isinstance(said, str) or _is_plain_number(said)
    }


def limit_of(holder: Mapping[str, object]) -> int | None:
    """Return the limit that a holder states, None if it holds a lock."""
    limit = holder.get("limit")
    return limit if isinstance(limit, int) and 1 < limit <= MOST_SLOTS else None


def slot_in(resource: str, holder: Mapping[str, object]) -> int | None:
    """Return which slot of its name a holder holds, None if it holds a lock."""
    slot = slot_of(resource)
    return slot if slot or limit_of(holder) else None


def label_of(resource: str, holder: Mapping[str, object]) -> str:
    """Return the name of what a holder holds, for people: "export, slot 1" for a slot."""
    slot = slot_in(resource, holder)
    return resource if slot is None else f"{name_of(resource)}, slot {slot}"


def _is_plain_number(said: object) -> bool:
    # Python's JSON also reads NaN, infinities and numbers of a thousand digits.
    return isinstance(said, int | float) and not isinstance(said, bool) and abs(said) < 1e15


def merge(
    resource: str,
    sightings: Iterable[Sighting],
    servers: Sequence[str],
    silent: Iterable[str],
    waiters: int = 0,
) -> Holding:
    """Return what the sightings of one resource amount to; at least one is needed.

    `servers` are the names of all servers that decide about the resource.
    """
    by_value: dict[bytes, list[Sighting]] = defaultdict(list)
    for sighting in sorted(sightings, key=lambda seen: servers.index(seen.server)):
        by_value[sighting.value].append(sighting)
    order = list(by_value.values())
    if len(order) > 1:  # as a rule there is one holder, and a page may have thousands of locks
        order.sort(key=lambda same: (len(same), max(s.left for s in same)), reverse=True)
    return Holding(
        resource=resource,
        servers=tuple(servers),
        silent=frozenset(silent),
        leading=tuple(order[0]),
        rivals=tuple(s for same in order[1:] for s in same),
        waiters=waiters,
    )

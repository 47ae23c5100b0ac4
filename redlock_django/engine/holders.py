"""Who holds what: what each of N masters was seen to hold, merged into one answer."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from redlock_django.engine.printable import printable
from redlock_django.engine.quorum import quorum
from redlock_django.engine.validity import fingerprint_of

EXPIRING = 2.0
"""Seconds left below which a held lock is called expiring: a renewed one keeps most of its TTL."""

_OURS = re.compile(rb"[0-9a-fA-F]{32} \{")
_YEAR_10000 = 253_402_300_800  # no date of Python's reaches it


class HoldingState(Enum):
    """What the sightings of one resource amount to."""

    HELD = "held"
    EXPIRING = "expiring"  # held, but not for long, so nobody seems to renew it
    PARTIAL = "partial"  # on too few masters: on its way, or left behind
    DISAGREEING = "disagreeing"  # several holders, none of them on enough masters
    FOREIGN = "foreign"  # set by another client
    UNCLEAR = "unclear"  # on too few of those that answered; with the silent ones it may be held


class Sighting(NamedTuple):
    """What one master (0-based) holds under one resource; `ttl` in seconds, None for ever."""

    master: int
    value: bytes
    ttl: float | None

    def __repr__(self) -> str:  # without the token
        return f"Sighting({self.master}, {self.fingerprint}, {self.left:g} s)"

    @property
    def ours(self) -> bool:
        """Whether one of us has set it: a token, a space, and JSON about the holder."""
        return _OURS.match(self.value) is not None

    @property
    def fingerprint(self) -> str:
        """What may be shown of the token: 8 hex digits."""
        return fingerprint_of(self.value.split(b" ", 1)[0] if self.ours else self.value)

    @property
    def left(self) -> float:
        """`ttl`, as a number that can be compared."""
        return float("inf") if self.ttl is None else self.ttl


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What is known of one held resource.

    `masters` is N, `silent` those that did not answer (0-based). `leading` are the
    sightings of the holder that most masters know, `rivals` those of all others.
    """

    resource: str
    masters: int
    silent: frozenset[int]
    leading: tuple[Sighting, ...]
    rivals: tuple[Sighting, ...]

    @property
    def value(self) -> bytes:
        """The whole value of the leading holder. Holds the token: never to be shown."""
        return self.leading[0].value

    @property
    def fingerprint(self) -> str:
        """Which lock this is, in 8 hex digits, without its token."""
        return self.leading[0].fingerprint

    @property
    def state(self) -> HoldingState:
        """What the sightings amount to."""
        need = quorum(self.masters)
        if not self.leading[0].ours:
            return HoldingState.FOREIGN
        if _enough(len(self.leading), need):
            left = self.ttl
            return (
                HoldingState.EXPIRING if left is not None and left < EXPIRING else HoldingState.HELD
            )
        if _enough(len(self.leading) + len(self.silent), need):
            return HoldingState.UNCLEAR
        return HoldingState.DISAGREEING if self.rivals else HoldingState.PARTIAL

    @property
    def ttl(self) -> float | None:
        """Seconds until too few masters hold it; where that is so already, until none does.

        None where that never happens.
        """
        longest = sorted((s.left for s in self.leading), reverse=True)
        need = quorum(self.masters)
        left = longest[need - 1] if _enough(len(longest), need) else longest[0]
        return None if left == float("inf") else left

    @property
    def holder(self) -> Mapping[str, str | int | float]:
        """What the holder says of itself: `host`, `pid`, `app`, `at`, `path`, `user`.

        Whoever can write to a master can write anything here; it is only made fit to be shown.
        """
        return holder_of(self.value)

    @property
    def since(self) -> float | None:
        """When it was taken, in seconds since 1970 by the holder's clock; None if unknown."""
        at = self.holder.get("at")
        return float(at) if isinstance(at, int | float) and 0 <= at < _YEAR_10000 else None


def holder_of(value: bytes) -> Mapping[str, str | int | float]:
    """What a lock's value says of its holder, fit for logs, terminals and any database.

    Nothing where it is not one of ours.
    """
    if not _OURS.match(value):
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


def _is_plain_number(said: object) -> bool:
    # JSON of Python's kind also brings NaN, infinities and numbers of a thousand digits.
    return isinstance(said, int | float) and not isinstance(said, bool) and abs(said) < 1e15


def merge(
    resource: str, sightings: Iterable[Sighting], masters: int, silent: Iterable[int]
) -> Holding:
    """What the sightings of one resource amount to; at least one is needed."""
    by_value: dict[bytes, list[Sighting]] = defaultdict(list)
    for sighting in sorted(sightings):
        by_value[sighting.value].append(sighting)
    order = sorted(
        by_value.values(), key=lambda same: (len(same), max(s.left for s in same)), reverse=True
    )
    return Holding(
        resource=resource,
        masters=masters,
        silent=frozenset(silent),
        leading=tuple(order[0]),
        rivals=tuple(s for same in order[1:] for s in same),
    )


def _enough(masters: int, need: int) -> bool:
    return masters >= need

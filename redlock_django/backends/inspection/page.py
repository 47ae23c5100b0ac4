"""A page of held locks: which of them are read, filtered, sorted and shown, each within a bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from redlock_django.engine.inspection.holders import Holding, HoldingState
from redlock_django.engine.protocol.slots import name_of, slot_of

MAX_LISTED = 10_000
"""The most locks that can be paged through, and that are sorted by resource."""

MAX_READ = 4_000
"""The most locks that are read to filter by state or holder, or to sort by holder or age."""

ORDERS = (
    "ttl", "-ttl", "resource", "-resource", "since", "-since", "holder", "-holder",
)  # fmt: skip
"""The orders of a page; "since" begins with the lock that has been held for the longest time."""


@dataclass(frozen=True, kw_only=True)
class PageQuery:
    """The parameters of a page of held locks. Raises ValueError for an order not in ORDERS.

    `search` is a part of the resource name, `prefix` its beginning, both in the same case. Each
    word of `holder` is a process id, a user id, or a part of the host, app or path. `state` shows
    only locks in this state, `scan` also locks that are in no index. The states of the first
    `count` locks are counted even if they are on another page.
    """

    search: str = ""
    prefix: str = ""
    holder: str = ""
    state: HoldingState | None = None
    order: str = "ttl"
    offset: int = 0
    limit: int = 100
    scan: bool = False
    count: int = 0

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise ValueError(f"order must be one of {', '.join(ORDERS)}, got {self.order!r}")

    @property
    def text(self) -> str:
        """The text that servers search names for; `has_name` applies the other filter."""
        return max(self.search, self.prefix, key=len)

    @property
    def reads_values(self) -> bool:
        """True if the values of locks on other pages must be read, too."""
        return bool(self.state or self.holder) or self.order.lstrip("-") in ("since", "holder")

    @property
    def shown(self) -> slice:
        """The part of the sorted locks that is on the page."""
        return slice(self.offset, self.offset + self.limit)

    @property
    def most(self) -> int:
        """How many names must be listed."""
        if self.order.endswith("resource"):
            return MAX_LISTED
        if self.reads_values:
            return MAX_READ
        return min(max(self.offset + self.limit, self.count), MAX_LISTED)

    def has_name(self, name: str) -> bool:
        """Return whether a resource fits `search` and `prefix`."""
        return self.search in name and name.startswith(self.prefix)

    def sorted_names(self, left: Mapping[str, float]) -> list[str]:
        """Return names in order; those to be sorted by their values begin with the least TTL."""
        names = sorted(left, key=lambda name: (name_of(name), slot_of(name)))
        if not self.order.endswith("resource"):
            names.sort(key=lambda name: left[name])
        if self.order in ("-resource", "-ttl"):
            names.reverse()
        return names

    def fitting(self, holdings: Sequence[Holding]) -> list[Holding]:
        """Return the locks that fit `holder`, in order."""
        words = self.holder.casefold().split()
        found = [one for one in holdings if not words or _is_held_by(one, words)]
        key, descending = self.order.lstrip("-"), self.order.startswith("-")
        if key == "since":
            found.sort(key=lambda one: one.since or 0.0, reverse=descending)
            found.sort(key=lambda one: one.since is None)  # those of unknown age last
        elif key == "holder":
            found.sort(key=_holder_key, reverse=descending)
            found.sort(key=lambda one: not one.holder)
        return found


class ListedNames(NamedTuple):
    """The names that fit a query, in its order; the numbers are those of `HeldLocks`."""

    names: list[str]
    total: int
    about: int
    stopped_at: int | None

    def are_within(self, most: int) -> bool:
        """Return whether there are no more locks than `most`."""
        return self.total <= most and self.stopped_at is None


def _holder_key(holding: Holding) -> tuple[str, ...]:
    return tuple(str(holding.holder.get(name, "")) for name in ("host", "app", "pid", "path"))


def _is_held_by(holding: Holding, words: Sequence[str]) -> bool:
    fields = {name: str(value).casefold() for name, value in holding.holder.items()}
    texts = [fields.get(name, "") for name in ("host", "app", "release", "path")]
    ids = (fields.get("pid"), fields.get("user"))
    return all(word in ids or any(word in text for text in texts) for word in words)

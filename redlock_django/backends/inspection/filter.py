"""Which of the held locks are wanted, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from redlock_django.engine.inspection.holders import Holding, HoldingState
from redlock_django.engine.protocol.slots import slot_of

ORDERS = (
    "ttl", "-ttl", "resource", "-resource", "since", "-since", "holder", "-holder",
)  # fmt: skip
"""The orders of locks; "since" begins with the lock that has been held for the longest time."""


@dataclass(frozen=True, kw_only=True)
class LockFilter:
    """A filter of held locks and their order. Raises ValueError for an order not in ORDERS.

    `search` is a part of the resource name, `prefix` its beginning, both in the same case. Each
    word of `holder` is a process id, a user id, or a part of the host, app or path. `state` keeps
    only locks in this state.
    """

    search: str = ""
    prefix: str = ""
    holder: str = ""
    state: HoldingState | None = None
    order: str = "ttl"

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise ValueError(f"order must be one of {', '.join(ORDERS)}, got {self.order!r}")

    @property
    def text(self) -> str:
        """The longer of the strings that names contain: perhaps the whole name of a lock."""
        return max(self.search, self.prefix, key=len)

    def has_name(self, name: str) -> bool:
        """Return whether a resource fits `search` and `prefix`."""
        return self.search in name and name.startswith(self.prefix)

    def apply(self, holdings: Sequence[Holding]) -> list[Holding]:
        """Return the locks that fit, in order; those that are equal are sorted by resource."""
        words = self.holder.casefold().split()
        found = [
            one
            for one in holdings
            if self.state in (None, one.state) and (not words or _is_held_by(one, words))
        ]
        key, descending = self.order.lstrip("-"), self.order.startswith("-")
        found.sort(key=_by_resource, reverse=descending and key in ("resource", "ttl"))
        if key == "ttl":
            found.sort(key=_by_ttl, reverse=descending)
        elif key == "since":
            found.sort(key=lambda one: one.since or 0.0, reverse=descending)
            found.sort(key=lambda one: one.since is None)  # those of unknown age last
        elif key == "holder":
            found.sort(key=_by_holder, reverse=descending)
            found.sort(key=lambda one: not one.holder)
        return found


def _by_resource(holding: Holding) -> tuple[str, int]:
    return holding.name, slot_of(holding.resource)


def _by_ttl(holding: Holding) -> float:
    return float("inf") if holding.ttl is None else holding.ttl


def _by_holder(holding: Holding) -> tuple[str, ...]:
    return tuple(str(holding.holder.get(name, "")) for name in ("host", "app", "pid", "path"))


def _is_held_by(holding: Holding, words: Sequence[str]) -> bool:
    fields = {name: str(value).casefold() for name, value in holding.holder.items()}
    texts = [fields.get(name, "") for name in ("host", "app", "release", "path")]
    ids = (fields.get("pid"), fields.get("user"))
    return all(word in ids or any(word in text for text in texts) for word in words)

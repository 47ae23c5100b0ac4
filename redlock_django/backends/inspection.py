"""The inspection part of the store contract: held locks, forced release and health.

`list_locks`, the admin, `release_lock`, `redlock_status`, health checks and system checks are
built on this. Nothing here names a script, a key or the place of a server: servers have names.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from redlock_django.backends.inspection_results import (
    Freed,
    HeldLocks,
    Listing,
    ReleaseOutcome,
    ServerHealth,
)
from redlock_django.engine.holders import Holding, HoldingState

MAX_LISTED = 10_000
"""The most locks that can be paged through, and that are sorted by resource."""

MAX_FILTERED = 4_000
"""The most locks whose state is read for a filter by state."""

ORDERS = ("ttl", "-ttl", "resource", "-resource")


class Inspection(ABC):
    """Asks the servers of a store about locks: a context manager, which closes what it opened.

    A server that does not answer is not asked again, so that a server that hangs costs one timeout
    over several questions. An inspection does not use the connections of locks. Its methods block,
    for a few seconds at most. Use it from one thread at a time.
    """

    def __init__(self, using: str, servers: Sequence[str]) -> None:
        self.using = using
        self.servers = tuple(servers)

    def __enter__(self) -> Self:
        return self

    def __exit__(  # noqa: B027 - for stores that open nothing
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close what was opened; nothing here."""

    @property
    def silent(self) -> Mapping[str, str]:
        """The servers that could not be asked, by name, each with the reason; none here."""
        return {}

    def has_quorum(self, resource: str | None = None) -> bool:
        """Return whether enough servers have answered to know who holds a resource.

        None means every resource: a quorum of every shard. Here all servers must have answered.
        """
        return not self.silent

    @abstractmethod
    def listing(
        self, *, search: str = "", scan: bool = False, last_first: bool = False, most: int
    ) -> Listing:
        """Return the names of held resources: the `most` that expire first (or last).

        With `search`, those that contain it, in any order. `scan` also finds locks that other
        clients have set and that no client of ours has met.
        """

    @abstractmethod
    def holdings(self, resources: Sequence[str]) -> list[Holding]:
        """Return who holds these resources now, in their order, without those that are free."""

    def release(
        self, resource: str, values: Sequence[bytes]
    ) -> tuple[ReleaseOutcome, Mapping[str, str]]:
        """Delete the lock of a resource where its value is one of these; used by `free`.

        The fence stays, and the tokens are kept from coming back. Return RELEASED, NOT_HELD or
        NO_QUORUM, and what each deciding server answered, in words, by name.
        """
        raise NotImplementedError

    @abstractmethod
    def health(self) -> list[ServerHealth]:
        """Return the health of every server, in the order of `servers`."""

    def free(self, resource: str, fingerprint: str | None = None) -> Freed:
        """Free a lock that another client holds: the one with this fingerprint, or None for all."""
        held = [one for holding in self.holdings([resource]) for one in holding.by_holder()]
        wanted = [one for one in held if fingerprint in (None, one.fingerprint)]
        if not wanted:
            outcome = ReleaseOutcome.CHANGED if held else ReleaseOutcome.NOT_HELD
            if not held and not self.has_quorum(resource):
                outcome = ReleaseOutcome.NO_QUORUM
            return Freed(
                resource=resource,
                using=self.using,
                outcome=outcome,
                now=held[0].fingerprint if held else "",
                masters=self.silent,
            )
        outcome, answers = self.release(resource, [one.value for one in wanted])
        return Freed(
            resource=resource,
            using=self.using,
            outcome=outcome,
            fingerprint=wanted[0].fingerprint,
            holder=wanted[0].holder,
            masters=answers,
        )

    def look(self, resources: Sequence[str]) -> HeldLocks:
        """Return what is known of these resources."""
        found = self.holdings(resources)
        return HeldLocks(
            using=self.using,
            locks=tuple(found),
            total=len(found),
            about=len(found),
            stopped_at=None,
            servers=self.servers,
            silent=self.silent,
            complete=self.has_quorum(),
            undecided=frozenset(name for name in resources if not self.has_quorum(name)),
        )

    def page(
        self,
        *,
        search: str = "",
        state: HoldingState | None = None,
        order: str = "ttl",
        offset: int = 0,
        limit: int = 100,
        scan: bool = False,
    ) -> HeldLocks:
        """Return a page of the held locks, in `order` (one of ORDERS).

        `search` is a part of the resource name, in the same case. `state` shows only locks in this
        state, `scan` also locks that are in no index. Raises ValueError for another order.
        """
        if order not in ORDERS:
            raise ValueError(f"order must be one of {', '.join(ORDERS)}, got {order!r}")
        by_name = order.endswith("resource")
        if by_name:
            most = MAX_LISTED
        else:
            most = min(offset + limit, MAX_LISTED) if state is None else MAX_FILTERED
        listing = self.listing(search=search, scan=scan, last_first=order == "-ttl", most=most)
        left, about, stopped_at = dict(listing.left), listing.about, listing.stopped_at
        if search or scan:
            if search and search not in left and self.holdings([search]):
                left[search] = 0.0  # another client's, which is in no index
            about = total = len(left)
        elif about <= most:
            total = len(left)
        else:
            total = max(about, len(left))
            if total > MAX_LISTED:
                total = stopped_at = MAX_LISTED
        names = sorted(left, key=(lambda n: n) if by_name else (lambda n: (left[n], n)))
        if order.startswith("-"):
            names.reverse()
        if state is None:
            found = self.holdings(names[offset : offset + limit])
        else:
            if total > MAX_FILTERED:
                stopped_at = MAX_FILTERED
            fitting = [one for one in self.holdings(names[:MAX_FILTERED]) if one.state is state]
            total, found = len(fitting), fitting[offset : offset + limit]
        return HeldLocks(
            using=self.using,
            locks=tuple(found),
            total=total,
            about=about,
            stopped_at=stopped_at,
            servers=self.servers,
            silent=self.silent,
            complete=self.has_quorum(),
        )

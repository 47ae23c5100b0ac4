"""The inspection part of the store contract: held locks, forced release and health.

`list_locks`, the admin, `release_lock`, `redlock_status`, health checks and system checks are
built on this. Nothing here names a script, a key or the place of a server: servers have names.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from redlock_django.backends.inspection import page as inspection_page
from redlock_django.backends.inspection.page import PageQuery
from redlock_django.backends.inspection.results import (
    Freed,
    HeldLocks,
    Listing,
    ReleaseOutcome,
    ServerHealth,
)
from redlock_django.engine.inspection.holders import Holding


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
        """Close the connections that were opened; here there are none."""

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

    def page(self, **options: Any) -> HeldLocks:
        """Return a page of the held locks; the options are the fields of `PageQuery`."""
        query = PageQuery(**options)
        listing = self.listing(
            search=query.text,
            scan=query.scan,
            last_first=query.order == "-ttl",
            most=query.most,
        )
        left = {name: ttl for name, ttl in listing.left.items() if query.has_name(name)}
        about, total, stopped_at = listing.about, len(left), listing.stopped_at
        if query.text or query.scan:
            exact = query.text
            if exact and query.has_name(exact) and exact not in left and self.holdings([exact]):
                left[exact] = 0.0  # another client's, which is in no index
            about = total = len(left)
        elif about > query.most:
            total = max(about, total)
            if total > inspection_page.MAX_LISTED:
                total = stopped_at = inspection_page.MAX_LISTED
        names = query.sorted_names(left)
        first = inspection_page.MAX_READ if query.reads_values else query.count
        every = total <= first and stopped_at is None
        read = query.fitting(self.holdings(query.to_read(names)))
        if query.reads_values:
            if total > first:
                stopped_at = first
            counted, found = read, [one for one in read if query.state in (None, one.state)]
            total, page = len(found), found[query.shown]
        else:
            counted, page = _among(names[:first], read), _among(names[query.shown], read)
            # Listed names whose locks have been released since, or whose keys are not locks.
            gone = len(names[query.shown]) - len(page)
            about, total = about - gone, total - gone
        return HeldLocks(
            using=self.using,
            locks=tuple(page),
            total=total,
            about=about,
            stopped_at=stopped_at,
            servers=self.servers,
            silent=self.silent,
            complete=self.has_quorum(),
            states=Counter(one.state for one in counted),
            counted=None if every else first,
        )


def _among(names: Sequence[str], holdings: Sequence[Holding]) -> list[Holding]:
    wanted = frozenset(names)
    return [one for one in holdings if one.resource in wanted]

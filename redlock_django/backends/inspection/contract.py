"""The inspection part of the store contract: held locks, forced release and health.

`list_locks`, the admin, `release_lock`, `redlock_status`, health checks and system checks are
built on this. Nothing here names a script, a key or the place of a server: servers have names.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from redlock_django.backends.inspection import page as bounds
from redlock_django.backends.inspection.page import ListedNames, PageQuery
from redlock_django.backends.inspection.results import (
    Freed,
    HeldLocks,
    Listing,
    ReleaseOutcome,
    ServerHealth,
    SlotsHeld,
)
from redlock_django.engine.inspection.holders import Holding
from redlock_django.engine.protocol.slots import slot_resource


class Inspection(ABC):
    """Asks the servers of a store about locks: a context manager, which closes what it opened.

    A server that does not answer is not asked again, so that a server that hangs costs one timeout
    over several questions. An inspection does not use the connections of locks. Its methods block,
    for a few seconds at most. Use it from one thread at a time.
    """

    def __init__(self, using: str, servers: Sequence[str]) -> None:
        self.using = using
        self.servers = tuple(servers)
        self._silent: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:  # noqa: B027 - for stores that open nothing
        """Close the connections that were opened; here there are none."""

    @property
    def silent(self) -> Mapping[str, str]:
        """The servers that could not be asked, by name, each with the reason."""
        return self._silent

    def has_quorum(self) -> bool:
        """Return whether enough servers have answered to know who holds a resource; here all."""
        return not self.silent

    @abstractmethod
    def listing(
        self, *, search: str = "", scan: bool = False, last_first: bool = False, most: int
    ) -> Listing:
        """Return the names of held resources: the `most` that expire first (or last).

        With `search`, those that contain it, in any order. `scan` also finds locks that other
        programs have set and that are in no index yet.
        """

    @abstractmethod
    def holdings(self, resources: Sequence[str]) -> list[Holding]:
        """Return the holders of those of the resources that are held now, in their order."""

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
            if not held and not self.has_quorum():
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

    def _freed(self, freed: bool) -> tuple[ReleaseOutcome, Mapping[str, str]]:
        """Return the result of `release` where all servers decide together, under one name."""
        if self.silent:
            return ReleaseOutcome.NO_QUORUM, dict(self.silent)
        if not freed:
            return ReleaseOutcome.NOT_HELD, {self.servers[0]: "was not held"}
        return ReleaseOutcome.RELEASED, {self.servers[0]: "released"}

    def look(self, resources: Sequence[str]) -> HeldLocks:
        """Return what is known of these resources."""
        found = self.holdings(resources)
        return self._held_locks(found, total=len(found), about=len(found))

    def page(self, **options: Any) -> HeldLocks:
        """Return a page of the held locks; the options are the fields of `PageQuery`."""
        query = PageQuery(**options)
        listed = self._listed(query)
        if query.reads_values:
            return self._page_of_read(query, listed)
        return self._page_of_listed(query, listed)

    def _listed(self, query: PageQuery) -> ListedNames:
        """Return the names that fit a query, in order, and how many locks there are."""
        found = self.listing(
            search=query.text, scan=query.scan, last_first=query.order == "-ttl", most=query.most
        )
        left = {name: ttl for name, ttl in found.left.items() if query.has_name(name)}
        about, total, stopped_at = found.about, len(left), found.stopped_at
        if query.text or query.scan:
            exact = query.text
            if exact and query.has_name(exact) and exact not in left and self.holdings([exact]):
                left[exact] = 0.0  # another client's, which is in no index
            about = total = len(left)
        elif about > query.most:
            total = max(about, total)
            if total > bounds.MAX_LISTED:
                total = stopped_at = bounds.MAX_LISTED
        return ListedNames(query.sorted_names(left), total, about, stopped_at)

    def _page_of_read(self, query: PageQuery, listed: ListedNames) -> HeldLocks:
        """Return a page of the locks whose values must be read, to filter or to sort them."""
        most = bounds.MAX_READ
        read = query.fitting(self.holdings(listed.names[:most]))
        found = [one for one in read if query.state in (None, one.state)]
        return self._held_locks(
            found[query.shown],
            total=len(found),
            about=listed.about,
            stopped_at=most if listed.total > most else listed.stopped_at,
            states=Counter(one.state for one in read),
            counted=None if listed.are_within(most) else most,
        )

    def _page_of_listed(self, query: PageQuery, listed: ListedNames) -> HeldLocks:
        """Return a page of the locks in the order of the names, of which only these are read."""
        first, shown = listed.names[: query.count], listed.names[query.shown]
        read = {one.resource: one for one in self.holdings(list(dict.fromkeys([*first, *shown])))}
        locks = [read[name] for name in shown if name in read]
        # Names whose locks have been released since, or whose keys are not locks.
        gone = len(shown) - len(locks)
        return self._held_locks(
            locks,
            total=listed.total - gone,
            about=listed.about - gone,
            stopped_at=listed.stopped_at,
            states=Counter(read[name].state for name in first if name in read),
            counted=None if listed.are_within(query.count) else query.count,
        )

    def _held_locks(self, locks: Sequence[Holding], **numbers: Any) -> HeldLocks:
        return HeldLocks(
            using=self.using,
            locks=tuple(_with_waiters_once(locks)),
            slots=self._slots(locks),
            servers=self.servers,
            silent=self.silent,
            complete=self.has_quorum(),
            **numbers,
        )

    def _slots(self, locks: Sequence[Holding]) -> dict[str, SlotsHeld]:
        """Return the numbers of the names with a limit, of as many as may be read."""
        limits: dict[str, int] = {}
        for one in locks:
            if one.slot is not None:
                limits[one.name] = max(limits.get(one.name, 0), one.limit or 0, one.slot + 1)
        wanted: list[str] = []
        for name, limit in limits.items():
            if len(wanted) + limit <= bounds.MAX_READ:
                wanted += [slot_resource(name, slot) for slot in range(limit)]
        found: dict[str, list[Holding]] = defaultdict(list)
        for one in self.holdings(wanted):
            found[one.name].append(one)
        return {name: SlotsHeld.of(slots) for name, slots in found.items()}


def _with_waiters_once(locks: Sequence[Holding]) -> Iterator[Holding]:
    """Yield the locks; of the slots of a name, which share a queue, the first has the waiters."""
    waiters: dict[str, int] = defaultdict(int)
    for one in locks:
        waiters[one.name] = max(waiters[one.name], one.waiters)
    for one in locks:
        many = waiters.pop(one.name, 0)
        yield one if one.waiters == many else replace(one, waiters=many)

"""The inspection part of the store contract: held locks, forced release and health.

`list_locks`, the admin, `release_lock`, `redlock_status`, health checks and system checks are
built on this. Nothing here names a script, a key or the place of a server: servers have names.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Self

from redlock_django.backends.inspection.results import (
    Freed,
    HeldLocks,
    Listing,
    ReleaseOutcome,
    ServerHealth,
    SlotsHeld,
)
from redlock_django.engine.inspection.holders import Holding, Sighting, merge
from redlock_django.engine.protocol.slots import slot_of, slot_resource


class Inspection(ABC):
    """Asks the servers of a store about locks: a context manager, which closes what it opened.

    A server that does not answer is not asked again, so that a server that hangs costs one timeout
    over several questions. An inspection does not use the connections of locks. Its methods block,
    for a few seconds at most. Use it from one thread at a time.
    """

    MAX_LISTED: ClassVar[int] = 10_000
    """The most locks that are listed and read."""

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
    def listing(self) -> Listing:
        """Return the names of at most MAX_LISTED held resources: of those that expire first.

        They are in this order where the store knows it without reading every lock.
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

    def holding(self, resource: str, value: bytes, left: float, waiters: int = 0) -> Holding:
        """Return the holder of a resource where all servers decide together, under one name."""
        seen = [Sighting(self.servers[0], value, left)]
        return merge(resource, seen, self.servers, (), waiters)

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
        return self._held_locks(found, count=len(found))

    def held(self, *, search: str = "", offset: int = 0, limit: int | None = None) -> HeldLocks:
        """Return a page of the held locks that fit a search (`Holding.fits`), by the time left.

        Without `search`, only the locks of the page are read.
        """
        listed = self.listing()
        names, page = listed.names, slice(offset, None if limit is None else offset + limit)
        if search.strip():
            # Another kind of client may have set a lock that is in no index: read the whole name.
            read = self.holdings(list(dict.fromkeys([*names, search.strip()])))
            fitting = sorted((one for one in read if one.fits(search)), key=_by_ttl)
            found, count = fitting[page], len(fitting)
        else:
            found = sorted(self.holdings(names[page]), key=_by_ttl)
            count = len(names) - len(names[page]) + len(found)  # without names that are free now
        return self._held_locks(found, count=count, truncated=listed.truncated)

    def _held_locks(
        self, locks: Sequence[Holding], *, count: int, truncated: bool = False
    ) -> HeldLocks:
        return HeldLocks(
            using=self.using,
            locks=tuple(_with_waiters_once(locks)),
            slots=self._slots(locks),
            servers=self.servers,
            silent=self.silent,
            complete=self.has_quorum(),
            count=count,
            truncated=truncated,
        )

    def _slots(self, locks: Sequence[Holding]) -> dict[str, SlotsHeld]:
        """Return the numbers of the names with a limit, of as many as may be read."""
        limits: dict[str, int] = {}
        for one in locks:
            if one.slot is not None:
                limits[one.name] = max(limits.get(one.name, 0), one.limit or 0, one.slot + 1)
        wanted: list[str] = []
        for name, limit in limits.items():
            if len(wanted) + limit <= self.MAX_LISTED:
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


def _by_ttl(holding: Holding) -> tuple[float, str, int]:
    left = float("inf") if holding.ttl is None else holding.ttl
    return left, holding.name, slot_of(holding.resource)

"""The inspection part of the store contract: held locks, forced release and health.

`list_locks`, the admin, `release_lock`, `redlock_status`, health checks and system checks are
built on this. Nothing here names a script, a key or the place of a server: servers have names.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import NamedTuple, Self

from redlock_django.engine.health import Health
from redlock_django.engine.holders import Holding, HoldingState
from redlock_django.engine.quorum import quorum

MAX_LISTED = 10_000
"""The most locks that can be paged through, and that are sorted by resource."""

MAX_FILTERED = 4_000
"""The most locks whose state is read for a filter by state."""

ORDERS = ("ttl", "-ttl", "resource", "-resource")


@dataclass(frozen=True, kw_only=True)
class HeldLocks:
    """Locks that are held now: a page of them, or those on some resources.

    `total` is how many there are to page through; where `stopped_at` is not None, the listing
    stopped there, and there may be more. `about` is how many locks the fullest server lists, added
    up over the shards of a sharded store. `servers` are the names of all servers, `silent` maps
    those that could not be asked to the reason. `complete` is whether a quorum answered (in every
    shard), so that no held lock can be missing. `undecided` are the resources that were asked for
    by name and about which no quorum answered.
    """

    using: str
    locks: tuple[Holding, ...]
    total: int
    about: int
    stopped_at: int | None
    servers: tuple[str, ...]
    silent: Mapping[str, str]
    complete: bool
    undecided: frozenset[str] = frozenset()


class ReleaseOutcome(Enum):
    """The outcome of a forced release."""

    RELEASED = "released"
    NOT_HELD = "not held"
    CHANGED = "changed"  # another holder has it now
    NO_QUORUM = "no quorum"  # too few servers answered: it may still be held


@dataclass(frozen=True, kw_only=True)
class Freed:
    """The result of a forced release.

    `fingerprint` and `holder` are of the lock that was to be freed, "" and empty where nothing was
    held. `now` is the fingerprint of the lock that is held instead, if CHANGED. `masters` maps the
    servers that decide about the resource to what each of them answered, or why it did not; where
    there was nothing to free, only the silent ones.
    """

    resource: str
    using: str
    outcome: ReleaseOutcome
    fingerprint: str = ""
    holder: Mapping[str, str | int | float] = field(default_factory=dict)
    now: str = ""
    masters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ServerHealth:
    """The health of one server; where it did not answer, `health` is None and `reason` says why.

    `faults` are pairs of a code and a text; docs/how-to/operate.md lists the codes.
    `counted` is whether its votes count now. `shard` is the label of the shard it belongs to, ""
    where there is only one.
    """

    name: str
    health: Health | None
    reason: str
    faults: tuple[tuple[str, str], ...]
    counted: bool
    shard: str = ""


class QuorumHealth(NamedTuple):
    """The number of `servers` of a shard, how many of them are `counted`, how many are `needed`.

    `label` begins a sentence about the shard ("group 2: "), and is "" where there is only one.
    """

    label: str
    servers: int
    counted: int
    needed: int


def quorums(servers: Iterable[ServerHealth]) -> list[QuorumHealth]:
    """Return how far each shard is from a quorum, from the health of all its servers."""
    shards: dict[str, list[bool]] = {}
    for server in servers:
        shards.setdefault(server.shard, []).append(server.counted)
    return [
        QuorumHealth(
            label=f"{shard}: " if shard else "",
            servers=len(counted),
            counted=sum(counted),
            needed=quorum(len(counted)),
        )
        for shard, counted in shards.items()
    ]


@dataclass(frozen=True, kw_only=True)
class Listing:
    """Names of resources that are held, with the seconds left of each as far as they are known.

    `about` is how many locks the fullest server lists, `stopped_at` how many names a search
    examined before it stopped, None where it examined all.
    """

    left: Mapping[str, float]
    about: int
    stopped_at: int | None


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

    @abstractmethod
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    @property
    @abstractmethod
    def silent(self) -> Mapping[str, str]:
        """The servers that could not be asked, by name, each with the reason."""

    @abstractmethod
    def has_quorum(self, resource: str | None = None) -> bool:
        """Return whether enough servers have answered to know who holds a resource.

        None means every resource: a quorum of every shard.
        """

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

    @abstractmethod
    def free(self, resource: str, fingerprint: str | None = None) -> Freed:
        """Free a lock that another client holds: the one with this fingerprint, or None for all.

        The lock's fence stays, and its token is kept from coming back.
        """

    @abstractmethod
    def health(self) -> list[ServerHealth]:
        """Return the health of every server, in the order of `servers`."""

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

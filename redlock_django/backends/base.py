"""The contract between `lock()` and a store of locks: settings, leases and inspection."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

from redlock_django.backends.values import SHORTEST_TTL, seconds
from redlock_django.engine.validity import Lease, LeaseState
from redlock_django.wire.clock import clock
from redlock_django.wire.notice import Notice as Notice
from redlock_django.wire.notice import ignore as ignore

if TYPE_CHECKING:
    from redlock_django.backends.inspection.contract import Inspection

IN_TRANSIT = '{"handed_on":1}'
"""The holder of a lock whose taker has undone that, in a store that does not keep the giver."""

Section = Mapping[str, Any]
"""The settings of one alias, `settings.REDLOCK[alias]`, with a value for every key."""


@dataclass(frozen=True, kw_only=True)
class StoreSettings:
    """The settings of one store, checked and complete. Durations are in seconds.

    A store with keys of its own derives a class from this one: DEFAULTS lists all its keys with
    their default values, and `read` checks them. `tolerate` has the codes of server faults that
    are only reported.
    """

    DEFAULTS: ClassVar[Mapping[str, Any]] = {"MAX_TTL": 60}

    max_ttl: float
    tolerate: frozenset[str] = frozenset()

    @classmethod
    def read(cls, section: Section) -> Self:
        """Return the settings in a section, which has every key of DEFAULTS.

        Raises ValueError with a message that names the key and contains no password.
        """
        return cls(max_ttl=seconds(section, "MAX_TTL", least=SHORTEST_TTL))

    def check_ttl(self, ttl: float, name: str) -> None:
        """Raise ValueError if the store cannot hold a lock for `ttl` seconds."""
        if ttl > self.max_ttl:
            raise ValueError(
                f"{name} is {ttl:g} s and MAX_TTL is {self.max_ttl:g} s: "
                f"lower {name} or raise MAX_TTL"
            )

    @property
    def identity(self) -> str:
        """The identity of the store among others: the same in every process, never reused."""
        raise NotImplementedError

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all servers, as people see them."""
        return ()


class BaseBackend:
    """A store of locks. Subclasses acquire, extend and release leases; no call blocks for ever.

    `settings` is an instance of `settings_class`. `notice` is called when a server fails or
    comes back, never from the thread or loop of a caller.
    """

    settings_class: ClassVar[type[StoreSettings]] = StoreSettings

    is_shared: bool = True
    """True if other processes see the locks: without it, a lock excludes threads and tasks only."""

    keeps_min_hold: bool = False
    """True if a release before `Lease.earliest_end` leaves the lock held until then."""

    has_permits: bool = False
    """True if several clients can hold a name at once, each one slot of it: `limit`."""

    hands_on: bool = False
    """True if `acquire` can replace the token of a lease, so that it is handed on: `expected`."""

    servers_are_masters: bool = False
    """True if the servers are independent masters, of which a majority decides."""

    void_reason: str = "the clock of this process stepped"
    """Why a lease is lost for which `voided` is True."""

    max_resources: int = 100
    """The most resources of one lease. On a master, one script handles them all and blocks it."""

    clock: Callable[[], float] = staticmethod(clock)
    """Return the time of the clock that leases are measured by, in seconds."""

    def __init__(self, alias: str, settings: StoreSettings, notice: Notice = ignore) -> None:
        """Make the store of an alias. Connects to nothing."""
        self.alias = alias
        self.settings = settings
        self.notice = notice

    def connect(self) -> None:
        """Begin to connect to the servers, in the background, and return at once."""

    async def aconnect(self) -> None:
        """Begin to connect the running loop to the servers, and return at once."""

    def acquire(
        self,
        resources: tuple[str, ...],
        ttl: float,
        wait: float,
        holder: str,
        limit: int = 1,
        expected: Lease | None = None,
    ) -> Lease:
        """Acquire all resources or none, waiting for at most `wait` seconds.

        With a `limit`, `resources` has one name that so many clients may hold at once. The lease is
        a slot of it (see `engine.protocol.slots`). Only a store that `has_permits` is asked for it.

        With an `expected` lease, the lock must have the token of that lease instead of being free,
        and keeps its fences: a lock is handed on, or taken with its ticket, by one client only. If
        that fails, the lock keeps the expected token or gets it back. `wait` is 0, and only a store
        that `hands_on` is asked for it.

        The lease of a ticket has no `home`. It has the resources, the token (32 hex digits), the
        fences, the limit, the givers, and what the store has noted as its `ends`. Its other times
        are seconds since it was handed on: `until`, up to which it is held for the client that
        takes it, and `earliest_end`. They are compared with what the servers know, never with the
        clock of this process.

        Raises ResourceLocked or StoreUnavailable; for an `expected` lease LockLost if the lock has
        ended, TicketUsed if another client has taken it, or StoreUnavailable.
        """
        raise NotImplementedError

    async def aacquire(
        self,
        resources: tuple[str, ...],
        ttl: float,
        wait: float,
        holder: str,
        limit: int = 1,
        expected: Lease | None = None,
    ) -> Lease:
        """Acquire as `acquire` does, on the running loop."""
        raise NotImplementedError

    def extend(self, lease: Lease, ttl: float) -> tuple[LeaseState, Lease]:
        """Extend a lease to `ttl` seconds from now; return its state and the lease now valid."""
        raise NotImplementedError

    def extend_all(
        self, asked: Sequence[tuple[Lease, float]]
    ) -> list[tuple[LeaseState, Lease] | Exception]:
        """Extend each lease by its own TTL as `extend` does, and return the results in order.

        The error of one extension is returned in its place. The renewal service calls this with
        all leases that are due. A store whose servers are far away should ask about all leases at
        the same time: this default extends one lease after the other.
        """
        results: list[tuple[LeaseState, Lease] | Exception] = []
        for lease, ttl in asked:
            try:
                results.append(self.extend(lease, ttl))
            except Exception as error:  # noqa: BLE001 - returned in its place
                results.append(error)
        return results

    def merged(self, held: Lease, extended: Lease) -> Lease:
        """Return the lease to go on with when an extension of `held`, or of an earlier one, ended.

        Extensions of one lease may overlap: the later deadline counts.
        """
        return extended if extended.until >= held.until else held

    async def aextend(self, lease: Lease, ttl: float) -> tuple[LeaseState, Lease]:
        """Extend as `extend` does, on the running loop; by default for a store without I/O."""
        return self.extend(lease, ttl)

    def release(self, lease: Lease) -> bool | None:
        """Release a lease; return True if that freed it, False if it was lost, None if unknown."""
        raise NotImplementedError

    async def arelease(self, lease: Lease) -> bool | None:
        """Release as `release` does, on the running loop; by default for a store without I/O."""
        return self.release(lease)

    def post_release(self, lease: Lease) -> None:
        """Post the release of a lease to the connections and return at once. Never raises."""
        raise NotImplementedError

    def inspect(self) -> Inspection:
        """Return a context manager in which all servers can be asked about locks.

        A server that hangs is waited for once, over all questions.
        """
        raise NotImplementedError

    def declare_new(self) -> bool | None:
        """Trust servers that seem new, at once; return False if they were trusted already.

        Returns None if nothing of that kind is to be declared, or `redlock_init` does it otherwise.
        Raises StoreUnavailable.
        """
        return None

    def voided(self, lease: Lease) -> bool:
        """Return whether a lease is lost before its time is over, for `void_reason`."""
        return False

    def is_uncertain(self, lease: Lease) -> bool:
        """Return whether it is unknown at the moment if the servers still hold a lease."""
        return False

    def forked(self) -> None:
        """Forget, in a forked child, everything that belongs to the parent process."""

    def close(self) -> None:
        """Close the connections of the process."""

    async def aclose(self) -> None:
        """Close the connections of the running loop."""

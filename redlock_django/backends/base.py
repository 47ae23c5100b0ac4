"""The seam for lock services: what `lock()` needs, in terms of leases, not of rounds."""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

from redlock_django.backends.inspection import Freed, HeldLocks, Inspection, ServerHealth
from redlock_django.engine import rounds
from redlock_django.engine.commands import Deployment
from redlock_django.engine.validity import Lease, LeaseState
from redlock_django.wire.address import Address
from redlock_django.wire.clock import clock, wall_ns
from redlock_django.wire.master import Notice, ignore
from redlock_django.wire.waiters import Waiter


class BaseBackend:
    """A lock service. Subclasses take and give back leases; nothing here blocks for ever.

    `addresses` say where the masters are; `terms` are the numbers shared by all clients;
    `master_timeout` and `connect_timeout` in seconds. `notice` is told of masters that fail and
    of those that come back; never from the thread or loop of a caller.

    `names` are those of all masters.
    """

    def __init__(
        self,
        alias: str,
        *,
        addresses: tuple[Address, ...],
        deployment: Deployment,
        master_timeout: float,
        connect_timeout: float,
        tolerate: frozenset[str] = frozenset(),
        notice: Notice = ignore,
    ) -> None:
        self.alias = alias
        self.addresses = addresses
        self.deployment = deployment
        self.master_timeout = master_timeout
        self.connect_timeout = connect_timeout
        self.tolerate = tolerate
        self.notice = notice

    @property
    def names(self) -> tuple[str, ...]:
        """The masters of all groups, as people see them."""
        return self.deployment.names

    def clock(self) -> float:
        """The clock that leases are measured by, in seconds."""
        return clock()

    def _acquire(
        self,
        resources: tuple[str, ...],
        ttl: float,
        wait: float,
        holder: str,
        waiter: Waiter | None = None,
        home: object = None,
    ) -> rounds.Protocol[Lease]:
        """The rounds that take a lease, with this process's time and luck."""
        return rounds.acquire(
            self.deployment,
            resources,
            ttl,
            holder,
            now=self.clock(),
            wait=wait,
            tokens=tokens(),
            proposals=proposals(),
            delays=delays(),
            waiter="" if waiter is None else waiter.name,
            home=home,
        )

    def acquire(self, resources: tuple[str, ...], ttl: float, wait: float, holder: str) -> Lease:
        """Take all resources or none; raises ResourceLocked or QuorumUnreachable."""
        raise NotImplementedError

    async def aacquire(
        self, resources: tuple[str, ...], ttl: float, wait: float, holder: str
    ) -> Lease:
        """As `acquire`, on the running loop."""
        raise NotImplementedError

    def extend(self, lease: Lease, ttl: float) -> tuple[LeaseState, Lease]:
        """Let a lease live `ttl` seconds more; say what was found out, and the lease now valid."""
        raise NotImplementedError

    async def aextend(self, lease: Lease, ttl: float) -> tuple[LeaseState, Lease]:
        """As `extend`, on the loop that took the lease."""
        raise NotImplementedError

    def release(self, lease: Lease) -> bool | None:
        """Free a lease: True if a majority freed it now, False if it was lost, None if unknown."""
        raise NotImplementedError

    async def arelease(self, lease: Lease) -> bool | None:
        """As `release`, on the running loop."""
        raise NotImplementedError

    def post_release(self, lease: Lease) -> None:
        """Put the release of a lease on its way without waiting for it. Never raises."""
        raise NotImplementedError

    def inspect(self) -> Inspection:
        """Return a context manager in which all servers can be asked about locks.

        A server that hangs is waited for once, over all questions.
        """
        raise NotImplementedError

    def page(self, **options: Any) -> HeldLocks:
        """Return a page of the held locks; options as `Inspection.page` takes them."""
        with self.inspect() as inspection:
            return inspection.page(**options)

    def look(self, resources: Sequence[str]) -> HeldLocks:
        """Return what is known of these resources."""
        with self.inspect() as inspection:
            return inspection.look(resources)

    def free(self, resource: str, fingerprint: str | None = None) -> Freed:
        """Free a lock that another client holds: the one with this fingerprint, None for any."""
        with self.inspect() as inspection:
            return inspection.free(resource, fingerprint)

    def health(self) -> list[ServerHealth]:
        """Return the health of every server."""
        with self.inspect() as inspection:
            return inspection.health()

    def voided(self, lease: Lease) -> bool:
        """Whether a lease must be given up although its time is not over (our clock stepped)."""
        return False

    def forked(self) -> None:
        """Forget, in a child process, everything that belongs to the parent."""

    def close(self) -> None:
        """Close what belongs to the process."""

    async def aclose(self) -> None:
        """Close what belongs to the running loop."""


def tokens() -> Iterator[str]:
    """Fresh 128-bit tokens as 32 hex digits. Never `random`: a fork would repeat it."""
    while True:
        yield secrets.token_hex(16)


def proposals() -> Iterator[int]:
    """The wall clock in µs: what we propose as fencing token."""
    while True:
        yield wall_ns() // 1000


def delays() -> Iterator[float]:
    """Seconds between rounds: at random, longer and longer, at most a tenth of a second."""
    for tries in count():
        longest = min(0.1, 0.002 * 2.0 ** min(tries, 8))
        yield random.uniform(longest / 4, longest)

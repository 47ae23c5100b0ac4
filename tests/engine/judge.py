"""Who sees everything, with true time, and says when a promise was broken."""

from __future__ import annotations

from dataclasses import dataclass

from redlock_django.engine.validity import Lease
from tests.engine.world import Clock, SimulatedMaster, Violation, World


@dataclass(slots=True)
class Holding:
    """A client that believes, until its own clock says `until`, that it holds a resource."""

    client: str
    token: str
    until: float  # true time


class Judge:
    """The checkers of one simulation."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.holdings: dict[str, list[Holding]] = {}
        self.fences: dict[str, int] = {}
        self.winners: dict[str, int] = {}
        self.holders: set[str] = set()
        self.alive: dict[str, bool] = {}  # token -> whether its client still lives

    def drawn(self, token: str) -> None:
        """A round has begun with that token."""
        self.alive[token] = True

    def granted(self, client: str, clock: Clock, lease: Lease) -> None:
        """A client was told that it holds a lease."""
        self.world.note(client, f"HOLDS {'+'.join(lease.resources)} {lease.fences}")
        until = clock.when(lease.until)
        if until <= self.world.now:
            self.world.seen["woke up too late"] += 1
            return
        self.world.seen["grants"] += 1
        self.world.seen["two resources"] += len(lease.resources) > 1
        self.holders.add(client)
        self._alone(client, lease, until)
        for resource, fence in zip(lease.resources, lease.fences, strict=True):
            self.winners[resource] = self.winners.get(resource, 0) + 1
            last = self.fences.get(resource, 0)
            if fence <= last:
                raise Violation(f"{resource}: fence {fence} of {client} after {last}")
            self.fences[resource] = fence

    def renewed(self, client: str, clock: Clock, lease: Lease) -> None:
        """A client was told that its lease lives longer."""
        until = clock.when(lease.until)
        if until > self.world.now:
            self.world.seen["renewed"] += 1
            self._alone(client, lease, until)

    def _alone(self, client: str, lease: Lease, until: float) -> None:
        now = self.world.now
        for resource in lease.resources:
            others = [
                held
                for held in self.holdings.get(resource, ())
                if held.until > now and held.token != lease.token
            ]
            if others:
                raise Violation(
                    f"{resource}: {client} ({lease.token[:6]}) and {others[0].client} "
                    f"({others[0].token[:6]}, for {others[0].until - now:.4f} s more) hold it"
                )
            self.holdings[resource] = [Holding(client, lease.token, until)]

    def ended(self, lease: Lease) -> None:
        """A client no longer believes that it holds a lease."""
        for resource in lease.resources:
            held = self.holdings.get(resource, [])
            self.holdings[resource] = [one for one in held if one.token != lease.token]

    def left(self, masters: list[SimulatedMaster], *, clients_idle: bool) -> None:
        """No lock may live longer than it may, nor outlive the round of a living client."""
        for master in masters:
            if not master.up:
                continue
            for resource, token in master.locks().items():
                left = master.memory.pttl(master.terms.lock(resource)) / 1000
                if not 0 <= left <= master.terms.max_ttl:
                    raise Violation(f"{resource} stands on {master.name} for {left} s")
                if clients_idle and self.alive[token]:
                    raise Violation(f"{resource} of {token[:6]} was left on {master.name}")

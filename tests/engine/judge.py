"""Who sees everything, with true time, and says when a promise was broken."""

from __future__ import annotations

from dataclasses import dataclass

from redlock_django.backends.memory import LINGER
from redlock_django.engine.validity import Lease
from tests.engine.world import Clock, SimulatedMaster, Violation, World


@dataclass(slots=True)
class Holding:
    """A client that believes, until its own clock says `until`, that it holds a resource."""

    client: str
    token: str
    until: float  # true time


@dataclass(slots=True)
class Asking:
    """A client that wants resources: since when, and since when it stands in a queue."""

    resources: tuple[str, ...]
    since: float
    queued: float | None = None
    overtaken: int = 0


class Judge:
    """The checkers of one simulation."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.holdings: dict[str, list[Holding]] = {}
        self.fences: dict[str, int] = {}
        self.winners: dict[str, int] = {}
        self.holders: set[str] = set()
        self.alive: dict[str, bool] = {}  # token -> whether its client still lives
        self.dead: set[str] = set()  # clients that were killed
        self.asking: dict[str, Asking] = {}  # by client
        self.overtaken = 0  # at most so many came later than a waiter and were served before it
        self.freed: dict[str, float] = {}  # when somebody let go of what others waited for
        self.gaps: list[float] = []  # how long it took until one of them had it

    def drawn(self, token: str) -> None:
        """A round has begun with that token."""
        self.alive[token] = True

    def asks(self, client: str, resources: tuple[str, ...]) -> None:
        """A client begins to ask."""
        self.asking[client] = Asking(resources, self.world.now)

    def queues(self, client: str) -> None:
        """A client has been refused, and waits."""
        asking = self.asking[client]
        if asking.queued is None:
            asking.queued = self.world.now

    def turn(self, lease: Lease, asked: Asking | None) -> None:
        """A client was granted what it asked for: who came before it, and was there a gap?"""
        assert asked is not None
        for resource in lease.resources:
            freed = self.freed.pop(resource, None)
            if freed is not None:
                self.gaps.append(self.world.now - freed)
        for other in self.asking.values():
            before = other.queued is not None and other.queued < asked.since
            if before and other.resources == lease.resources:
                other.overtaken += 1
                self.overtaken = max(self.overtaken, other.overtaken)

    def granted(self, client: str, clock: Clock, lease: Lease) -> None:
        """A client was told that it holds a lease."""
        self.world.note(client, "HOLDS", "+".join(lease.resources), lease.fences)
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
            for other in self.asking.values():
                if other.queued is not None and other.resources == (resource,):
                    self.freed[resource] = self.world.now

    def left(self, masters: list[SimulatedMaster], *, clients_idle: bool) -> None:
        """No lock may live longer than it may, nor outlive the round of a living client."""
        for master in masters:
            if not master.up:
                continue
            for resource, token in master.locks().items():
                left = master.memory.pttl(master.terms.lock(resource)) / 1000
                if not 0 <= left <= master.terms.max_ttl:
                    raise Violation(f"{resource} stands on {master.name} for {left} s")
                if clients_idle and self.alive[token] and token not in master.strays:
                    raise Violation(f"{resource} of {token[:6]} was left on {master.name}")
            self._queues(master, clients_idle=clients_idle and not master.restored)

    def _queues(self, master: SimulatedMaster, *, clients_idle: bool) -> None:
        """No queue outlives its lock by much; nobody stands in one who does not wait."""
        for resource, names in master.waiters().items():
            key = master.terms.queue(resource)
            left = master.memory.ends[key] / 1000 - master.clock.read()
            if left > master.terms.max_ttl + LINGER / 1000:
                raise Violation(f"the queue of {resource} stands on {master.name} for {left} s")
            for name in names if clients_idle else ():
                client = name.rpartition(":")[2].partition(" ")[0]
                if client not in self.dead:
                    raise Violation(f"{name} was left in {resource}'s queue on {master.name}")

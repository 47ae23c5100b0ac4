"""The checker: it sees everything, with true time, and raises Violation for a broken promise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from redlock_django.engine.errors import NotAcquired
from redlock_django.engine.protocol.slots import name_of, slot_resource
from redlock_django.engine.quorum import quorum
from redlock_django.engine.validity import Lease, RedlockLease
from tests.engine.world import Clock, SimulatedMaster, Violation, World

LINGER = 3000


class Holder(Protocol):
    """A client that holds a lease until the deadline by its own clock."""

    name: str
    clock: Clock

    def void(self, lease: Lease) -> bool:
        """Return whether it gave the lease up because its own clock stepped."""


class Released(Protocol):
    """A client's view of one master, with the tokens that the master reported as released."""

    master: SimulatedMaster
    freed: set[str]


class Holding:
    """A client that believes in a lease, which these masters granted.

    The granting round began at the true time `began`. Once the client has ended the lease, it
    excludes others until the end of its minimum hold.
    """

    __slots__ = ("began", "client", "ended", "lease", "masters")

    def __init__(
        self,
        client: Holder,
        lease: RedlockLease,
        began: float,
        masters: set[SimulatedMaster],
    ) -> None:
        self.client = client
        self.lease = lease
        self.began = began
        self.ended = False
        self.masters = masters

    def left(self, now: float) -> float:
        """Return for how many true seconds the client still believes, at its clock's rate."""
        if self.client.void(self.lease):
            return 0.0
        return self.client.clock.when(self.lease.until) - now

    def excludes(self, now: float) -> float:
        """Return for how many true seconds no other client may hold the resources."""
        if self.client.void(self.lease):
            return 0.0
        until = 0.0 if self.ended else self.lease.until
        return self.client.clock.when(max(until, self.lease.earliest_end)) - now

    def robbed(self, master: SimulatedMaster, before: float, now: float) -> bool:
        """Return whether clock steps explain that the master's vote was lost at `before`.

        `before` is when another holder's round began. A master's clock that goes forward lets
        the lock expire early, and the client's clock that goes back lets it believe too long:
        by as much as they step and no more. Once the master has been marked, it grants nothing
        until all it may have forgotten has expired, so earlier steps explain nothing.

        A master that lost a part of its memory without a restart explains it for as long as no
        client need know of that.
        """
        unknown = (until for lost, until in master.unknown if self.began <= lost <= now)
        marked = (when for when in master.marked if self.began < when <= before)
        since = max(marked, default=self.began)
        stepped = master.clock.rose(since) + self.client.clock.fell(self.began)
        # Clocks run up to 1 % apart.
        return 1.01 * stepped >= self.excludes(now) or before <= max(unknown, default=-1.0)


@dataclass(slots=True)
class Asking:
    """A client that asks for resources: since when, how long it waits, since when it is queued."""

    resources: tuple[str, ...]
    since: float
    until: float
    limit: int = 1
    queued: float | None = None
    overtaken: int = 0


@dataclass(slots=True)
class Ticket:
    """A lease that was handed on at a moment of true time, and whether a client has taken it."""

    lease: Lease
    since: float
    is_taken: bool = False


class Checker:
    """The invariants that one simulation is checked for."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.masters: list[SimulatedMaster] = []
        self.granted_at: dict[str, list[tuple[float, Holding]]] = {}  # by resource
        self.holdings: dict[str, list[Holding]] = {}
        self.fences: dict[str, int] = {}
        self.winners: dict[str, int] = {}
        self.holders: set[str] = set()
        self.alive: dict[str, bool] = {}  # token -> whether its client still lives
        self.min_held: set[str] = set()  # the tokens of leases with a minimum hold
        self.dead: set[str] = set()  # clients that were killed
        self.asking: dict[str, Asking] = {}  # by client
        self.overtaken = 0  # most clients that overtook one waiter
        self.freed: dict[str, float] = {}  # when a resource with waiters was released
        self.gaps: list[float] = []  # seconds from there until a waiter held it
        self.tickets: list[Ticket] = []
        self.limits: dict[str, int] = {}  # by name: the largest that a client has asked for
        # By master and slot: until when it is known to have been taken there.
        self.taken: dict[tuple[SimulatedMaster, str], float] = {}

    def drawn(self, token: str) -> None:
        """Note that a round has begun with that token."""
        self.alive[token] = True

    def asks(self, client: str, resources: tuple[str, ...], wait: float, limit: int = 1) -> None:
        """Note that a client begins to ask, and waits for so many true seconds."""
        now = self.world.now
        self.asking[client] = Asking(resources, now, now + wait, limit)
        for name in resources:
            self.limits[name] = max(limit, self.limits.get(name, 1))

    def queues(self, client: str) -> None:
        """Note that a client was refused and waits."""
        asking = self.asking[client]
        if asking.queued is None:
            asking.queued = self.world.now

    def turn(self, new: Holding, asked: Asking | None) -> None:
        """Note the gap before a grant, and which waiters this client has overtaken.

        A client whose wait was over when the round of the grant began was about to leave.
        """
        assert asked is not None
        lease = new.lease
        for resource in lease.resources:
            freed = self.freed.pop(resource, None)
            if freed is not None:
                self.gaps.append(self.world.now - freed)
        if lease.limit > 1 and not any(map(self._waits, lease.names)):
            for slot in range(self.limits[lease.names[0]]):  # a free slot has no waiter any more
                self.freed.pop(slot_resource(lease.names[0], slot), None)
        for other in self.asking.values():
            before = other.queued is not None and other.queued < asked.since
            waits = new.began < other.until
            if before and waits and other.resources == lease.names:
                other.overtaken += 1
                self.overtaken = max(self.overtaken, other.overtaken)

    def granted(self, new: Holding) -> None:
        """Check a new lease."""
        client, lease = new.client, new.lease
        self.world.note(client.name, "HOLDS", "+".join(lease.resources), lease.fences)
        if lease.earliest_end:
            self.min_held.add(lease.token)
        if new.left(self.world.now) <= 0:
            self.world.seen["woke up too late"] += 1
            return
        self.world.seen["grants"] += 1
        self.world.seen["two resources"] += len(lease.resources) > 1
        self.holders.add(client.name)
        self._alone(new)
        for name in lease.names if lease.limit > 1 else ():
            self._few(name)
        for resource, fence in zip(lease.resources, lease.fences, strict=True):
            name = name_of(resource)
            self.winners[name] = self.winners.get(name, 0) + 1
            self._grows(resource, fence, new)
            self.fences[resource] = max(fence, self.fences.get(resource, 0))
            self.granted_at.setdefault(resource, []).append((self.world.now, new))

    def handed_on(self, client: Holder, lease: Lease, handed: Lease) -> None:
        """Note that a client has handed its lease on: it does not believe in it any more."""
        self.world.note(client.name, "HANDS ON", "+".join(lease.resources))
        self.world.seen["handed on"] += 1
        for resource in lease.resources:
            held = self.holdings.get(resource, [])
            self.holdings[resource] = [one for one in held if one.lease.token != lease.token]
        self.tickets.append(Ticket(handed, self.world.now))

    def resumed(self, ticket: Ticket, new: Holding) -> None:
        """Check that a lease was taken once, with its fences, and nobody held it in between."""
        client, lease = new.client, new.lease
        self.world.note(client.name, "TAKES", "+".join(lease.resources), lease.fences)
        if new.left(self.world.now) <= 0:
            self.world.seen["took too late"] += 1
            return
        self.world.seen["taken"] += 1
        self._alone(new)
        excused = self.world.stepping or any(master.unknown for master in self.masters)
        if ticket.is_taken and not excused:
            raise Violation(f"{client.name} takes what was taken before")
        ticket.is_taken = True
        if lease.fences != ticket.lease.fences:
            raise Violation(f"{client.name} takes a lock with another fence")
        for resource, fence in zip(lease.resources, ticket.lease.fences, strict=True):
            if self.fences[resource] != fence and not excused:
                raise Violation(f"{resource}: another client has held it since it was handed on")

    def told_used(self, client: str, ticket: Ticket) -> None:
        """Check that a majority of the masters had one taker of a ticket that counts as used."""
        token = ticket.lease.token
        takers = {by for master in self.masters for old, by in master.replaced if old == token}
        had = (sum((token, by) in master.replaced for master in self.masters) for by in takers)
        if max(had, default=0) < quorum(len(self.masters)):
            raise Violation(f"{client} gets TicketUsed for a ticket that no client has used")

    def renewed(self, extended: Holding) -> None:
        """Check a lease that was extended."""
        if extended.left(self.world.now) > 0:
            self.world.seen["renewed"] += 1
            self._alone(extended)

    def released(
        self, client: Holder, lease: Lease, answer: bool | None, lines: Sequence[Released]
    ) -> None:
        """Check what a release has returned.

        True: a majority has freed the lock. False: no majority has. None: the client has not heard
        of a majority.
        """
        token, need = lease.token, quorum(len(lines))
        freed = sum(token in line.master.freed for line in lines)
        heard = sum(token in line.freed for line in lines)
        self.world.seen[f"released: {answer}"] += 1
        right = {True: freed >= need, False: freed < need, None: heard < need}
        if not right[answer]:
            raise Violation(
                f"{client.name} gets {answer} from its release, but {freed} masters have freed it"
            )

    def _alone(self, new: Holding) -> None:
        now, token = self.world.now, new.lease.token
        for resource in new.lease.resources:
            others = [
                held
                for held in self.holdings.get(resource, ())
                if held.lease.token != token and held.excludes(now) > 0
            ]
            for held in others:
                # Each master that granted it to both must have lost one of them early.
                both = held.masters & new.masters
                if not both or not all(
                    held.robbed(master, new.began, now) or new.robbed(master, held.began, now)
                    for master in both
                ):
                    raise Violation(
                        f"{resource}: {new.client.name} ({token[:6]}) and {held.client.name} "
                        f"({held.lease.token[:6]}, for {held.excludes(now):.4f} s more) hold it"
                    )
                self.world.seen["two hold, after a step"] += 1
            self.holdings[resource] = [*others, new]

    def _few(self, name: str) -> None:
        """Check that no more clients hold slots of a name than the largest limit of any of them."""
        now, limit = self.world.now, self.limits[name]
        self.world.seen["permits"] += 1
        holding = [
            held
            for resource, ones in self.holdings.items()
            if name_of(resource) == name
            for held in ones
            if held.excludes(now) > 0
        ]
        self.world.seen["permits all held"] += len(holding) == limit
        excused = self.world.stepping or any(master.unknown for master in self.masters)
        if len(holding) > limit and not excused:
            names = ", ".join(held.client.name for held in holding)
            raise Violation(f"{name}: {names} hold it, and its limit is {limit}")

    def saw(self, master: SimulatedMaster) -> None:
        """Note which slots are taken on a master, or reserved for waiters."""
        now, keyspace = self.world.now, master.memory.keyspace
        for name, limit in self.limits.items():
            reserved = bool(keyspace.sorted_set(master.deployment.queue(name)))
            for slot in range(limit):
                resource = slot_resource(name, slot)
                left = keyspace.pttl(master.deployment.lock(resource)) / 1000
                before = self.taken.get((master, resource), 0.0)
                if left >= 0:
                    self.taken[master, resource] = now + 1.01 * left
                elif reserved:
                    self.taken[master, resource] = now
                else:
                    self.taken[master, resource] = min(before, now)

    def refused(self, client: str, wait: float, error: NotAcquired, timeout: float) -> None:
        """Check that no slot was free on a majority throughout the call of a refused client.

        A call that was asked again until it was over may end beside a free slot, and so may one
        whose masters have failed.
        """
        asking = self.asking[client]
        took = self.world.now - asking.since
        if wait or took > timeout or error.tally is None:
            return
        (name,) = asking.resources
        answered = [
            master
            for master in self.masters
            if str(error.tally.get(master.name)).startswith(("held", "reserved", "granted"))
            and not master.restored
        ]
        for slot in range(asking.limit):
            resource = slot_resource(name, slot)
            free = [
                master
                for master in answered
                if self.taken.get((master, resource), 0.0) < asking.since
            ]
            if len(free) >= quorum(len(error.tally)):
                raise Violation(f"{client} is refused after {took:.4f} s, and {resource} is free")
        self.world.seen["refused as all slots are taken"] += 1

    def _waits(self, name: str) -> bool:
        asking = self.asking.values()
        return any(one.queued is not None and one.resources == (name,) for one in asking)

    def _grows(self, resource: str, fence: int, new: Holding) -> None:
        """Check that a fence is higher than all that were reported before its round began.

        If no clock steps, these are all earlier fences, because nobody else holds the resource.
        Two clients that hold it at once, because clocks stepped, may learn of their grants in
        another order than the masters served them.
        """
        last = self.fences.get(resource, 0)
        if fence > last:
            return
        if any(new.began <= until for one in self.masters for _, until in one.unknown):
            self.world.seen["fence went back"] += 1
            return
        if not self.world.stepping:
            raise Violation(f"{resource}: fence {fence} of {new.client.name} after {last}")
        for granted, held in self.granted_at[resource]:
            other = held.lease.fences[held.lease.resources.index(resource)]
            if fence > other or (fence < other and granted > new.began):
                continue
            if not (
                any(self._went_back(master, held.began) for master in self.masters)
                or self._only_clocks_order(held, new)
            ):
                raise Violation(f"{resource}: fence {fence} of {new.client.name} after {other}")
            self.world.seen["fence went back"] += 1

    def _went_back(self, master: SimulatedMaster, since: float) -> bool:
        """Return whether a master lost its fence and its clock went back as well.

        Then nothing is left that makes the next fence higher than the last.
        """
        deployment = master.deployment
        expired = master.clock.rose(since) > deployment.fence_ttl - 3 * deployment.max_clock_skew
        return (master.forgot >= since or expired) and master.clock.fell(since) > 0

    def _only_clocks_order(self, held: Holding, new: Holding) -> bool:
        """Return whether no master whose clock is right granted both, and a wrong one the first.

        That is so after a change of the list: a majority of the new one may have none of the old
        one's masters, so that only clocks order their fences.
        """
        wrong = {
            master
            for master in held.masters
            if abs(master.clock.off) > master.deployment.max_clock_skew
        }
        return bool(wrong) and held.masters & new.masters <= wrong

    def ended(self, lease: Lease) -> None:
        """Note that a client no longer believes in a lease."""
        for resource in lease.resources:
            held = self.holdings.get(resource, [])
            for one in held:
                one.ended = one.ended or one.lease.token == lease.token
            self.holdings[resource] = [one for one in held if one.excludes(self.world.now) > 0]
            if any(one.lease.token == lease.token for one in self.holdings[resource]):
                self.world.seen["ended before its minimum hold"] += 1
                continue
            for other in self.asking.values():
                if other.queued is not None and other.resources == (name_of(resource),):
                    self.freed[resource] = self.world.now

    def left(self, masters: list[SimulatedMaster], *, clients_idle: bool) -> None:
        """Check that no lock outlives its TTL, nor the round of a living client that lost it."""
        for master in masters:
            if not master.up:
                continue
            for resource, token in master.locks().items():
                left = master.memory.keyspace.pttl(master.deployment.lock(resource)) / 1000
                # A clock that went back prolongs a lock by as much, until a client asks for it.
                if not 0 <= left <= master.deployment.max_ttl + master.clock.fell(0.0):
                    raise Violation(f"the lock of {resource} is on {master.name} for {left} s")
                stays = token in master.strays or token in self.min_held
                if clients_idle and self.alive[token] and not stays:
                    raise Violation(f"{resource} of {token[:6]} was left on {master.name}")
            self._queues(master, clients_idle=clients_idle and not master.restored)

    def _queues(self, master: SimulatedMaster, *, clients_idle: bool) -> None:
        """Check that no queue outlives its lock by much and that all queued clients wait."""
        for resource, names in master.waiters().items():
            key = master.deployment.queue(resource)
            left = master.memory.keyspace.ends[key] / 1000 - master.clock.read()
            if left > master.deployment.max_ttl + LINGER / 1000 + master.clock.fell(0.0):
                raise Violation(f"the queue of {resource} is on {master.name} for {left} s")
            for name in names if clients_idle else ():
                client = name.rpartition(":")[2].partition(" ")[0]
                if client not in self.dead:
                    raise Violation(f"{name} was left in {resource}'s queue on {master.name}")

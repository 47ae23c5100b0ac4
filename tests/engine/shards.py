"""Simulated backends: one shard of masters, and several shards composed by `ShardedBackend`.

Where other backends block or are awaited, these return programs that the simulated client runs.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

from redlock_django.backends.base import BaseBackend, StoreSettings
from redlock_django.backends.sharded.backend import Asking, ShardedBackend
from redlock_django.backends.sharded.lease import Part
from redlock_django.engine import attempt, hand_on, rounds
from redlock_django.engine.errors import NotAcquired
from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.engine.slot_choice import ReleasedSlots
from redlock_django.engine.steps import Round
from redlock_django.engine.validity import Lease, LeaseState, RedlockLease
from redlock_django.wire.judging.late_masters import LONGEST
from redlock_django.wire.link.link import wake_none
from tests.engine.network import Wire
from tests.engine.world import Violation

if TYPE_CHECKING:
    from tests.engine.clients import Client


class SimulatedShard(BaseBackend):
    """One client's connection to one shard of masters, in place of `RedisBackend`."""

    def __init__(
        self, client: Client, deployment: Deployment, wire: Wire, identity: str = ""
    ) -> None:
        super().__init__("default", StoreSettings(max_ttl=deployment.max_ttl))
        self.deployment = deployment
        self._identity = identity
        self.client = client
        self.wire = wire
        self.released = ReleasedSlots()
        self.simulated = (self,)
        self.indexes = (0,)
        self.last_state = LeaseState.RENEWED  # of the lease extended last

    @property
    def identity(self) -> str:
        return self._identity

    def clock(self) -> float:
        return self.client.read()

    def acquire(
        self, resources: tuple[str, ...], ttl: float, wait: float, holder: str, limit: int = 1
    ) -> Any:
        client = self.client
        in_time = _Deadline(client, wait, [self.wire])
        client.wire = self.wire
        if wait > 0:
            # As `Links.waiter` does.
            client.waiter = self.wire.waiters.new(resources if limit == 1 else ())
        protocol = rounds.acquire(
            self._engine_client(),
            resources,
            ttl,
            holder,
            now=self.clock(),
            wait=wait,
            waiter=client.waiter,
            limit=limit,
        )
        try:
            return (yield from in_time.check(protocol))
        finally:
            if client.waiter is not None:
                client.waiter.leave()
            client.waiter = None

    def extend(self, lease: Lease, ttl: float) -> Any:
        self.client.wire = self.wire
        self.last_state, lease = yield from rounds.extend(
            self.deployment, _redlock(lease), ttl, now=self.clock()
        )
        return self.last_state, lease

    def hand_on(self, lease: Lease, token: str, ttl: float, holder: str) -> Any:
        self.client.wire = self.wire
        return (
            yield from hand_on.hand_on(
                self._engine_client(), _redlock(lease), token, ttl, holder, now=self.clock()
            )
        )

    def resume(self, handed: Lease, ttl: float, holder: str) -> Any:
        self.client.wire = self.wire
        return (
            yield from hand_on.resume(self._engine_client(), handed, ttl, holder, now=self.clock())
        )

    def _engine_client(self) -> attempt.Client:
        client = self.client
        return attempt.Client(
            self.deployment,
            client.fresh(),
            client.proposals(),
            client.delay,
            overrun=2 * self.wire.master_timeout,
            released=self.released,
        )

    def release(self, lease: Lease) -> Any:
        self.client.wire = self.wire
        if lease.limit > 1:
            self.released.add(lease.names[0], lease.slot)
        answer = yield from rounds.release(
            self.deployment, _redlock(lease), held_for=lease.held_for(self.clock)
        )
        self.client.checker.released(self.client, lease, answer, self.wire.lines)
        return answer

    def post_release(self, lease: Lease) -> None:
        if not self.client.gone:  # a killed process sends nothing
            self.client.world.seen["handed over"] += 1
            held_for = lease.held_for(self.clock)
            asked = next(
                rounds.release(self.deployment, _redlock(lease), awaited=False, held_for=held_for)
            )
            assert isinstance(asked, Round)
            self.wire.begin(self.wire.exchange(asked, wake_none))

    def voided(self, lease: Lease) -> bool:
        return self.wire.steps.void(lease)

    def parts(self, lease: Lease) -> list[tuple[SimulatedShard, RedlockLease]]:
        """Return a lease's part in each shard: here there is one."""
        return [(self, _redlock(lease))]


class SimulatedShards(ShardedBackend):
    """`ShardedBackend` itself over several shards, run by a simulated client."""

    def __init__(self, shards: Sequence[SimulatedShard]) -> None:
        super().__init__(shards[0].settings, shards)
        self.simulated = tuple(shards)
        self.client = shards[0].client
        # By the world's numbers: this client's settings may list the shards in another order.
        self.indexes = tuple(
            index for _, index in sorted((shard.wire.shard, n) for n, shard in enumerate(shards))
        )

    def _run(self, asking: Asking[Any]) -> Any:
        try:
            ask = next(asking)
            while True:
                try:
                    ask.answer = yield from getattr(ask.shard, ask.verb)(*ask.arguments)
                except BaseException as error:  # noqa: BLE001 - raised again in there
                    ask = asking.throw(error)
                else:
                    ask = next(asking)
        except StopIteration as done:
            return done.value

    def acquire(
        self, resources: tuple[str, ...], ttl: float, wait: float, holder: str, limit: int = 1
    ) -> Any:
        client = self.client
        disturbed = client.disturbed
        in_time = _Deadline(client, wait, [shard.wire for shard in self.simulated])
        lease = yield from in_time.check(
            self._run(self._acquire(resources, ttl, wait, holder, limit))
        )
        if client.disturbed == disturbed and self.clock() >= lease.until:
            raise Violation(f"{client.name} acquires a lease that is over")
        return lease

    def extend(self, lease: Lease, ttl: float) -> Any:
        state, new = yield from self._run(self._extend(lease, ttl))
        parts = [shard.last_state for shard, _ in self.parts(lease)]
        if LeaseState.LOST in parts and state is not LeaseState.LOST:
            raise Violation(f"{self.client.name} believes in a lease that has lost a part")
        return state, new

    def release(self, lease: Lease) -> Any:
        return self._run(self._release(lease))

    def parts(self, lease: Lease) -> list[tuple[SimulatedShard, RedlockLease]]:
        """Return a lease's part in each shard."""
        return [(_simulated(part), _redlock(part.lease)) for part in self._parts(lease)]


class _Deadline:
    """The time by which a call must have ended that waits `wait` s for the shards of these links.

    For each shard, votes may be split for two MASTER_TIMEOUTs, and the last attempt takes at most
    two: a round, and a confirm round. If its masters are slow, each of these takes LONGEST times as
    long.
    """

    def __init__(self, client: Client, wait: float, wires: Sequence[Wire]) -> None:
        self.client, self.began, self.disturbed = client, client.world.now, client.disturbed
        self.wait, self.wires = wait, wires

    def check(self, call: Generator[Any, Any, Lease]) -> Any:
        """Run a call; raise Violation if it ends too late although its client was not disturbed."""
        refusal: NotAcquired | None = None
        try:
            lease = yield from call
        except NotAcquired as error:
            refusal = error
        client, longest = self.client, 0.0
        for wire in self.wires:
            patience = LONGEST if wire.patient_at >= self.began else 1
            longest += (2 + 2 * patience) * wire.master_timeout
        late = client.world.now - self.began - self.wait
        # Clocks are off by up to 1 %.
        if client.disturbed == self.disturbed and late > longest + 0.01 * (self.wait + longest):
            raise Violation(f"{client.name} waited {late:.3f} s longer than it asked for")
        if refusal is not None:
            raise refusal
        return lease


def _simulated(part: Part) -> SimulatedShard:
    assert isinstance(part.shard, SimulatedShard)
    return part.shard


def _redlock(lease: Lease) -> RedlockLease:
    assert isinstance(lease, RedlockLease)
    return lease

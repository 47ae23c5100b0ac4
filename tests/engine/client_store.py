"""The store of a simulated client, in place of `RedisBackend`.

Where other backends block or are awaited, its methods return programs that the client runs.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from redlock_django.backends.base import BaseBackend, StoreSettings
from redlock_django.engine import attempt, rounds
from redlock_django.engine.errors import NotAcquired
from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.engine.slot_choice import ReleasedSlots
from redlock_django.engine.steps import Round
from redlock_django.engine.validity import Lease, RedlockLease
from redlock_django.wire.links.late_masters import LONGEST
from redlock_django.wire.links.link import wake_none
from tests.engine.network import Wire
from tests.engine.world import Violation

if TYPE_CHECKING:
    from tests.engine.clients import Client


class SimulatedStore(BaseBackend):
    """One client's connection to the masters."""

    def __init__(self, client: Client, deployment: Deployment) -> None:
        super().__init__("default", StoreSettings(max_ttl=deployment.max_ttl))
        self.deployment = deployment
        self.client = client
        self.released = ReleasedSlots()

    @property
    def wire(self) -> Wire:
        """The client's links, which threads of one process share."""
        return self.client.wire

    def clock(self) -> float:
        return self.client.read()

    def acquire(
        self,
        resources: tuple[str, ...],
        ttl: float,
        wait: float,
        holder: str,
        limit: int = 1,
        expected: Lease | None = None,
    ) -> Any:
        client = self.client
        in_time = _Deadline(client, wait)
        if wait > 0:
            client.waiter = self.wire.waiters.new()
        protocol = rounds.acquire(
            self._engine_client(),
            resources,
            ttl,
            holder,
            now=self.clock(),
            wait=wait,
            waiter=client.waiter,
            home=client,
            limit=limit,
            expected=expected,
        )
        try:
            # Without a wait, but far away: attempts with an expected lease are bounded by number.
            return (yield from (in_time.check(protocol) if expected is None else protocol))
        finally:
            client.waiter = None

    def extend(self, lease: Lease, ttl: float) -> Any:
        return (yield from rounds.extend(self.deployment, _redlock(lease), ttl, now=self.clock()))

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
        return lease.started <= self.wire.steps.voided


class _Deadline:
    """The time by which a call of a client must have ended that waits `wait` s.

    Votes may be split for two MASTER_TIMEOUTs, and the last attempt takes at most two: a round, and
    a confirm round. If the masters are slow, each of these takes LONGEST times as long.
    """

    def __init__(self, client: Client, wait: float) -> None:
        self.client, self.began, self.disturbed = client, client.world.now, client.disturbed
        self.wait = wait

    def check(self, call: Generator[Any, Any, Lease]) -> Any:
        """Run a call; raise Violation if it ends too late although its client was not disturbed."""
        refusal: NotAcquired | None = None
        try:
            lease = yield from call
        except NotAcquired as error:
            refusal = error
        client, wire = self.client, self.client.wire
        patience = LONGEST if wire.patient_at >= self.began else 1
        longest = (2 + 2 * patience) * wire.master_timeout
        late = client.world.now - self.began - self.wait
        # Clocks are off by up to 1 %.
        if client.disturbed == self.disturbed and late > longest + 0.01 * (self.wait + longest):
            raise Violation(f"{client.name} waited {late:.3f} s longer than it asked for")
        if refusal is not None:
            raise refusal
        return lease


def _redlock(lease: Lease) -> RedlockLease:
    assert isinstance(lease, RedlockLease)
    return lease

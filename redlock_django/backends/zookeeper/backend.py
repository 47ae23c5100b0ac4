"""Locks in ZooKeeper: an ephemeral node for each client, in a queue for each resource.

docs/contributing/stores.md explains why there is one holder.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from kazoo.client import KazooClient

from redlock_django.backends.base import Notice, StoreSettings, ignore
from redlock_django.backends.protocol_backend import (
    Acquisition,
    Extension,
    ProtocolBackend,
    StoreProtocol,
    StoreStep,
)
from redlock_django.backends.zookeeper.attempt import (
    ZooKeeperAttempt,
    ZooKeeperLease,
    replace_all,
)
from redlock_django.backends.zookeeper.fences import AGAIN, Fences, Interrupted, Requests
from redlock_django.backends.zookeeper.hand_on import ZooKeeperSwap
from redlock_django.backends.zookeeper.inspection import ZooKeeperInspection
from redlock_django.backends.zookeeper.own_nodes import ZooKeeperRefusal
from redlock_django.backends.zookeeper.paths import data_of, min_hold_path
from redlock_django.backends.zookeeper.requests import RequestBatch
from redlock_django.backends.zookeeper.session import Session
from redlock_django.backends.zookeeper.settings import ZooKeeperSettings
from redlock_django.engine.run_protocol import drive
from redlock_django.engine.validity import Lease, LeaseState, with_drift
from redlock_django.exceptions import LimitReached, ResourceLocked


class ZooKeeperBackend(ProtocolBackend):
    """Locks in the nodes of one session, which all threads and loops of the process share."""

    settings_class = ZooKeeperSettings
    keeps_min_hold = True
    has_permits = True
    hands_on = True
    void_reason = "the session with ZooKeeper was lost"
    settings: ZooKeeperSettings

    def __init__(self, alias: str, settings: StoreSettings, notice: Notice = ignore) -> None:
        super().__init__(alias, settings, notice)
        self.session = self._new_session()

    def _new_session(self) -> Session:
        return Session(self.settings, lambda: self.clock(), self.notice)

    @property
    def runner(self) -> Session:
        return self.session

    def connect(self) -> None:
        self.session.connect()

    async def aconnect(self) -> None:
        self.session.connect()

    def acquisition(self, wanted: Acquisition) -> StoreProtocol[Lease]:
        """Yield the steps of attempts until one takes the locks, or replaces those of a lease.

        An attempt that was interrupted is repeated while there is time, and a replacement unless it
        may have been made.
        """
        session = self.session
        patient_until = session.patient_until(wanted)
        while True:
            attempt: ZooKeeperAttempt | ZooKeeperSwap = (
                ZooKeeperAttempt(session, wanted)
                if wanted.expected is None
                else ZooKeeperSwap(session, wanted.expected, wanted.ttl, wanted.holder)
            )
            try:
                taken = yield from attempt.take()
                if not isinstance(taken, ZooKeeperRefusal):
                    return taken
                attempt.undo()  # here: if a signal interrupts it, it is done again
                kind = ResourceLocked if wanted.limit == 1 else LimitReached
                raise kind(
                    f"{taken.resource}: {taken.why}",
                    resource=taken.resource,
                    retry_after=taken.seconds or None,
                    waited=self.clock() - wanted.asked if wanted.wait else 0.0,
                )
            except Interrupted:
                attempt.undo()
                if not attempt.is_repeatable or self.clock() >= patient_until:
                    raise session.unavailable(session.reason) from None
            except BaseException:
                attempt.undo()
                raise
            yield StoreStep(AGAIN)

    def declare_new(self) -> bool:
        return drive(self._declare(self.session), self.session.perform)

    def _declare(self, session: Session) -> StoreProtocol[bool]:
        asked, patience = self.clock(), self.settings.zookeeper_timeout
        while True:
            try:
                return (yield from Fences(Requests(session)).declare())
            except Interrupted:
                if self.clock() >= asked + patience:
                    raise session.unavailable(session.reason) from None
            yield StoreStep(AGAIN)

    # Extend and release.

    def extension(self, lease: Lease, ttl: float) -> Extension:
        assert isinstance(lease, ZooKeeperLease)
        started, batch = self.clock(), None
        if started < lease.until and not self.voided(lease):
            data = data_of(max(ttl, lease.until - started), lease.value)
            batch = RequestBatch(
                partial(_set_all, lease.nodes, data),
                seconds=self.settings.zookeeper_timeout,
                is_proof=True,
            )
        state = partial(self._state, lease, batch, started + ttl)
        return Extension(lease, ttl, started, batch, state)

    def _state(self, lease: ZooKeeperLease, batch: RequestBatch | None, until: float) -> LeaseState:
        if batch is None or self.voided(lease):
            return LeaseState.LOST
        if not batch.is_answered:
            return LeaseState.UNKNOWN
        has_failed = any(isinstance(result, Exception) for result in batch.results)
        if has_failed or not self.session.held.prolong(lease.token, until):
            return LeaseState.LOST
        return LeaseState.RENEWED

    def release_step(self, lease: Lease) -> RequestBatch | None:
        assert isinstance(lease, ZooKeeperLease)
        if self.voided(lease):
            return None
        self.session.held.remove(lease.token)
        left, seconds = lease.held_for(self.clock), self.settings.zookeeper_timeout
        if not left:
            return RequestBatch(partial(_delete_all, lease.nodes), seconds=seconds)
        # The process may end before the minimum hold does, and its session with it.
        left = with_drift(left)
        after = tuple(map(min_hold_path, lease.nodes))
        self.session.hold(lease.token, self.clock() + left, after)
        data = [data_of(left, lease.value)] * len(after)
        return RequestBatch(partial(replace_all, lease.nodes, after, data, False), seconds=seconds)

    def has_freed(self, step: RequestBatch) -> bool | None:
        if not step.is_answered:
            return None
        answers = [one for result in step.results for one in _flat(result)]
        return not any(isinstance(answer, Exception) for answer in answers)

    def post_release(self, lease: Lease) -> None:
        if (batch := self.release_step(lease)) is not None:
            self.session.post(batch)

    # The session.

    def voided(self, lease: Lease) -> bool:
        assert isinstance(lease, ZooKeeperLease)
        session = self.session
        return lease.home is not session or lease.generation != session.generation

    def is_uncertain(self, lease: Lease) -> bool:
        return self.session.is_uncertain()

    def inspect(self) -> ZooKeeperInspection:
        return ZooKeeperInspection(self.alias, self.settings)

    def forked(self) -> None:
        self.session.abandon()
        self.session = self._new_session()

    def close(self) -> None:
        self.session.close()


def _set_all(nodes: Sequence[str], data: bytes, client: KazooClient) -> list[Any]:
    return [client.set_async(node, data) for node in nodes]


def _delete_all(nodes: Sequence[str], client: KazooClient) -> list[Any]:
    return [client.delete_async(node) for node in nodes]


def _flat(result: Any) -> list[Any]:
    return result if isinstance(result, list) else [result]

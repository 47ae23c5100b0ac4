"""Locks in ZooKeeper: an ephemeral node for each client, in a queue for each resource.

docs/contributing/stores.md explains why there is one holder.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from kazoo.client import KazooClient

from redlock_django.backends.base import BaseBackend, Notice, StoreSettings, ignore
from redlock_django.backends.zookeeper.attempt import (
    ZooKeeperAttempt,
    ZooKeeperLease,
    replace_all,
)
from redlock_django.backends.zookeeper.client import is_own_thread
from redlock_django.backends.zookeeper.fences import Fences, Interrupted, Requests
from redlock_django.backends.zookeeper.hand_on import ZooKeeperSwap
from redlock_django.backends.zookeeper.inspection import ZooKeeperInspection
from redlock_django.backends.zookeeper.own_nodes import Acquisition, ZooKeeperRefusal
from redlock_django.backends.zookeeper.paths import data_of, min_hold_path
from redlock_django.backends.zookeeper.requests import (
    RequestBatch,
    ZooKeeperProtocol,
    ZooKeeperStep,
)
from redlock_django.backends.zookeeper.session import Session
from redlock_django.backends.zookeeper.settings import ZooKeeperSettings
from redlock_django.engine.run_protocol import adrive, drive
from redlock_django.engine.validity import Lease, LeaseState, valid_until, with_drift
from redlock_django.exceptions import LimitReached, ResourceLocked, StoreUnavailable
from redlock_django.wire.wakeup import Wakeup

_AGAIN = 0.05  # seconds until an attempt that was interrupted is repeated


class ZooKeeperBackend(BaseBackend):
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

    def connect(self) -> None:
        self.session.connect()

    async def aconnect(self) -> None:
        self.session.connect()

    def acquire(
        self,
        resources: tuple[str, ...],
        ttl: float,
        wait: float,
        holder: str,
        limit: int = 1,
        expected: Lease | None = None,
    ) -> Lease:
        session = self.session
        protocol = self._acquire(session, resources, ttl, wait, holder, limit, expected)
        return drive(protocol, session.perform)

    async def aacquire(
        self,
        resources: tuple[str, ...],
        ttl: float,
        wait: float,
        holder: str,
        limit: int = 1,
        expected: Lease | None = None,
    ) -> Lease:
        session = self.session
        protocol = self._acquire(session, resources, ttl, wait, holder, limit, expected)
        return await adrive(protocol, session.aperform)

    def _acquire(
        self,
        session: Session,
        resources: tuple[str, ...],
        ttl: float,
        wait: float,
        holder: str,
        limit: int,
        expected: Lease | None,
    ) -> ZooKeeperProtocol[Lease]:
        if expected is not None:
            return (yield from self._take(session, expected, ttl, holder))
        asked, patience = self.clock(), self.settings.zookeeper_timeout
        wanted = Acquisition(
            resources=resources,
            ttl=ttl,
            holder=holder,
            limit=limit,
            asked=asked,
            deadline=asked + wait,
            patient_until=asked + max(wait, patience),
        )
        while True:
            attempt = ZooKeeperAttempt(session, wanted)
            try:
                taken = yield from attempt.take()
                if not isinstance(taken, ZooKeeperRefusal):
                    return taken
                attempt.undo()  # here: if a signal interrupts it, it is done again
                kind = ResourceLocked if limit == 1 else LimitReached
                raise kind(
                    f"{taken.resource}: {taken.why}",
                    resource=taken.resource,
                    retry_after=taken.seconds or None,
                    waited=self.clock() - asked if wait else 0.0,
                )
            except Interrupted:
                attempt.undo()
                if self.clock() >= wanted.patient_until:
                    raise session.unavailable(session.reason) from None
            except BaseException:
                attempt.undo()
                raise
            yield ZooKeeperStep(_AGAIN)

    def declare_new(self) -> bool:
        return drive(self._declare(self.session), self.session.perform)

    def _declare(self, session: Session) -> ZooKeeperProtocol[bool]:
        asked, patience = self.clock(), self.settings.zookeeper_timeout
        while True:
            try:
                return (yield from Fences(Requests(session)).declare())
            except Interrupted:
                if self.clock() >= asked + patience:
                    raise session.unavailable(session.reason) from None
            yield ZooKeeperStep(_AGAIN)

    # Extend and release.

    def extend(self, lease: Lease, ttl: float) -> tuple[LeaseState, Lease]:
        return self.extend_all([(lease, ttl)])[0]  # type: ignore[return-value]

    async def aextend(self, lease: Lease, ttl: float) -> tuple[LeaseState, Lease]:
        extension = Extension(self, lease, ttl)
        if extension.batch is not None:
            with suppress(StoreUnavailable):
                await self.session.aperform(extension.batch)
        return extension.result()

    def extend_all(
        self, asked: Sequence[tuple[Lease, float]]
    ) -> list[tuple[LeaseState, Lease] | Exception]:
        """Extend all leases at the same time, each by a request for each of its resources."""
        extensions = [Extension(self, lease, ttl) for lease, ttl in asked]
        started: list[tuple[RequestBatch, Wakeup]] = []
        for extension in extensions:
            if extension.batch is not None:
                with suppress(StoreUnavailable):
                    started.append((extension.batch, self.session.start(extension.batch)))
        for batch, ended in started:
            with suppress(StoreUnavailable):
                self.session.finish(batch, ended)
        return [extension.result() for extension in extensions]

    def _take(
        self, session: Session, expected: Lease, ttl: float, holder: str
    ) -> ZooKeeperProtocol[Lease]:
        """Replace the nodes of a lease, and return the lease with the new ones."""
        patient_until = self.clock() + self.settings.zookeeper_timeout
        while True:
            swap = ZooKeeperSwap(session, expected, ttl, holder)
            try:
                return (yield from swap.take())
            except Interrupted:
                swap.undo()
                if swap.has_written or self.clock() >= patient_until:
                    raise session.unavailable(session.reason) from None
            except BaseException:
                swap.undo()
                raise
            yield ZooKeeperStep(_AGAIN)

    def release(self, lease: Lease) -> bool | None:
        if is_own_thread():  # a finalizer that runs there
            self.post_release(lease)
            return None
        batch = self._release(lease)
        if batch is None:
            return False
        with suppress(StoreUnavailable):
            self.session.perform(batch)
        return self._released(lease, batch)

    async def arelease(self, lease: Lease) -> bool | None:
        batch = self._release(lease)
        if batch is None:
            return False
        with suppress(StoreUnavailable):
            await self.session.aperform(batch)
        return self._released(lease, batch)

    def post_release(self, lease: Lease) -> None:
        batch = self._release(lease)
        if batch is not None:
            self.session.post(batch)

    def _release(self, lease: Lease) -> RequestBatch | None:
        """Return the requests that release a lease; None if its session is lost."""
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

    def _released(self, lease: Lease, batch: RequestBatch) -> bool | None:
        if not batch.is_answered:
            self.post_release(lease)
            return None
        answers = [one for result in batch.results for one in _flat(result)]
        return not any(isinstance(answer, Exception) for answer in answers)

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


class Extension:
    """The extension of one lease: its requests, None if the lease is lost, and their result."""

    def __init__(self, backend: ZooKeeperBackend, lease: Lease, ttl: float) -> None:
        assert isinstance(lease, ZooKeeperLease)
        self._backend = backend
        self._lease = lease
        self._ttl = ttl
        self._started = backend.clock()
        self.batch: RequestBatch | None = None
        if self._started < lease.until and not backend.voided(lease):
            lasting = max(ttl, lease.until - self._started)
            data = data_of(lasting, lease.value)
            self.batch = RequestBatch(
                partial(_set_all, lease.nodes, data),
                seconds=backend.settings.zookeeper_timeout,
                is_proof=True,
            )

    def result(self) -> tuple[LeaseState, Lease]:
        """Return what `extend` returns."""
        backend, lease, batch = self._backend, self._lease, self.batch
        if batch is None or backend.voided(lease):
            return LeaseState.LOST, lease
        if not batch.is_answered:
            return LeaseState.UNKNOWN, lease
        if any(isinstance(result, Exception) for result in batch.results):
            return LeaseState.LOST, lease
        if not backend.session.held.prolong(lease.token, self._started + self._ttl):
            return LeaseState.LOST, lease
        until = max(lease.until, valid_until(self._ttl, self._started))
        renewed = replace(lease, ttl=self._ttl, started=self._started, until=until)
        return LeaseState.RENEWED, renewed


def _set_all(nodes: Sequence[str], data: bytes, client: KazooClient) -> list[Any]:
    return [client.set_async(node, data) for node in nodes]


def _delete_all(nodes: Sequence[str], client: KazooClient) -> list[Any]:
    return [client.delete_async(node) for node in nodes]


def _flat(result: Any) -> list[Any]:
    return result if isinstance(result, list) else [result]

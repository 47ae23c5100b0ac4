"""Locks in a database: a row for each resource, taken by one statement with the server's clock.

docs/contributing/stores.md explains why there is one holder.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from redlock_django.backends.base import Notice, StoreSettings, ignore
from redlock_django.backends.database import sql
from redlock_django.backends.database.attempt import (
    DatabaseAttempt,
    DatabaseLease,
    DatabaseWaiter,
    slots_of,
)
from redlock_django.backends.database.connections import Connections
from redlock_django.backends.database.hand_on import DatabaseSwap
from redlock_django.backends.database.inspection import DatabaseInspection
from redlock_django.backends.database.jobs import Job
from redlock_django.backends.database.listener import Listener
from redlock_django.backends.database.settings import DatabaseSettings, is_psycopg3
from redlock_django.backends.protocol_backend import (
    Acquisition,
    Extension,
    ProtocolBackend,
    StoreProtocol,
)
from redlock_django.engine.refusal import refused_ticket
from redlock_django.engine.validity import Lease, LeaseState, with_drift
from redlock_django.exceptions import LimitReached, ResourceLocked, StoreUnavailable

if TYPE_CHECKING:
    from django.db.backends.utils import CursorWrapper


class DatabaseBackend(ProtocolBackend):
    """Locks in one database, on connections of their own."""

    settings_class = DatabaseSettings
    keeps_min_hold = True
    has_permits = True
    hands_on = True
    settings: DatabaseSettings

    def __init__(self, alias: str, settings: StoreSettings, notice: Notice = ignore) -> None:
        super().__init__(alias, settings, notice)
        self.is_shared = not self.settings.is_in_memory
        self.forked()

    @property
    def turn(self) -> float:
        """The seconds for which a lock that became free is reserved for one waiter."""
        return 2 * self.settings.poll  # a waiter looks at least once in a turn

    @property
    def runner(self) -> Connections:
        return self.connections

    def _new_connections(self) -> Connections:
        return Connections(
            self.settings.connect,
            name=self.settings.database,
            most=self.settings.most_connections,
            timeout=self.settings.database_timeout,
            forgotten=with_drift(self.settings.longest_ttl),
            notice=self.notice,
        )

    def connect(self) -> None:
        self.connections.post(lambda cursor: None)

    async def aconnect(self) -> None:
        self.connect()

    def acquisition(self, wanted: Acquisition) -> StoreProtocol[Lease]:
        """Yield the steps until all resources are taken, and return the lease."""
        if wanted.expected is not None:
            return (yield from self._take(wanted.expected, wanted.ttl, wanted.holder))
        waiter: DatabaseWaiter | None = None
        if wanted.wait > 0:
            waiter = DatabaseWaiter(wanted.resources, self.clock, self.listener)
        waited, called = 0.0, None
        attempt: DatabaseAttempt | None = None  # one that may have taken the locks
        try:
            while True:
                attempt = DatabaseAttempt(
                    self.connections, self.clock, wanted, self.turn, waiter, called
                )
                yield attempt.job
                taken = attempt.job.result()
                if not isinstance(taken, sql.DatabaseRefusal):
                    if waiter is not None:  # not in a `finally`: an interrupt there loses the lease
                        waiter.end()
                    return attempt.lease(taken, waited)
                attempt = None
                now = self.clock()
                if waiter is None or now >= wanted.deadline:
                    raise _refused(taken, waited, wanted.limit)
                yield waiter.pause(self._pause(taken, wanted.deadline - now))
                called = yield from self._called(waiter, wanted)
                waited = self.clock() - wanted.asked
        except BaseException:
            if attempt is not None:
                attempt.undo()
            elif waiter is not None:
                self.connections.post(waiter.leave)
            if waiter is not None:
                waiter.end()
            raise

    def _called(self, waiter: DatabaseWaiter, wanted: Acquisition) -> StoreProtocol[int | None]:
        """Return the slot that a waiter is called for; None if it must look for one.

        The second waiter of a lock leaves the first its turn. That of a permit looks: more slots
        may be free, because releases at the same moment call the same waiters.
        """
        called = waiter.take_call()
        if called and called[0] and wanted.limit == 1:
            yield waiter.pause(max(0.0, min(self.turn, wanted.deadline - self.clock())))
            called = waiter.take_call()
        return called[1] if called and not called[0] else None

    def _pause(self, refusal: sql.DatabaseRefusal, left: float) -> float:
        longest = self.settings.poll * random.uniform(0.5, 1.0)
        if self.listener is not None and self.listener.is_listening:
            longest = sql.ALIVE / 3  # to keep its place, a waiter must be heard of
        return max(0.0, min(max(refusal.free_in, 0.001), longest, left))

    def _take(self, expected: Lease, ttl: float, holder: str) -> StoreProtocol[Lease]:
        """Yield the jobs that replace the token of a lease; return the lease with the new one."""
        swap = DatabaseSwap(self.connections, self.clock, expected, ttl, holder)
        try:
            yield swap.job
            taken = swap.taken()
        except BaseException:
            swap.undo()
            raise
        if taken is not None:
            return taken
        look = Job(swap.is_used)
        yield look
        raise refused_ticket(expected, is_used=look.result())

    # Extend and release.

    def extension(self, lease: Lease, ttl: float) -> Extension:
        assert isinstance(lease, DatabaseLease)

        def extend(cursor: CursorWrapper) -> LeaseState:
            if sql.extend(cursor, lease.resources, lease.token_hash, ttl):
                return LeaseState.RENEWED
            return LeaseState.UNKNOWN if lease.may_be_undone(cursor) else LeaseState.LOST

        job = Job(extend)
        return Extension(
            lease, ttl, self.clock(), job,
            lambda: job.result() if job.ended else LeaseState.UNKNOWN,
        )  # fmt: skip

    def release_step(self, lease: Lease) -> Job[bool]:
        assert isinstance(lease, DatabaseLease)
        resources, token_hash, undone = lease.resources, lease.token_hash, lease.undone
        held_for = with_drift(left) if (left := lease.held_for(self.clock)) else 0.0
        siblings = () if lease.limit == 1 else slots_of(lease.names, lease.limit)
        turn = self.turn
        return Job(
            lambda cursor: sql.release(
                cursor, resources, token_hash, held_for, siblings, turn, undone
            )
        )

    def has_freed(self, step: Job[bool]) -> bool | None:
        if not step.ended or isinstance(step.error, StoreUnavailable):
            return None
        # If the answer of the first statement was lost, it may have freed rows that the second did
        # not find.
        return step.result() or (None if step.repeated else False)

    def post_release(self, lease: Lease) -> None:
        self.connections.post(self.release_step(lease).work)

    # Connections.

    def inspect(self) -> DatabaseInspection:
        return DatabaseInspection(self.alias, self.settings, self._new_connections())

    def forked(self) -> None:
        self.connections = self._new_connections()
        self.listener: Listener | None = None
        if self.settings.dialect.notifies and is_psycopg3():
            self.listener = Listener(self.settings.connect, self.connections.post)

    def close(self) -> None:
        if self.listener is not None:
            self.listener.close()
        self.connections.close()
        if self.listener is not None:
            self.listener.join()


def _refused(refusal: sql.DatabaseRefusal, waited: float, limit: int) -> ResourceLocked:
    names = ", ".join(refusal.left)
    held = max(refusal.left.values())
    why = "held by another client" if held > 0 else "reserved for a waiter"
    if limit > 1:
        why = f"its {limit} slots are held" if held > 0 else "a slot is reserved for a waiter"
    return (ResourceLocked if limit == 1 else LimitReached)(
        f"{names}: {why}",
        resource=names,
        retry_after=held if held > 0 else refusal.free_in,
        waited=waited,
    )

"""Locks in a database: a row for each resource, taken by one statement with the server's clock.

docs/contributing/stores.md explains why there is one holder.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from redlock_django.backends.base import BaseBackend, Notice, StoreSettings, ignore
from redlock_django.backends.database import sql
from redlock_django.backends.database.attempt import (
    DatabaseAttempt,
    DatabaseLease,
    DatabaseWaiter,
    hash_of,
    slots_of,
)
from redlock_django.backends.database.connections import Connections
from redlock_django.backends.database.hand_on import DatabaseSwap
from redlock_django.backends.database.inspection import DatabaseInspection
from redlock_django.backends.database.jobs import Job
from redlock_django.backends.database.listener import Listener
from redlock_django.backends.database.settings import DatabaseSettings, is_psycopg3
from redlock_django.engine.refusal import refused_ticket
from redlock_django.engine.run_protocol import adrive, drive
from redlock_django.engine.steps import Pause
from redlock_django.engine.validity import Lease, LeaseState, valid_until, with_drift
from redlock_django.exceptions import LimitReached, ResourceLocked, StoreUnavailable
from redlock_django.wire.wakeup import LoopWakeup, Wakeup

if TYPE_CHECKING:
    from django.db.backends.utils import CursorWrapper

DatabaseStep = Job[Any] | Pause


class DatabaseBackend(BaseBackend):
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

    def acquire(
        self,
        resources: tuple[str, ...],
        ttl: float,
        wait: float,
        holder: str,
        limit: int = 1,
        expected: Lease | None = None,
    ) -> Lease:
        wakeup = Wakeup()

        def perform(step: DatabaseStep) -> None:
            if isinstance(step, Job):
                self.connections.perform(step)
            else:
                wakeup.wait(step.seconds)

        steps = self._acquire(resources, ttl, wait, holder, limit, wakeup.wake, expected)
        return drive(steps, perform)

    async def aacquire(
        self,
        resources: tuple[str, ...],
        ttl: float,
        wait: float,
        holder: str,
        limit: int = 1,
        expected: Lease | None = None,
    ) -> Lease:
        wakeup = LoopWakeup()

        async def perform(step: DatabaseStep) -> None:
            if isinstance(step, Job):
                await self.connections.arun(step)
            else:
                await wakeup.wait(step.seconds)

        steps = self._acquire(resources, ttl, wait, holder, limit, wakeup.wake, expected)
        return await adrive(steps, perform)

    def _acquire(
        self,
        resources: tuple[str, ...],
        ttl: float,
        wait: float,
        holder: str,
        limit: int,
        wake: Callable[[], object],
        expected: Lease | None,
    ) -> Generator[DatabaseStep, None, Lease]:
        """Yield the steps until all resources are taken, and return the lease.

        `wake` ends a pause.
        """
        if expected is not None:
            return (yield from self._take(expected, ttl, holder))
        asked = self.clock()
        waited = 0.0
        waiter = DatabaseWaiter(resources, self.clock, self.listener, wake) if wait > 0 else None
        called: int | None = None
        attempt: DatabaseAttempt | None = None  # one that may have taken the locks
        try:
            while True:
                token = secrets.token_hex(16)
                attempt = DatabaseAttempt(
                    self.connections,
                    self.clock,
                    sql.LockRequest(
                        slots_of(resources, limit), hash_of(token), holder, ttl, self.turn
                    ),
                    token=token,
                    limit=limit,
                    waiter=waiter,
                    called=called,
                )
                yield attempt.job
                taken = attempt.job.result()
                if not isinstance(taken, sql.DatabaseRefusal):
                    if waiter is not None:  # not in a `finally`: an interrupt there loses the lease
                        waiter.end()
                    return attempt.lease(taken, waited)
                attempt = None
                now = self.clock()
                if waiter is None or now >= asked + wait:
                    raise _refused(taken, waited, limit)
                yield Pause(self._pause(taken, asked + wait - now))
                called = yield from self._called(waiter, limit, asked + wait)
                waited = self.clock() - asked
        except BaseException:
            if attempt is not None:
                attempt.undo()
            elif waiter is not None:
                self.connections.post(waiter.leave)
            if waiter is not None:
                waiter.end()
            raise

    def _called(
        self, waiter: DatabaseWaiter, limit: int, end: float
    ) -> Generator[DatabaseStep, None, int | None]:
        """Return the slot that a waiter is called for; None if it must look for one.

        The second waiter of a lock leaves the first its turn. That of a permit looks: more slots
        may be free, because releases at the same moment call the same waiters.
        """
        called = waiter.take_call()
        if called and called[0] and limit == 1:
            yield Pause(max(0.0, min(self.turn, end - self.clock())))
            called = waiter.take_call()
        return called[1] if called and not called[0] else None

    def _pause(self, refusal: sql.DatabaseRefusal, left: float) -> float:
        longest = self.settings.poll * random.uniform(0.5, 1.0)
        if self.listener is not None and self.listener.is_listening:
            longest = sql.ALIVE / 3  # to keep its place, a waiter must be heard of
        return max(0.0, min(max(refusal.free_in, 0.001), longest, left))

    # Extend and release.

    def extend(self, lease: Lease, ttl: float) -> tuple[LeaseState, Lease]:
        return self.extend_all([(lease, ttl)])[0]  # type: ignore[return-value]

    async def aextend(self, lease: Lease, ttl: float) -> tuple[LeaseState, Lease]:
        started, job = self.clock(), self._extension(lease, ttl)
        with suppress(StoreUnavailable):
            await self.connections.arun(job)
            return _extended(lease, ttl, started, job.result())
        return LeaseState.UNKNOWN, lease

    def extend_all(
        self, asked: Sequence[tuple[Lease, float]]
    ) -> list[tuple[LeaseState, Lease] | Exception]:
        """Extend all leases at the same time, on as many connections as there are."""
        started = self.clock()
        jobs = [self._extension(lease, ttl) for lease, ttl in asked]
        results: list[tuple[LeaseState, Lease] | Exception] = []
        finished: list[Wakeup] = []
        with suppress(StoreUnavailable):  # closed
            finished = [self.connections.start(job) for job in jobs]
        for index, (lease, ttl) in enumerate(asked):
            result = LeaseState.UNKNOWN, lease
            with suppress(StoreUnavailable, IndexError):
                self.connections.wait(finished[index])
                result = _extended(lease, ttl, started, jobs[index].result())
            results.append(result)
        return results

    def _extension(self, lease: Lease, ttl: float) -> Job[LeaseState]:
        assert isinstance(lease, DatabaseLease)

        def extend(cursor: CursorWrapper) -> LeaseState:
            if sql.extend(cursor, lease.resources, lease.token_hash, ttl):
                return LeaseState.RENEWED
            return LeaseState.UNKNOWN if lease.may_be_undone(cursor) else LeaseState.LOST

        return Job(extend)

    def _take(self, expected: Lease, ttl: float, holder: str) -> Generator[Job[Any], None, Lease]:
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

    def release(self, lease: Lease) -> bool | None:
        if self.connections.is_in_job():  # a finalizer that runs inside a job
            self.post_release(lease)
            return None
        job = self._release(lease)
        with suppress(StoreUnavailable):
            self.connections.perform(job)
            return _released(job)
        self.post_release(lease)
        return None

    async def arelease(self, lease: Lease) -> bool | None:
        job = self._release(lease)
        with suppress(StoreUnavailable):
            await self.connections.arun(job)
            return _released(job)
        self.post_release(lease)
        return None

    def post_release(self, lease: Lease) -> None:
        self.connections.post(self._release(lease).work)

    def _release(self, lease: Lease) -> Job[bool]:
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


def _extended(
    lease: Lease, ttl: float, started: float, state: LeaseState
) -> tuple[LeaseState, Lease]:
    if state is not LeaseState.RENEWED:
        return state, lease
    until = max(lease.until, valid_until(ttl, started))
    return LeaseState.RENEWED, replace(lease, ttl=ttl, started=started, until=until)


def _released(job: Job[bool]) -> bool | None:
    # If the answer of the first statement was lost, it may have freed rows that the second did not
    # find.
    return None if job.repeated and not job.result() else job.result()


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

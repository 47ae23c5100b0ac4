"""One attempt to take locks in a database, and the place of a waiter in their queues."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

from redlock_django.backends.database import sql as sql
from redlock_django.backends.database.connections import Connections
from redlock_django.backends.database.jobs import Job
from redlock_django.backends.database.listener import Listener
from redlock_django.backends.database.slots import SlotStatements
from redlock_django.engine.protocol.slots import slot_resource
from redlock_django.engine.validity import Lease, fingerprint_of, valid_until

if TYPE_CHECKING:
    from django.db.backends.utils import CursorWrapper


@dataclass(slots=True, kw_only=True, unsafe_hash=True)
class DatabaseLease(Lease):
    """A lease in a database, which stores a hash of the token."""

    @property
    def token_hash(self) -> str:
        """The hash of the token, as its row has it."""
        return hash_of(self.token)

    @property
    def fingerprint(self) -> str:
        return fingerprint_of(self.token_hash.encode())


def slots_of(resources: tuple[str, ...], limit: int) -> tuple[str, ...]:
    """Return the resources of all slots of a name; `resources` themselves without a limit."""
    if limit == 1:
        return resources
    return tuple(slot_resource(resources[0], slot) for slot in range(limit))


def hash_of(token: str) -> str:
    """Return the hash of a token. A reader of the table cannot extend or release the lock."""
    return sha256(token.encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The connections to a database, the clock of leases, and the length of a turn in seconds.

    `listener` wakes waiters, if the database can do that.
    """

    connections: Connections
    clock: Callable[[], float]
    turn: float
    listener: Listener | None


class Queue:
    """The place of one waiter in the queues of its resources, from its first refusal.

    A listener calls the waiter when it is among the first ones and a lock was released; that ends
    its pause by `wake`.
    """

    def __init__(
        self, access: Access, resources: tuple[str, ...], wake: Callable[[], object]
    ) -> None:
        self._access = access
        self._resources = resources
        self._name = secrets.token_hex(16)
        self._place: sql.Place | None = None
        self._stayed = 0.0
        self._called: tuple[int, int] | None = None
        self._wake = wake

    @property
    def has_joined(self) -> bool:
        """True after the first `place`."""
        return self._place is not None

    def place(self, cursor: CursorWrapper) -> sql.Place:
        """Return the place, after joining the queues or staying in them."""
        now = self._access.clock()
        if self._place is None:
            if self._access.listener is not None:
                self._access.listener.watch(self._name, self._call)
            self._place = sql.join(cursor, self._name, self._resources)
            self._stayed = now
        elif now > self._stayed + sql.ALIVE / 3:
            if not sql.stay(cursor, self._name):
                self._place = sql.join(cursor, self._name, self._resources)
            self._stayed = now
        return self._place

    def _call(self, number: int, slot: int) -> None:
        self._called = number, slot
        self._wake()

    def take_call(self) -> tuple[int, int] | None:
        """Return the last call and forget it; None if there was none.

        It is the number of waiters that were called with this one but go first, and the slot that
        came free.
        """
        called, self._called = self._called, None
        return called

    def end(self) -> None:
        """Stop being called."""
        if self._access.listener is not None:
            self._access.listener.forget(self._name)

    def leave(self, cursor: CursorWrapper) -> None:
        """Leave the queues, and stop being called."""
        self.end()
        sql.leave(cursor, self._name)


class DatabaseAttempt:
    """One attempt to take the resources, with a token of its own: the steps of its `job`.

    The first attempt of a waiter that is refused joins its queue. `called` is the slot that a
    waiter takes without a look, because it was called for it.
    """

    def __init__(
        self,
        access: Access,
        resources: tuple[str, ...],
        ttl: float,
        holder: str,
        limit: int,
        queue: Queue | None,
        called: int | None = None,
    ) -> None:
        self._access = access
        self._limit = limit
        self._queue = queue
        self._called = called
        self._may_have_taken = False
        self._token = secrets.token_hex(16)
        resources = slots_of(resources, limit)
        self._wanted = sql.LockRequest(resources, hash_of(self._token), holder, ttl)
        self._started = access.clock()
        self.job: Job[sql.Taken | sql.DatabaseRefusal] = Job(self._take)

    def _take(self, cursor: CursorWrapper) -> sql.Taken | sql.DatabaseRefusal:
        self._access.connections.refuse_untrusted()
        if self._may_have_taken:  # in a run that failed later: another slot, or before it looks
            sql.release(cursor, self._wanted.resources, self._wanted.token_hash)
        self._may_have_taken = self._limit > 1 or self._queue is not None
        queue = self._queue
        if queue is None:
            return self._statements(cursor, sql.NOT_WAITING).take()
        if not queue.has_joined and (fences := self._statements(cursor, sql.NOT_WAITING).fences()):
            return fences
        statements = self._statements(cursor, queue.place(cursor))
        return statements.take(looks_first=self._called is None, called=self._called)

    def _statements(
        self, cursor: CursorWrapper, place: sql.Place
    ) -> sql.TakeStatements | SlotStatements:
        kind = sql.TakeStatements if self._limit == 1 else SlotStatements
        return kind(cursor, self._wanted, place, self._access.turn)

    def lease(self, fences: sql.Taken, waited: float) -> DatabaseLease:
        """Return the lease; raise StoreUnavailable if it is over already."""
        _, _, holder, ttl = self._wanted
        until = valid_until(ttl, self._started)
        if self._access.clock() >= until:
            raise self._access.connections.too_slow()
        return DatabaseLease(
            resources=tuple(fences),
            token=self._token,
            holder=holder,
            ttl=ttl,
            started=self._started,
            until=until,
            fences=tuple(fences.values()),
            waited=waited,
            home=self._access.connections,
            limit=self._limit,
        )

    def undo(self) -> None:
        """Release what the attempt took or is about to take, and leave the queues."""
        # Both are needed: a running job may take the locks after the posted release.
        self.job.undo = self._release
        self._access.connections.post(self._release)

    def _release(self, cursor: CursorWrapper) -> None:
        if self._queue is not None:
            # The running job may have joined again. Leave before the release, so that the waiter
            # that it wakes is the first in the queue.
            self._queue.leave(cursor)
        sql.release(cursor, self._wanted.resources, self._wanted.token_hash)

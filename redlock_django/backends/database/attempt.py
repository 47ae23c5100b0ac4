"""One attempt to take locks in a database, and the waiter that makes several."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

from redlock_django.backends.database import sql
from redlock_django.backends.database.connections import Connections
from redlock_django.backends.database.jobs import Job
from redlock_django.backends.database.listener import Listener
from redlock_django.backends.protocol_backend import Acquisition, StoreStep
from redlock_django.engine.protocol.slots import slot_resource
from redlock_django.engine.validity import Lease, fingerprint_of, valid_until

if TYPE_CHECKING:
    from django.db.backends.utils import CursorWrapper

_RACES = 3  # attempts, if a lock ends between the statement that takes it and the one that looks
_SLOT_RACES = 100  # attempts, each of which other clients won
_ALWAYS = 1e9  # seconds for which a slot without a row has been free: longer than many turns


@dataclass(slots=True, kw_only=True, unsafe_hash=True)
class DatabaseLease(Lease):
    """A lease in a database, which stores a hash of the token.

    `undone` has the hashes of the tokens that the lock may have for a moment more, if it was handed
    on and that is being undone.
    """

    undone: tuple[str, ...] = field(default=(), compare=False)

    @property
    def token_hash(self) -> str:
        """The hash of the token, as its row has it."""
        return hash_of(self.token)

    @property
    def fingerprint(self) -> str:
        return fingerprint_of(self.token_hash.encode())

    def may_be_undone(self, cursor: CursorWrapper) -> bool:
        """Return whether the lock has a token of `undone`, or has its own one again."""
        tokens = *self.undone, self.token_hash
        return bool(self.undone) and sql.has_tokens(cursor, self.resources, tokens)


def slots_of(resources: tuple[str, ...], limit: int) -> tuple[str, ...]:
    """Return the resources of all slots of a name; `resources` themselves without a limit."""
    if limit == 1:
        return resources
    return tuple(slot_resource(resources[0], slot) for slot in range(limit))


def hash_of(token: str) -> str:
    """Return the hash of a token. A reader of the table cannot extend or release the lock."""
    return sha256(token.encode()).hexdigest()[:32]


class DatabaseWaiter:
    """The place of one waiter in the queues of its resources, from its first refusal.

    A listener, if there is one, calls the waiter when it is among the first ones and a lock was
    released; that ends its pause.
    """

    def __init__(
        self,
        resources: tuple[str, ...],
        clock: Callable[[], float],
        listener: Listener | None,
    ) -> None:
        self._resources = resources
        self._clock = clock
        self._listener = listener
        self._name = secrets.token_hex(16)
        self._place: sql.Place | None = None
        self._stayed = 0.0
        self._called: tuple[int, int] | None = None
        self._pause = StoreStep()

    @property
    def has_joined(self) -> bool:
        """True after the first `place`."""
        return self._place is not None

    def place(self, cursor: CursorWrapper) -> sql.Place:
        """Return the place, after joining the queues or staying in them."""
        now = self._clock()
        if self._place is None:
            if self._listener is not None:
                self._listener.watch(self._name, self._call)
            self._place = sql.join(cursor, self._name, self._resources)
            self._stayed = now
        elif now > self._stayed + sql.ALIVE / 3:
            if not sql.stay(cursor, self._name):
                self._place = sql.join(cursor, self._name, self._resources)
            self._stayed = now
        return self._place

    def _call(self, number: int, slot: int) -> None:
        self._called = number, slot
        self._pause.end()

    def pause(self, seconds: float) -> StoreStep:
        """Return a pause, which the next call ends, or a call that was not taken yet."""
        self._pause = StoreStep(seconds)
        if self._called is not None:
            self._pause.end()
        return self._pause

    def take_call(self) -> tuple[int, int] | None:
        """Return the last call and forget it; None if there was none.

        It is the number of waiters that were called with this one but go first, and the slot that
        came free.
        """
        called, self._called = self._called, None
        return called

    def end(self) -> None:
        """Stop being called."""
        if self._listener is not None:
            self._listener.forget(self._name)

    def leave(self, cursor: CursorWrapper) -> None:
        """Leave the queues, and stop being called."""
        self.end()
        sql.leave(cursor, self._name)


class DatabaseAttempt:
    """One attempt to take locks, or a slot, with a token of its own: the work of its `job`.

    The first attempt of a waiter that is refused joins its queue. `called` is the slot that a
    waiter takes without a look, because it was called for it.

    Each slot of a name is a lock of its own, with a row of its own; the waiters of the name are in
    one queue. As many waiters as slots are free have a turn, each with a slot, in the order in
    which the slots became free; when it has been free for a turn, a slot is reserved for one waiter
    more. A caller that does not wait leaves the first ones one turn.
    """

    def __init__(
        self,
        connections: Connections,
        clock: Callable[[], float],
        wanted: Acquisition,
        turn: float,
        waiter: DatabaseWaiter | None,
        called: int | None,
    ) -> None:
        self._connections = connections
        self._clock = clock
        self._token = token = secrets.token_hex(16)
        self._limit = wanted.limit
        slots = slots_of(wanted.resources, wanted.limit)
        self._wanted = sql.LockRequest(slots, hash_of(token), wanted.holder, wanted.ttl, turn)
        self._waiter = waiter
        self._called = called
        self._may_have_taken = False
        self._started = clock()
        self.job: Job[sql.Taken | sql.DatabaseRefusal] = Job(self._take)

    def _take(self, cursor: CursorWrapper) -> sql.Taken | sql.DatabaseRefusal:
        self._connections.refuse_untrusted()
        if self._may_have_taken:  # in a run that failed later: another slot, or before it looks
            sql.release(cursor, self._wanted.resources, self._wanted.token_hash)
        self._may_have_taken = self._limit > 1 or self._waiter is not None
        wanted, waiter = self._wanted, self._waiter
        take = self._take_locks if self._limit == 1 else self._take_slot
        if waiter is None:
            return take(cursor, wanted, looks_first=False)
        if not waiter.has_joined:
            first = sql.take if self._limit == 1 else self._take_slot
            taken = first(cursor, wanted)
            if taken and not isinstance(taken, sql.DatabaseRefusal):
                return taken
        wanted = wanted._replace(place=waiter.place(cursor))
        return take(cursor, wanted, looks_first=self._called is None)

    def _take_locks(
        self, cursor: CursorWrapper, wanted: sql.LockRequest, looks_first: bool
    ) -> sql.Taken | sql.DatabaseRefusal:
        """Take all locks, or none; return the fences, or why they were not taken.

        A refusal that only reads (`looks_first`) costs the server less than one that locks the row.
        """
        for _ in range(_RACES):
            refusal = sql.refusal(cursor, wanted) if looks_first else None
            if refusal is None:
                if fences := sql.take(cursor, wanted):
                    return fences
                refusal = sql.refusal(cursor, wanted)
            if refusal is not None:
                return refusal
        return sql.DatabaseRefusal(dict.fromkeys(wanted.resources, 0.001), 0.0)

    def _take_slot(
        self, cursor: CursorWrapper, wanted: sql.LockRequest, looks_first: bool = False
    ) -> sql.Taken | sql.DatabaseRefusal:
        """Take one of the slots; return why only if none was free for this client at a time."""
        resources = wanted.resources
        if self._called is not None and self._called < len(resources):
            fences = self._take_one(cursor, wanted, resources[self._called])
        else:
            fences = {} if looks_first else self._guess(cursor, wanted)
        if fences:
            return fences
        for _ in range(_SLOT_RACES):
            slots = self._look(cursor, wanted)
            if not slots.open:
                break
            for number, resource in enumerate(slots.open, 1):
                if fences := self._take_one(cursor, wanted, resource):
                    others = slots.open[number:]
                    if wanted.waits and (others or number > 1):
                        # Releases at the same moment do not see each other, and have called the
                        # same waiters. Who took a slot before this client has left another.
                        sql.call_waiters(cursor, others[0] if others else resource)
                    return fences
        return sql.DatabaseRefusal({resources[0]: slots.held_for}, slots.free_in)

    def _guess(self, cursor: CursorWrapper, wanted: sql.LockRequest) -> sql.Taken:
        """Take the slot that the token names, without a look, as one takes a lock."""
        slots = wanted.resources
        chosen = slots[int(wanted.token_hash[:8], 16) % len(slots)]
        return self._take_one(cursor, wanted, chosen, turn=wanted.turn)

    def _take_one(
        self, cursor: CursorWrapper, wanted: sql.LockRequest, resource: str, turn: float = 0.0
    ) -> sql.Taken:
        return sql.take(cursor, wanted._replace(resources=(resource,), turn=turn))

    def _look(self, cursor: CursorWrapper, wanted: sql.LockRequest) -> Slots:
        left, ahead = sql.slots_left(cursor, wanted)
        return Slots.of(wanted.resources, left, ahead, wanted.turn, waits=wanted.waits)

    def lease(self, fences: sql.Taken, waited: float) -> DatabaseLease:
        """Return the lease; raise StoreUnavailable if it is over already."""
        ttl = self._wanted.ttl
        until = valid_until(ttl, self._started)
        if self._clock() >= until:
            raise self._connections.too_late()
        return DatabaseLease(
            resources=tuple(fences),
            token=self._token,
            holder=self._wanted.holder,
            ttl=ttl,
            started=self._started,
            until=until,
            fences=tuple(fences.values()),
            waited=waited,
            home=self._connections,
            limit=self._limit,
        )

    def undo(self) -> None:
        """Release what the attempt took or is about to take, and leave the queues."""
        # Both are needed: a running job may take the locks after the posted release.
        self.job.undo = self._release
        self._connections.post(self._release)

    def _release(self, cursor: CursorWrapper) -> None:
        if self._waiter is not None:
            # The running job may have joined again. Leave before the release, so that the waiter
            # that it wakes is the first in the queue.
            self._waiter.leave(cursor)
        sql.release(cursor, self._wanted.resources, self._wanted.token_hash)


class Slots(NamedTuple):
    """The slots of a name as one look shows them to one client.

    `open` has the slots that it may take: those that became free after the ones for the clients
    before it. So a client that comes later takes no slot that the first waiter looks for. If there
    is none, `free_in` is the time in seconds after which there may be one, and `held_for` that
    after which the first slot ends, 0 if one is free and reserved.
    """

    open: tuple[str, ...]
    held_for: float
    free_in: float

    @classmethod
    def of(
        cls, names: tuple[str, ...], left: Mapping[str, float], ahead: int, turn: float, waits: bool
    ) -> Slots:
        """Return what is open; `left` has the seconds until each slot that has a row ends."""
        since = {name: -left.get(name, -_ALWAYS) for name in names}
        free = sorted((name for name in names if since[name] >= 0), key=lambda one: -since[one])
        if not free:
            ends = min(left.values())
            return cls((), ends, ends)
        before, turns = (ahead if waits else min(ahead, len(free))), 0.0
        for number, name in enumerate(free):
            turns += 1 + since[name] // turn
            if turns > before:
                return cls(tuple(free[number:]), 0.0, 0.0)
        return cls((), 0.0, min(turn - since[name] % turn for name in free))

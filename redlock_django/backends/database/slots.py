"""The statements that take one slot of a name that several clients may hold at once.

Each slot is a lock of its own, with a row of its own; the waiters of the name are in one queue.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from redlock_django.backends.database.dialects import SECOND, dialect_of, text
from redlock_django.backends.database.sql import (
    NOT_WAITING,
    DatabaseRefusal,
    LockRequest,
    Place,
    Taken,
    TakeStatements,
    call_waiters,
)

if TYPE_CHECKING:
    from django.db.backends.utils import CursorWrapper

_LOOK = """
SELECT resource, expires_at - {now},
    (SELECT count(*) FROM {waiters} AS ahead WHERE ahead.resource = %s
     AND ahead.alive_until > {now} AND (ahead.arrived_at, ahead.name) < (%s, %s))
FROM {locks} WHERE resource IN ({resources}) AND NOT (token_hash = '' AND expires_at > {now})"""

_ALWAYS = 1e9  # seconds for which a slot without a row has been free: longer than many turns
_RACES = 100  # attempts, each of which other clients won


class SlotStatements:
    """The statements that take a slot, or find out why there is none, on one cursor.

    `wanted` has the resources of all slots of a name, the first of which is the name. As many
    waiters as slots are free have a turn, each with a slot, in the order in which the slots became
    free; when it has been free for `turn` seconds, a slot is reserved for one waiter more. A caller
    that does not wait leaves the first ones one turn.
    """

    def __init__(
        self, cursor: CursorWrapper, wanted: LockRequest, place: Place, turn: float
    ) -> None:
        self._cursor = cursor
        self._wanted = wanted
        self._place = place
        self._turn = turn

    def fences(self) -> Taken:
        """Take a slot, and return {} if none was free for this client at a time."""
        taken = self.take()
        return {} if isinstance(taken, DatabaseRefusal) else taken

    def take(self, looks_first: bool = False, called: int | None = None) -> Taken | DatabaseRefusal:
        """Take a slot; return why there is none only if none was free for this client at a time.

        `called` is the slot that came free for a waiter.
        """
        resources = self._wanted.resources
        if called is not None and called < len(resources):
            fences = self._take(resources[called], 0.0)
        else:
            fences = {} if looks_first else self._guess()
        if fences:
            return fences
        for _ in range(_RACES):
            slots = self._look()
            if not slots.open:
                break
            for number, resource in enumerate(slots.open, 1):
                if fences := self._take(resource, 0.0):
                    self._call_next(slots.open[number:])
                    return fences
        return DatabaseRefusal({resources[0]: slots.held_for}, slots.free_in)

    def _call_next(self, also_open: tuple[str, ...]) -> None:
        """Call the next waiters for a slot that is open, too.

        Releases at the same moment do not see each other, and have called the same waiters.
        """
        if also_open and self._place is not NOT_WAITING:
            call_waiters(self._cursor, also_open[0])

    def _guess(self) -> Taken:
        """Take the slot that the token names, without a look, as one takes a lock."""
        slots = self._wanted.resources
        return self._take(slots[int(self._wanted.token_hash[:8], 16) % len(slots)], self._turn)

    def _take(self, resource: str, turn: float) -> Taken:
        wanted = self._wanted._replace(resources=(resource,))
        return TakeStatements(self._cursor, wanted, self._place, turn).fences()

    def _look(self) -> Slots:
        names = self._wanted.resources
        statement = dialect_of(self._cursor).sql(_LOOK, len(names))
        self._cursor.execute(statement, [names[0], *self._place, *names])
        left, ahead = {}, 0
        for name, time, ahead in self._cursor.fetchall():  # noqa: B007 - the same in every row
            left[text(name)] = time / SECOND
        return Slots.of(names, left, ahead, self._turn, waits=self._place is not NOT_WAITING)


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

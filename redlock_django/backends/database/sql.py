"""The statements of the database store, on one cursor in autocommit.

A row of LOCKS stays when its lock ends, because the next fence must be higher; then
`expires_at` is the moment since which the resource is free. WAITERS has a row for every resource
that a waiter waits for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import DataError, IntegrityError, OperationalError

from redlock_django.backends.database.dialects import SECOND, dialect_of, sqlstate, text

if TYPE_CHECKING:
    from django.db.backends.utils import CursorWrapper

ALIVE = 2.0
"""Seconds for which a waiter keeps its place in the queue after it was last heard of."""

LAST = 2**62
"""Later than every arrival: the place in the queue of a caller that does not wait."""

_DIVISION_BY_ZERO = "22012"  # SQLSTATE
_NOT_NULL = "23502"  # SQLSTATE
_RACES = 3  # attempts, if a lock ends between the statement that takes it and the one that looks


_LOOK = """
SELECT resource, expires_at - {now}, expires_at + %s * {ahead} - {now} FROM {locks}
WHERE resource IN ({resources}) AND NOT (token_hash = '' AND expires_at > {now})"""

_EXTEND = """
UPDATE {locks} SET expires_at = {greatest}(expires_at, {now} + %s)
WHERE resource IN ({resources}) AND token_hash = %s AND expires_at > {now}
{kept}"""

# The fence is NULL unless the server is trusted, as in `Dialect.sql_of_take`.
_SWAP = """
UPDATE {locks} SET token_hash = %s, holder = %s, fence = {fence},
    expires_at = {greatest}(expires_at, {now} + %s)
WHERE resource IN ({resources}) AND token_hash IN (%s, %s) AND expires_at > {now}
{kept}"""

_SWAP_EXACTLY = _SWAP.replace("{greatest}(expires_at, {now} + %s)", "{now} + %s")

_RELEASE = """
UPDATE {locks} SET expires_at = {now}, token_hash = '', holder = ''
WHERE resource IN ({resources}) AND token_hash = %s AND expires_at > {now}
{notified}"""

_SHORTEN = """
UPDATE {locks} SET expires_at = {least}(expires_at, {now} + %s)
WHERE resource IN ({resources}) AND token_hash = %s AND expires_at > {now}
{notified}"""


class Place(NamedTuple):
    """The place of a waiter in the queues: the time of its arrival in µs, and its name."""

    arrived_at: int
    name: str


class Unrecognized(OperationalError):
    """A connection leads to a server that is not trusted, so no lock was taken.

    A pooler or a promotion has changed the server. As with a connection that broke, the statement
    may be repeated on a new connection, whose server is recognized first.
    """


NOT_WAITING = Place(LAST, "")


Taken = dict[str, int]
"""The fence of each resource that was taken, in the order in which they were asked for."""


class DatabaseRefusal(NamedTuple):
    """Why the locks were not taken: the resources at fault, each with the seconds it is held.

    A resource that is free is reserved for a waiter that came before. `free_in` is the time in
    seconds after which all of them may be taken if nothing changes.
    """

    left: dict[str, float]
    free_in: float


class LockRequest(NamedTuple):
    """The locks that an attempt wants, all or none; `ttl` is in seconds."""

    resources: tuple[str, ...]
    token_hash: str
    holder: str
    ttl: float


class TakeStatements:
    """The statements that take locks, or find out why they cannot be taken, on one cursor.

    A lock that became free is reserved for the first waiter for `turn` seconds, then for the
    second one, and so on. A caller that does not wait only leaves the first its turn.
    """

    def __init__(
        self, cursor: CursorWrapper, wanted: LockRequest, place: Place, turn: float
    ) -> None:
        self._cursor = cursor
        self._dialect = dialect_of(cursor)
        self._wanted = wanted
        self._many = len(wanted.resources)
        self._place = place
        self._waits = place is not NOT_WAITING
        self._queue = [round(turn * SECOND), 1000 if self._waits else 1, *place]

    def take(self, looks_first: bool = False, called: int | None = None) -> Taken | DatabaseRefusal:
        """Take all locks, or none; return the fences, or why they were not taken.

        A refusal that only reads (`looks_first`) costs the server less than one that locks the row.
        `called` has no effect: a lock is one slot.
        """
        for _ in range(_RACES):
            refusal = self.refusal() if looks_first else None
            if refusal is None:
                if fences := self.fences():
                    return fences
                refusal = self.refusal()
            if refusal is not None:
                return refusal
        return DatabaseRefusal(dict.fromkeys(self._wanted.resources, 0.001), 0.0)

    def refusal(self) -> DatabaseRefusal | None:
        """Return why the locks cannot be taken now, or None if they can."""
        statement = self._dialect.sql(_LOOK, self._many)
        self._cursor.execute(statement, [*self._queue, *self._wanted.resources])
        found = {text(name): (left, free_in) for name, left, free_in in self._cursor.fetchall()}
        blocked = {name: times for name, times in found.items() if max(times) > 0}
        if not blocked:
            return None
        return DatabaseRefusal(
            {name: left / SECOND for name, (left, _) in sorted(blocked.items())},
            max(free_in for _, free_in in blocked.values()) / SECOND,
        )

    def fences(self) -> Taken:
        """Take all locks, and return {} if one of them is not free.

        A waiter leaves the queues before this returns: otherwise the holder could release the lock
        first, which would then be reserved for a waiter that has already been served.

        Raises Unrecognized if the server is a standby, or may have forgotten locks.
        """
        take = self._take
        if self._dialect.take_all and (self._many > 1 or self._waits):
            take = self._take_all
        elif self._many > 1:
            take = self._take_in_transaction
        with _recognized():
            taken = take()
        if not taken:
            return {}
        if self._waits and not self._dialect.take_all:
            leave(self._cursor, self._place.name)
        fences = {text(resource): int(fence) for resource, fence, *_ in taken}
        return {resource: fences[resource] for resource in self._wanted.resources}

    def _take(self) -> Sequence[Any]:
        """Take those of the locks that are free, and return their rows."""
        self._cursor.execute(self._dialect.sql_of_take(self._many), [*self._rows, *self._queue])
        if self._dialect.taken:
            taken = self._dialect.sql(self._dialect.taken, self._many)
            self._cursor.execute(taken, self._wanted.resources)
        rows: Sequence[Any] = self._cursor.fetchall()
        return [row for row in rows if text(row[2]) == self._wanted.token_hash]

    def _take_all(self) -> Sequence[Any]:
        """Take all locks by a statement that changes nothing if one is not free."""
        resources, token_hash, *_ = self._wanted
        values = [*resources, token_hash, *self._queue, *self._rows, *self._queue]
        if self._waits:
            values.append(self._place.name)
        try:
            self._cursor.execute(self._dialect.sql_of_take(self._many, self._waits), values)
        except DataError as error:
            if sqlstate(error) != _DIVISION_BY_ZERO:
                raise
            return []
        rows: Sequence[Any] = self._cursor.fetchall()
        return rows

    def _take_in_transaction(self) -> Sequence[Any]:
        self._cursor.execute(self._dialect.begin)
        has_all = False
        try:
            taken = self._take()
            has_all = len(taken) == self._many
        finally:
            self._cursor.execute("COMMIT" if has_all else "ROLLBACK")
        return taken if has_all else []

    @property
    def _rows(self) -> list[Any]:
        """The values of the rows to take."""
        resources, token_hash, holder, ttl = self._wanted
        values: list[Any] = []
        for resource in sorted(resources):  # the same order for all clients: few deadlocks
            values += [resource, token_hash, holder, round(ttl * SECOND)]
        return values


def extend(cursor: CursorWrapper, resources: Sequence[str], token_hash: str, ttl: float) -> bool:
    """Extend locks to `ttl` seconds from now, never shorten them; return whether all are held."""
    statement = dialect_of(cursor).sql(_EXTEND, len(resources))
    cursor.execute(statement, [round(ttl * SECOND), *resources, token_hash])
    return bool(cursor.rowcount == len(resources))


def swap(
    cursor: CursorWrapper,
    resources: Sequence[str],
    old: str,
    new: str,
    holder: str,
    ttl: float,
    *,
    exactly: bool = False,
) -> int:
    """Replace the token `old` of locks by `new`, for at least `ttl` seconds, or `exactly` so long.

    Return how many were replaced, also by an earlier run of the same statement. Raises Unrecognized
    if the server is a standby, or may have forgotten that they were replaced before.
    """
    statement = dialect_of(cursor).sql(_SWAP_EXACTLY if exactly else _SWAP, len(resources))
    with _recognized():
        cursor.execute(statement, [new, holder, round(ttl * SECOND), *resources, old, new])
    return int(cursor.rowcount)


def restore(
    cursor: CursorWrapper,
    resources: Sequence[str],
    new: str,
    old: str,
    holder: str,
    left: float,
) -> None:
    """Undo a swap: replace the token `new` of locks by `old`, for `left` seconds.

    Another run changes nothing: the client with the old token may have extended them since.
    """
    statement = dialect_of(cursor).sql(_SWAP_EXACTLY, len(resources))
    with _recognized():
        cursor.execute(statement, [old, holder, round(left * SECOND), *resources, new, new])


def ends(cursor: CursorWrapper, resources: Sequence[str], token: str) -> tuple[float, float] | None:
    """Return when the locks of this token end, and in how many seconds; None if it has none."""
    statement = """
SELECT MIN(expires_at), MIN(expires_at) - {now} FROM {locks}
WHERE resource IN ({resources}) AND token_hash = %s"""
    cursor.execute(dialect_of(cursor).sql(statement, len(resources)), [*resources, token])
    ((moment, left),) = cursor.fetchall()
    return None if moment is None else (int(moment) / SECOND, int(left) / SECOND)


def is_used(
    cursor: CursorWrapper,
    resources: Sequence[str],
    token: str,
    fences: Sequence[int],
    ends: float,
) -> bool:
    """Return whether this token was replaced, where it is not valid any more.

    If another client has had the lock since, it was replaced if its time, up to the moment `ends`,
    is not over.
    """
    statement = """
SELECT resource, token_hash, fence, {now} FROM {locks} WHERE resource IN ({resources})"""
    cursor.execute(dialect_of(cursor).sql(statement, len(resources)), list(resources))
    own, rows = dict(zip(resources, fences, strict=True)), cursor.fetchall()
    return token not in {text(stored) for _, stored, *_ in rows} and any(
        int(fence) == own[text(name)] or int(now) < ends * SECOND for name, _, fence, now in rows
    )


@contextmanager
def _recognized() -> Iterator[None]:
    """Raise Unrecognized for a fence that is NULL, since the server is not trusted."""
    try:
        yield
    except IntegrityError as error:
        if sqlstate(error) != _NOT_NULL:
            raise
        raise Unrecognized("the server has changed or was promoted") from error


def release(
    cursor: CursorWrapper,
    resources: Sequence[str],
    token_hash: str,
    held_for: float = 0.0,
    siblings: Sequence[str] = (),
    turn: float = 0.0,
) -> bool:
    """Release those of the locks that this token holds; return whether it held all.

    They stay held for `held_for` seconds, or until they would have expired. A slot of a name has
    `siblings`, all slots of that name; other waiters were called for those that were released
    within the last `turn` seconds.
    """
    dialect = dialect_of(cursor)
    values: list[Any] = [*resources, token_hash]
    if held_for > 0:
        values = [round(held_for * SECOND), *values]
    statement = _SHORTEN if held_for > 0 else _RELEASE
    if siblings and dialect.notified:
        values += [*siblings, round(turn * SECOND)]
    cursor.execute(dialect.sql(statement, len(resources), siblings=len(siblings)), values)
    return bool(cursor.rowcount == len(resources))


def call_waiters(cursor: CursorWrapper, resource: str) -> None:
    """Call the first waiters for a resource that is free, if the database can do that."""
    dialect = dialect_of(cursor)
    if dialect.notified:
        cursor.execute(dialect.sql("SELECT {called} FROM {locks} WHERE resource = %s"), [resource])


def join(cursor: CursorWrapper, name: str, resources: Sequence[str]) -> Place:
    """Join the queues of these resources, and return the place."""
    dialect = dialect_of(cursor)
    rows = dialect.sql(", ".join(["(%s, %s, {began}, {began} + %s)"] * len(resources)))
    values: list[Any] = []
    for resource in sorted(resources):
        values += [name, resource, round(ALIVE * SECOND)]
    cursor.execute(dialect.sql(dialect.join, rows=rows), values)
    if dialect.joined:
        cursor.execute(dialect.sql(dialect.joined), [name])
    return Place(int(cursor.fetchall()[0][0]), name)


def stay(cursor: CursorWrapper, name: str) -> bool:
    """Keep a place in the queues; return False if there is none."""
    statement = "UPDATE {waiters} SET alive_until = {now} + %s WHERE name = %s"
    cursor.execute(dialect_of(cursor).sql(statement), [round(ALIVE * SECOND), name])
    return bool(cursor.rowcount > 0)


def leave(cursor: CursorWrapper, name: str) -> None:
    """Leave all queues."""
    cursor.execute(dialect_of(cursor).sql("DELETE FROM {waiters} WHERE name = %s"), [name])


def forget_dead(cursor: CursorWrapper) -> None:
    """Delete the places of waiters that died, at least a minute ago."""
    statement = "DELETE FROM {waiters} WHERE alive_until < {now} - 60000000"
    cursor.execute(dialect_of(cursor).sql(statement))

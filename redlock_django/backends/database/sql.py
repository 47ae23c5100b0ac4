"""The statements of the database store, on one cursor in autocommit.

A row of LOCKS stays when its lock ends, because the next fence must be higher; then
`expires_at` is the moment since which the resource is free. WAITERS has a row for every resource
that a waiter waits for.
"""

from __future__ import annotations

from collections.abc import Sequence
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


# A statement that fails changes nothing: it divides by 0 if it could not take all of them.
_TAKE_ALL = """
WITH taken (resource, fence, kept) AS ({take})
SELECT resource, fence, 1 / (count(*) OVER () / {many}) FROM taken"""

_LOOK = """
SELECT resource, expires_at - {now}, expires_at + %s * {ahead} - {now} FROM {locks}
WHERE resource IN ({resources}) AND NOT (token_hash = '' AND expires_at > {now})"""

_EXTEND = """
UPDATE {locks} SET expires_at = {greatest}(expires_at, {now} + %s)
WHERE resource IN ({resources}) AND token_hash = %s AND expires_at > {now}
{kept}"""

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


def take(
    cursor: CursorWrapper, wanted: LockRequest, place: Place, turn: float
) -> tuple[int, ...] | DatabaseRefusal:
    """Take all locks, or none; return their fences, or why they were not taken.

    Raises Unrecognized if the server is a standby, or may have forgotten locks.

    A lock that became free is reserved for the first waiter for `turn` seconds, then for the
    second one, and so on. A caller that does not wait only leaves the first its turn.
    """
    statements = TakeStatements(cursor, wanted, place, turn)
    # A refusal that only reads costs the server less than one that locks the row.
    looks_first = place is not NOT_WAITING or len(wanted.resources) > 1
    for _ in range(_RACES):
        refusal = statements.refusal() if looks_first else None
        if refusal is None:
            if fences := statements.fences():
                return fences
            refusal = statements.refusal()
        if refusal is not None:
            return refusal
    return DatabaseRefusal(dict.fromkeys(wanted.resources, 0.001), 0.0)


class TakeStatements:
    """The statements that take locks, or find out why they cannot be taken, on one cursor."""

    def __init__(
        self, cursor: CursorWrapper, wanted: LockRequest, place: Place, turn: float
    ) -> None:
        self._cursor = cursor
        self._dialect = dialect_of(cursor)
        self._wanted = wanted
        self._many = len(wanted.resources)
        self._queue = [round(turn * SECOND), 1 if place is NOT_WAITING else 1000, *place]

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

    def fences(self) -> tuple[int, ...]:
        """Take all locks and return their fences, or () if one of them is not free."""
        take = self._take
        if self._many > 1:
            take = self._take_in_transaction if self._dialect.begin else self._take_all
        try:
            taken = take(self._dialect.sql_of_take(self._many))
        except IntegrityError as error:
            if sqlstate(error) != _NOT_NULL:
                raise
            raise Unrecognized("the server has changed or was promoted") from error
        fences = {text(resource): int(fence) for resource, fence, *_ in taken}
        return tuple(fences[resource] for resource in self._wanted.resources) if fences else ()

    def _take(self, statement: str) -> Sequence[Any]:
        """Take those of the locks that are free, and return their rows."""
        resources, token_hash, holder, ttl = self._wanted
        values: list[Any] = []
        for resource in sorted(resources):  # the same order for all clients: few deadlocks
            values += [resource, token_hash, holder, round(ttl * SECOND)]
        self._cursor.execute(statement, [*values, *self._queue])
        if self._dialect.taken:
            taken = self._dialect.sql(self._dialect.taken, self._many)
            self._cursor.execute(taken, [*resources, token_hash])
        rows: Sequence[Any] = self._cursor.fetchall()
        return rows

    def _take_all(self, statement: str) -> Sequence[Any]:
        """Take all locks by a statement that fails, and changes nothing, if one is not free."""
        try:
            return self._take(_TAKE_ALL.format(take=statement, many=self._many))
        except DataError as error:
            if sqlstate(error) != _DIVISION_BY_ZERO:
                raise
            return []

    def _take_in_transaction(self, statement: str) -> Sequence[Any]:
        self._cursor.execute(self._dialect.begin)
        has_all = False
        try:
            taken = self._take(statement)
            has_all = len(taken) == self._many
        finally:
            self._cursor.execute("COMMIT" if has_all else "ROLLBACK")
        return taken if has_all else []


def extend(cursor: CursorWrapper, resources: Sequence[str], token_hash: str, ttl: float) -> bool:
    """Extend locks to `ttl` seconds from now, never shorten them; return whether all are held."""
    statement = dialect_of(cursor).sql(_EXTEND, len(resources))
    cursor.execute(statement, [round(ttl * SECOND), *resources, token_hash])
    return bool(cursor.rowcount == len(resources))


def release(
    cursor: CursorWrapper,
    resources: Sequence[str],
    token_hash: str,
    held_for: float = 0.0,
) -> bool:
    """Release those of the locks that this token holds; return whether it held all.

    They stay held for `held_for` seconds, or until they would have expired.
    """
    values: list[Any] = [*resources, token_hash]
    if held_for > 0:
        values = [round(held_for * SECOND), *values]
    statement = _SHORTEN if held_for > 0 else _RELEASE
    cursor.execute(dialect_of(cursor).sql(statement, len(resources)), values)
    return bool(cursor.rowcount == len(resources))


def join(cursor: CursorWrapper, name: str, resources: Sequence[str]) -> Place:
    """Join the queues of these resources, and forget waiters that died; return the place."""
    dialect = dialect_of(cursor)
    cursor.execute(dialect.sql("DELETE FROM {waiters} WHERE alive_until < {now} - 60000000"))
    cursor.execute(dialect.sql("SELECT {now}"))
    (now,) = cursor.fetchone()
    rows = ", ".join(["(%s, %s, %s, %s)"] * len(resources))
    values: list[Any] = []
    for resource in sorted(resources):
        values += [name, resource, now, now + round(ALIVE * SECOND)]
    cursor.execute(dialect.sql(dialect.join, rows=rows), values)
    return Place(int(now), name)


def stay(cursor: CursorWrapper, name: str) -> bool:
    """Keep a place in the queues; return False if there is none."""
    statement = "UPDATE {waiters} SET alive_until = {now} + %s WHERE name = %s"
    cursor.execute(dialect_of(cursor).sql(statement), [round(ALIVE * SECOND), name])
    return bool(cursor.rowcount > 0)


def leave(cursor: CursorWrapper, name: str) -> None:
    """Leave all queues."""
    cursor.execute(dialect_of(cursor).sql("DELETE FROM {waiters} WHERE name = %s"), [name])

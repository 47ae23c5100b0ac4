"""Operations on rows by one or a few statements, on one cursor in autocommit.

Statements and parts of them in which databases differ are in `dialects`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import DataError, IntegrityError, OperationalError

from redlock_django.backends.database.dialects import (
    LOCKS,
    SECOND,
    WAITERS,
    dialect_of,
    marks,
    sqlstate,
    text,
)

if TYPE_CHECKING:
    from django.db.backends.utils import CursorWrapper

ALIVE = 2.0
"""Seconds for which a waiter keeps its place in the queue after it was last heard of."""

LAST = 2**62
"""Later than every arrival: the place in the queue of a caller that does not wait."""

_DIVISION_BY_ZERO = "22012"  # SQLSTATE
_NOT_NULL = "23502"  # SQLSTATE


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
    """The locks that an attempt wants, all or none; `ttl` and `turn` are in seconds.

    A lock that became free is reserved for the first waiter for `turn` seconds, then for the second
    one, and so on. A caller that does not wait (`place`) only leaves the first its turn.
    """

    resources: tuple[str, ...]
    token_hash: str
    holder: str
    ttl: float
    turn: float
    place: Place = NOT_WAITING

    @property
    def waits(self) -> bool:
        """True for a waiter, which is in the queues."""
        return self.place is not NOT_WAITING

    @property
    def queue(self) -> list[Any]:
        """The values of `Dialect.free`."""
        return [round(self.turn * SECOND), 1000 if self.waits else 1, *self.place]

    @property
    def rows(self) -> list[Any]:
        """The values of `Dialect.rows`."""
        values: list[Any] = []
        for resource in sorted(self.resources):  # the same order for all clients: few deadlocks
            values += [resource, self.token_hash, self.holder, round(self.ttl * SECOND)]
        return values


def take(cursor: CursorWrapper, wanted: LockRequest) -> Taken:
    """Take all locks, and return their fences; {} if one of them is not free.

    A waiter leaves the queues before this returns: otherwise the holder could release the lock
    first, which would then be reserved for a waiter that has already been served.

    Raises Unrecognized if the server is a standby, or may have forgotten locks.
    """
    takes_all = dialect_of(cursor).takes_all
    with _recognized():
        if takes_all and (len(wanted.resources) > 1 or wanted.waits):
            rows = _take_all(cursor, wanted)
        elif len(wanted.resources) > 1:
            rows = _take_in_transaction(cursor, wanted)
        else:
            rows = _take_free(cursor, wanted)
    if not rows:
        return {}
    if wanted.waits and not takes_all:
        leave(cursor, wanted.place.name)
    fences = {text(resource): int(fence) for resource, fence, *_ in rows}
    return {resource: fences[resource] for resource in wanted.resources}


def _take_free(cursor: CursorWrapper, wanted: LockRequest) -> Sequence[Any]:
    """Take those of the locks that are free, and return their rows."""
    statement = dialect_of(cursor).take(len(wanted.resources))
    cursor.execute(statement, [*wanted.rows, *wanted.queue])
    rows: Sequence[Any] = cursor.fetchall()
    return [row for row in rows if text(row[2]) == wanted.token_hash]


def _take_all(cursor: CursorWrapper, wanted: LockRequest) -> Sequence[Any]:
    """Take all locks by a statement that changes nothing if one is not free."""
    queue = wanted.queue
    values = [*wanted.resources, wanted.token_hash, *queue, *wanted.rows, *queue]
    if wanted.waits:
        values.append(wanted.place.name)
    try:
        statement = dialect_of(cursor).take_all(len(wanted.resources), wanted.waits)
        cursor.execute(statement, values)
    except DataError as error:
        if sqlstate(error) != _DIVISION_BY_ZERO:
            raise
        return []
    rows: Sequence[Any] = cursor.fetchall()
    return rows


def _take_in_transaction(cursor: CursorWrapper, wanted: LockRequest) -> Sequence[Any]:
    cursor.execute(dialect_of(cursor).begin)
    has_all = False
    try:
        taken = _take_free(cursor, wanted)
        has_all = len(taken) == len(wanted.resources)
    finally:
        cursor.execute("COMMIT" if has_all else "ROLLBACK")
    return taken if has_all else []


def refusal(cursor: CursorWrapper, wanted: LockRequest) -> DatabaseRefusal | None:
    """Return why the locks cannot be taken now, or None if they can."""
    dialect = dialect_of(cursor)
    now, names = dialect.now, wanted.resources
    statement = f"""
SELECT resource, expires_at - {now}, expires_at + %s * {dialect.ahead} - {now} FROM {LOCKS}
WHERE resource IN ({marks(len(names))}) AND NOT (token_hash = '' AND expires_at > {now})"""
    cursor.execute(statement, [*wanted.queue, *names])
    found = {text(name): (left, free_in) for name, left, free_in in cursor.fetchall()}
    blocked = {name: times for name, times in found.items() if max(times) > 0}
    if not blocked:
        return None
    return DatabaseRefusal(
        {name: left / SECOND for name, (left, _) in sorted(blocked.items())},
        max(free_in for _, free_in in blocked.values()) / SECOND,
    )


def slots_left(cursor: CursorWrapper, wanted: LockRequest) -> tuple[dict[str, float], int]:
    """Return the seconds left of each slot that has a row, and the number of waiters before."""
    names, now = wanted.resources, dialect_of(cursor).now
    statement = f"""
SELECT resource, expires_at - {now},
    (SELECT count(*) FROM {WAITERS} AS ahead WHERE ahead.resource = %s
     AND ahead.alive_until > {now} AND (ahead.arrived_at, ahead.name) < (%s, %s))
FROM {LOCKS}
WHERE resource IN ({marks(len(names))}) AND NOT (token_hash = '' AND expires_at > {now})"""
    cursor.execute(statement, [names[0], *wanted.place, *names])
    left, ahead = {}, 0
    for name, time, ahead in cursor.fetchall():  # noqa: B007 - the same in every row
        left[text(name)] = time / SECOND
    return left, ahead


def extend(cursor: CursorWrapper, resources: Sequence[str], token_hash: str, ttl: float) -> bool:
    """Extend locks to `ttl` seconds from now, never shorten them; return whether all are held."""
    dialect = dialect_of(cursor)
    now = dialect.now
    statement = f"""
UPDATE {LOCKS} SET expires_at = {dialect.greatest}(expires_at, {now} + %s)
WHERE resource IN ({marks(len(resources))}) AND token_hash = %s AND expires_at > {now}
{dialect.returning(dialect.kept)}"""
    cursor.execute(statement, [round(ttl * SECOND), *resources, token_hash])
    return bool(cursor.rowcount == len(resources))


def swap(
    cursor: CursorWrapper,
    resources: Sequence[str],
    olds: tuple[str, str],
    new: str,
    holder: str,
    ttl: float,
) -> int:
    """Replace the tokens `olds` of locks by `new`, for `ttl` seconds.

    Return how many were replaced. If `new` is one of `olds`, those of an earlier run of the same
    statement are replaced again. Raises Unrecognized if the server is a standby, or may have
    forgotten that they were replaced before.
    """
    statement = dialect_of(cursor).swap(len(resources))
    with _recognized():
        cursor.execute(statement, [new, holder, round(ttl * SECOND), *resources, *olds])
    return int(cursor.rowcount)


def ends(cursor: CursorWrapper, resources: Sequence[str], token: str) -> tuple[float, float] | None:
    """Return when the locks of this token end, and in how many seconds; None if it has none."""
    statement = f"""
SELECT MIN(expires_at), MIN(expires_at) - {dialect_of(cursor).now} FROM {LOCKS}
WHERE resource IN ({marks(len(resources))}) AND token_hash = %s"""
    cursor.execute(statement, [*resources, token])
    ((moment, left),) = cursor.fetchall()
    return None if moment is None else (int(moment) / SECOND, int(left) / SECOND)


def has_tokens(cursor: CursorWrapper, resources: Sequence[str], tokens: Sequence[str]) -> bool:
    """Return whether every lock is held with one of these tokens."""
    statement = f"""
SELECT COUNT(*) FROM {LOCKS} WHERE resource IN ({marks(len(resources))})
AND token_hash IN ({marks(len(tokens))}) AND expires_at > {dialect_of(cursor).now}"""
    cursor.execute(statement, [*resources, *tokens])
    ((held,),) = cursor.fetchall()
    return bool(held == len(resources))


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
    statement = f"""
SELECT resource, token_hash, fence, {dialect_of(cursor).now} FROM {LOCKS}
WHERE resource IN ({marks(len(resources))})"""
    cursor.execute(statement, list(resources))
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
    or_tokens: Sequence[str] = (),
) -> bool:
    """Release those of the locks that this token holds; return whether it held all.

    They stay held for `held_for` seconds, or until they would have expired. A slot of a name has
    `siblings`, all slots of that name; other waiters were called for those that were released
    within the last `turn` seconds. `or_tokens` are hashes of other tokens that count, too.
    """
    dialect = dialect_of(cursor)
    now, tokens = dialect.now, (token_hash, *or_tokens)
    change = f"expires_at = {now}, token_hash = '', holder = ''"
    values: list[Any] = [*resources, *tokens]
    if held_for > 0:
        change = f"expires_at = {dialect.least}(expires_at, {now} + %s)"
        values = [round(held_for * SECOND), *values]
    if siblings and dialect.notifies:
        values += [*siblings, round(turn * SECOND)]
    statement = f"""
UPDATE {LOCKS} SET {change}
WHERE resource IN ({marks(len(resources))}) AND token_hash IN ({marks(len(tokens))})
AND expires_at > {now} {dialect.returning(dialect.called(len(siblings)))}"""
    cursor.execute(statement, values)
    return bool(cursor.rowcount == len(resources))


def call_waiters(cursor: CursorWrapper, resource: str) -> None:
    """Call the first waiters for a resource that is free, if the database can do that."""
    if called := dialect_of(cursor).called():
        cursor.execute(f"SELECT {called} FROM {LOCKS} WHERE resource = %s", [resource])


def join(cursor: CursorWrapper, name: str, resources: Sequence[str]) -> Place:
    """Join the queues of these resources, and return the place."""
    values: list[Any] = []
    for resource in sorted(resources):
        values += [name, resource, round(ALIVE * SECOND)]
    cursor.execute(dialect_of(cursor).join(len(resources)), values)
    return Place(int(cursor.fetchall()[0][0]), name)


def stay(cursor: CursorWrapper, name: str) -> bool:
    """Keep a place in the queues; return False if there is none."""
    now = dialect_of(cursor).now
    statement = f"UPDATE {WAITERS} SET alive_until = {now} + %s WHERE name = %s"
    cursor.execute(statement, [round(ALIVE * SECOND), name])
    return bool(cursor.rowcount > 0)


def leave(cursor: CursorWrapper, name: str) -> None:
    """Leave all queues."""
    cursor.execute(f"DELETE FROM {WAITERS} WHERE name = %s", [name])


def forget_dead(cursor: CursorWrapper) -> None:
    """Delete the places of waiters that died, at least a minute ago."""
    now = dialect_of(cursor).now
    cursor.execute(f"DELETE FROM {WAITERS} WHERE alive_until < {now} - {60 * SECOND}")

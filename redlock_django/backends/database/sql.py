"""The statements of the database store, on one cursor in autocommit.

A row of LOCKS stays when its lock ends, because the next fence must be higher; then
`expires_at` is the moment since which the resource is free. WAITERS has a row for every resource
that a waiter waits for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import DataError, IntegrityError, OperationalError

from redlock_django.backends.database.dialects import SECOND, Dialect, dialect_of, sqlstate, text

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
    dialect = dialect_of(cursor)
    queue = [round(turn * SECOND), 1 if place is NOT_WAITING else 1000, *place]
    refusal = None
    for _ in range(_RACES):
        # A refusal that only reads costs the server less than one that locks the row.
        if place is not NOT_WAITING or len(wanted.resources) > 1:
            refusal = _look(dialect, cursor, wanted.resources, queue)
        if refusal is None:
            try:
                fences = _take(dialect, cursor, wanted, queue)
            except IntegrityError as error:
                if sqlstate(error) != _NOT_NULL:
                    raise
                raise Unrecognized("the server has changed or was promoted") from error
            if fences:
                return fences
            refusal = _look(dialect, cursor, wanted.resources, queue)
        if refusal is not None:
            return refusal
    return DatabaseRefusal(dict.fromkeys(wanted.resources, 0.001), 0.0)


def _take(
    dialect: Dialect, cursor: CursorWrapper, wanted: LockRequest, queue: list[Any]
) -> tuple[int, ...]:
    many = len(wanted.resources)
    statement = dialect.sql_of_take(many)
    values: list[Any] = []
    for resource in sorted(wanted.resources):  # the same order for all clients: few deadlocks
        values += [resource, wanted.token_hash, wanted.holder, round(wanted.ttl * SECOND)]
    values += queue
    if many == 1:
        taken = _taken(dialect, cursor, statement, values, wanted)
    elif dialect.begin:
        taken = _taken_in_transaction(dialect, cursor, statement, values, wanted)
    else:
        taken = _taken_by_one_statement(cursor, statement, values, many)
    fences = {text(resource): int(fence) for resource, fence, *_ in taken}
    return tuple(fences[resource] for resource in wanted.resources) if fences else ()


def _taken(
    dialect: Dialect, cursor: CursorWrapper, statement: str, values: list[Any], wanted: LockRequest
) -> Sequence[Any]:
    cursor.execute(statement, values)
    if dialect.taken:
        many = len(wanted.resources)
        cursor.execute(dialect.sql(dialect.taken, many), [*wanted.resources, wanted.token_hash])
    taken: Sequence[Any] = cursor.fetchall()
    return taken


def _look(
    dialect: Dialect, cursor: CursorWrapper, resources: Sequence[str], queue: list[Any]
) -> DatabaseRefusal | None:
    """Return why the locks cannot be taken now, or None if they can."""
    cursor.execute(dialect.sql(_LOOK, len(resources)), [*queue, *resources])
    found = {text(name): (left, free_in) for name, left, free_in in cursor.fetchall()}
    blocked = {name: times for name, times in found.items() if max(times) > 0}
    if not blocked:
        return None
    return DatabaseRefusal(
        {name: left / SECOND for name, (left, _) in sorted(blocked.items())},
        max(free_in for _, free_in in blocked.values()) / SECOND,
    )


def _taken_by_one_statement(
    cursor: CursorWrapper, statement: str, values: list[Any], many: int
) -> list[Any]:
    try:
        cursor.execute(_TAKE_ALL.format(take=statement, many=many), values)
    except DataError as error:
        if sqlstate(error) != _DIVISION_BY_ZERO:
            raise
        return []
    taken: list[Any] = cursor.fetchall()
    return taken


def _taken_in_transaction(
    dialect: Dialect, cursor: CursorWrapper, statement: str, values: list[Any], wanted: LockRequest
) -> Sequence[Any]:
    cursor.execute(dialect.begin)
    has_all = False
    try:
        taken = _taken(dialect, cursor, statement, values, wanted)
        has_all = len(taken) == len(wanted.resources)
    finally:
        cursor.execute("COMMIT" if has_all else "ROLLBACK")
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

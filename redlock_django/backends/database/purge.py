"""Delete the rows of locks that ended long ago.

A row is kept because the next fence must be higher than its own. Without a row, the next fence is
the server's clock in µs. So a row is deleted only if its fence is far below that clock, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from redlock_django.backends.database.dialects import LOCKS, SECOND, dialect_of, marks, text

if TYPE_CHECKING:
    from django.db.backends.utils import CursorWrapper

    from redlock_django.backends.database.connections import Connections

SHORTEST_AGE = 86_400.0
"""Seconds. A clock that is set back by less does not lower fences."""


def purge(connections: Connections, age: float, batch: int) -> Iterator[int]:
    """Delete the rows of locks that ended more than `age` seconds ago; yield how many, by batch.

    Raises StoreUnavailable. Batches that were yielded stay deleted.
    """
    after: str | None = ""
    while after is not None:
        work = partial(_purge, after=after, age=age, batch=batch)
        after, deleted = connections.run(work)
        yield deleted


def _purge(cursor: CursorWrapper, *, after: str, age: float, batch: int) -> tuple[str | None, int]:
    """Delete a batch of rows; return the last resource, None if there are no more, and how many."""
    old = _old(cursor)
    cursor.execute(
        f"SELECT resource FROM {LOCKS} WHERE resource > %s AND {old} "
        f"ORDER BY resource LIMIT {batch}",
        [after, *_before(age)],
    )
    names = [text(name) for (name,) in cursor.fetchall()]
    if not names:
        return None, 0
    # Without the rows whose locks were acquired since.
    gone = f"DELETE FROM {LOCKS} WHERE resource IN ({marks(len(names))}) AND {old}"
    cursor.execute(gone, [*names, *_before(age)])
    return names[-1] if len(names) == batch else None, cursor.rowcount


def _old(cursor: CursorWrapper) -> str:
    now = dialect_of(cursor).now
    return f"expires_at < {now} - %s AND fence < {now} - %s"


def _before(age: float) -> list[int]:
    return [round(max(age, SHORTEST_AGE) * SECOND)] * 2

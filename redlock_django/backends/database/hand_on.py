"""Hand a lease in a database on: one statement replaces the hash of its token."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from redlock_django.backends.base import IN_TRANSIT
from redlock_django.backends.database import sql
from redlock_django.backends.database.attempt import DatabaseLease, hash_of
from redlock_django.backends.database.connections import Connections
from redlock_django.backends.database.jobs import Job
from redlock_django.engine.validity import Lease, end_of_min_hold, valid_until, with_drift

if TYPE_CHECKING:
    from django.db.backends.utils import CursorWrapper


class DatabaseSwap:
    """The replacement of the token of a lease, in `job`, and its undo.

    A lease that was taken lasts exactly as long as the taker says: if that dies, it ends then.
    """

    def __init__(
        self,
        connections: Connections,
        clock: Callable[[], float],
        old: Lease,
        ttl: float,
        holder: str,
    ) -> None:
        self._connections = connections
        self._clock = clock
        self._old = old
        self._started = clock()
        self._new = DatabaseLease(
            old.resources, secrets.token_hex(16), holder, ttl, self._started,
            valid_until(ttl, self._started), old.fences, home=connections, limit=old.limit,
            givers=old.givers,
        )  # fmt: skip
        # When the new lock ends, and what the old one had left before, at that moment.
        self._ends, self._left_before, self._read_at = 0.0, math.inf, 0.0
        self.job: Job[int] = Job(self._swap)

    def _swap(self, cursor: CursorWrapper) -> int:
        self._connections.refuse_untrusted()
        old, new = hash_of(self._old.token), self._new.token_hash
        resources, read_at = self._old.resources, self._clock()
        # An earlier run may have replaced it: then its own answer stays.
        if found := sql.ends(cursor, resources, old):
            self._read_at, self._left_before = read_at, found[1]
        swapped = sql.swap(cursor, resources, (old, new), new, self._new.holder, self._new.ttl)
        if self._old.home is not None and (found := sql.ends(cursor, resources, new)):
            self._ends, _ = found  # for the ticket
        if swapped < len(resources):
            sql.release(cursor, resources, new)  # the others have ended
        return swapped

    def taken(self) -> DatabaseLease | None:
        """Return the lease with the new token, None if the old one was not there.

        Raises StoreUnavailable if that took so long that it is over already.
        """
        if self.job.result() < len(self._old.resources):
            return None
        now = self._clock()
        if now >= self._new.until:
            raise self._connections.too_late()
        earliest_end = end_of_min_hold(self._old, self._left_before, now)
        return replace(self._new, earliest_end=earliest_end, ends=self._ends)

    def is_used(self, cursor: CursorWrapper) -> bool:
        """Return whether the old token was replaced before.

        Raises StoreUnavailable if that is still being undone.
        """
        old = self._old
        if isinstance(old, DatabaseLease) and old.may_be_undone(cursor):
            raise self._connections.too_late()
        return sql.is_used(cursor, old.resources, hash_of(old.token), old.fences, old.ends)

    def undo(self) -> None:
        """Restore the old token, also if the job is still running."""
        # Until then the lock has either token, and a release of the lease frees both. An earlier
        # hand-on may still be being undone, too.
        if isinstance(self._old, DatabaseLease):
            self._old.undone = *self._old.undone, self._new.token_hash
        self.job.undo = self._restore
        self._connections.post(self._restore)

    def _restore(self, cursor: CursorWrapper) -> None:
        if self._left_before == math.inf:
            return  # nothing was replaced
        old, new = self._old, self._new
        left = self._left_before - (self._clock() - self._read_at)
        if old.home is not None:
            left = max(left, with_drift(old.ttl))  # an extension may have come in between
        about, undone = old.holder or IN_TRANSIT, (new.token_hash, new.token_hash)
        # Another run changes nothing: the client with the old token may have extended it since.
        sql.swap(cursor, old.resources, undone, hash_of(old.token), about, max(0.0, left))

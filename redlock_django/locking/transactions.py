"""Locks that are kept until the transaction in which they are released has ended.

A lock that is released before COMMIT lets the next holder read what was true before. So
`Lock.release()` asks `keep`, which keeps the lock until the outermost transaction of
every connection has ended. Django has hooks for COMMIT, but none for ROLLBACK. Both end with
`set_autocommit(True)` or with `close()`, and both of these methods are watched on the connection
while it keeps locks. So is `commit()`: if a kept lock has been lost, it rolls back instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any, Protocol

from django.db import Error
from django.db.backends.base.base import BaseDatabaseWrapper

from redlock_django.exceptions import InvalidRedlock
from redlock_django.locking.caller import is_open, open_transactions

READ_COMMITTED = ("read committed", "read uncommitted")
"""The names of PostgreSQL's isolation levels at which each statement sees earlier commits."""

_ATTRIBUTE = "_redlock_kept_locks"


class MayReadOldData(InvalidRedlock):
    """A lock would be acquired inside a transaction that may read data from before the lock."""

    def __init__(self, names: str, alias: str) -> None:
        super().__init__(
            f"{names} is locked inside an open transaction of {alias!r}, which may read data from "
            "before the lock. Acquire the lock before transaction.atomic() begins (in a view under "
            "ATOMIC_REQUESTS, with @lock_resource), or pass until_commit=False if the work under "
            "the lock does not use this database"
        )
        self.alias = alias


def check(resources: tuple[str, ...]) -> None:
    """Raise MayReadOldData if an open transaction may read data from before their lock."""
    for connection in open_transactions():
        if not sees_commits(connection):
            raise MayReadOldData(", ".join(resources), connection.alias)


def sees_commits(connection: BaseDatabaseWrapper) -> bool:
    """Ask an open transaction whether each of its statements sees all earlier commits of others.

    True only for PostgreSQL at READ COMMITTED. Elsewhere a transaction that is already open when
    the lock is acquired may keep reading data from before the lock. The level may come from
    OPTIONS, the role, the database or the server, so the server is asked.
    """
    if connection.vendor != "postgresql":
        return False
    if connection.needs_rollback:
        return True  # it reads nothing any more, and is never committed
    with connection.cursor() as cursor:
        cursor.execute("SHOW transaction_isolation")
        return cursor.fetchone()[0] in READ_COMMITTED


def keep(lock: KeptLock) -> bool:
    """Keep a lock until the open transactions have ended; return False if none is open."""
    for connection in open_transactions():
        _kept_locks_of(connection).add(lock)
        return True  # when this one has ended, the lock is kept until the next one has
    return False


def guard_commits(lock: KeptLock, blocks: Iterable[BaseDatabaseWrapper]) -> None:
    """Raise LockLost if a lock has been lost, now or before the COMMIT of one of these blocks.

    The lock outlives the blocks, which others have opened and which contain the work under it.
    """
    lock.guard()
    for connection in blocks:
        _kept_locks_of(connection).guard(lock)


class KeptLock(Protocol):
    """A lock that a transaction may keep: what this module, which is below the locks, needs."""

    kept_by: KeptLocks | None
    has_committed: bool

    def guard(self) -> None:
        """Raise LockLost if the lock has been lost."""

    def release(self) -> bool:
        """Release the lock."""


class KeptLocks:
    """The locks that are released when the open transaction of a connection has ended."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self._connection = connection
        self._locks: dict[KeptLock, None] = {}
        self._guarding: list[KeptLock] = []  # they are released by others, later
        self._watched: dict[str, Any] = {}
        self._released = False
        setattr(connection, _ATTRIBUTE, self)
        self._watch("commit", self._guarded)
        self._watch("set_autocommit", self._releasing)
        self._watch("close", self._releasing)
        if not (connection.in_atomic_block and connection.commit_on_exit):
            # Without autocommit, the site calls these itself.
            self._watch("commit", self._releasing)
            self._watch("rollback", self._releasing)

    def add(self, lock: KeptLock) -> None:
        """Keep a lock; it is released once, however often it is added."""
        self._locks[lock] = None
        lock.kept_by = self

    def guard(self, lock: KeptLock) -> None:
        """Roll back instead of COMMIT if this lock has been lost; it is released later."""
        self._guarding.append(lock)

    def remove(self, lock: KeptLock) -> None:
        """Stop keeping a lock: its holder has acquired it again inside the transaction."""
        self._locks = {kept: None for kept in self._locks if kept is not lock}
        lock.kept_by = None

    def _watch(self, name: str, watching: Callable[[Callable[..., Any]], Any]) -> None:
        self._watched.setdefault(name, vars(self._connection).get(name))
        setattr(self._connection, name, watching(getattr(self._connection, name)))

    def _guarded(self, commit: Callable[[], None]) -> Callable[[], None]:
        def guarded() -> None:
            try:
                for lock in (*self._locks, *self._guarding):
                    lock.guard()
            except BaseException:  # LockLost, or an interrupt
                try:
                    self._connection.rollback()
                except Error:
                    self._connection.close()
                raise
            commit()
            for lock in (*self._locks, *self._guarding):
                lock.has_committed = True

        return guarded

    def _releasing(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            try:
                return method(*args, **kwargs)
            finally:
                if not is_open(self._connection):
                    self._release()

        return watched

    def _release(self) -> None:
        if self._released:
            return  # by a transaction that an on_commit hook has opened and ended
        self._released = True
        for name, before in self._watched.items():
            if before is None:
                vars(self._connection).pop(name, None)
            else:
                setattr(self._connection, name, before)
        vars(self._connection).pop(_ATTRIBUTE, None)
        with ExitStack() as stack:  # each one, even if a signal interrupts another
            for lock in self._locks:
                lock.kept_by = None
                stack.callback(lock.release)


def _kept_locks_of(connection: BaseDatabaseWrapper) -> KeptLocks:
    found: KeptLocks | None = vars(connection).get(_ATTRIBUTE)
    return found or KeptLocks(connection)

"""`leader()`: one of many processes leads, until it ends its block or loses the lock.

A leader is the holder of a lock that is renewed without MAX_HOLD. A candidate waits in the queue of
that lock, and repeats the attempt for as long as it takes.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
import weakref
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import NoReturn

from asgiref.sync import sync_to_async
from django.db.backends.base.base import BaseDatabaseWrapper

from redlock_django.exceptions import InvalidRedlock, ResourceLocked, StoreUnavailable
from redlock_django.locking.caller import may_be_open, open_transactions
from redlock_django.locking.lock import Lock

logger = logging.getLogger("redlock_django")

ATTEMPT = 10.0
"""Seconds that one attempt of a candidate waits in the queue.

The description of a holder has the time of its attempt, so operators see since when a leader leads
to within that time.
"""

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.2, 0.5  # seconds between attempts while servers do not answer


class Term:
    """The time for which this process leads.

    `number` is the fencing token of the lock: it only grows from one leader to the next, so storage
    can refuse a leader that was stopped and goes on. `since` is when the term began, in UTC.
    """

    def __init__(self, lock: Lock) -> None:
        self.name = lock.resources[0]
        self.using = lock.using
        self.number = lock.fence
        self.since = datetime.now(UTC)
        self._lock = lock
        _terms.add(self)

    def __repr__(self) -> str:
        return f"<Term {self.number} of {self.name!r} using {self.using!r}, since {self.since}>"

    @property
    def leads(self) -> bool:
        """True if this process leads now, by its own clock and its last renewal."""
        return self._lock.locked

    def ensure_held(self) -> None:
        """Raise LockLost if this process does not surely lead, NotHeld after the block's end.

        Sends nothing. Call it before each piece of work.
        """
        self._lock.ensure_held()

    def transfer(self, *args: object, **kwargs: object) -> NoReturn:
        """Raise InvalidRedlock: the next leader is the candidate that waits longest."""
        raise InvalidRedlock(
            f"leader({self.name!r}) hands its lock on to no other process. End the block: then the "
            "next candidate leads. A lock() can be handed on"
        )

    def remaining(self) -> float:
        """Return the seconds for which this process surely leads, 0.0 if it does not."""
        return self._lock.remaining()


_terms: weakref.WeakSet[Term] = weakref.WeakSet()


def current_terms(using: str) -> Iterator[Term]:
    """Yield the terms of this process that have not ended."""
    for term in list(_terms):
        if term.using == using and term.leads:
            yield term


def leader(
    name: str, *, using: str = "default", ttl: float | timedelta | None = None
) -> Leadership:
    """Return a block that runs while this process leads: `with leader("scheduler") as term:`.

    Entering it waits until no other process leads under that name, for ever, also while the servers
    cannot be reached. Only one process leads at a time, under the assumptions of `lock()`. The lock
    is renewed until the block ends, without MAX_HOLD, and the end of the block releases it, so that
    the next candidate leads at once. If the process dies, another leads after `ttl` at the latest.

    `term.number` is the fencing token and `term.since` the beginning. A leader that loses the lock
    goes on until it asks: `term.ensure_held()` raises LockLost then. `async with` does the same.
    Raises BadName, InvalidRedlock inside a transaction, ValueError for a bad `ttl`.
    """
    if not isinstance(name, str):
        raise InvalidRedlock(
            f"leader() needs a name, got {name!r}. Write: with leader('scheduler') as term: ..."
        )
    return Leadership(name, using, ttl)


class Leadership:
    """A block that campaigns each time it is entered, and leads until its end; see `leader`."""

    def __init__(self, name: str, using: str, ttl: float | timedelta | None) -> None:
        self._name = name
        self._lock = Lock(name, using=using, ttl=ttl, wait=ATTEMPT, renew=True)
        self._lock.is_repeated = True
        self._lock._arguments.is_leader = True
        self._reported = False

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        raise InvalidRedlock(
            f"leader({self._name!r}) is not a decorator: a candidate waits for ever, and a leader "
            f"does not end. Write 'with leader({self._name!r}) as term:' in a process of its own. "
            f"A view that excludes others needs @lock_resource({self._name!r}), a task or a "
            f"function @hold({self._name!r})"
        )

    def enter_in(self, stack: ExitStack) -> Term:
        """Wait and lead as a `with` block does; `stack` ends the term."""
        stack.push(self)  # first, unlike enter_context(): see docs/contributing/interrupts.md
        return self.__enter__()

    def __enter__(self) -> Term:
        self._refuse_transactions(open_transactions())
        while True:
            try:
                return self._term(self._lock.__enter__())
            except ResourceLocked:
                continue
            except StoreUnavailable as error:
                time.sleep(self._pause(error))

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        self._lock.__exit__(kind, *exception)

    async def __aenter__(self) -> Term:
        if may_be_open():
            self._refuse_transactions(await sync_to_async(open_transactions)())
        while True:
            try:
                return self._term(await self._lock.__aenter__())
            except ResourceLocked:
                continue
            except StoreUnavailable as error:
                await asyncio.sleep(self._pause(error))

    async def __aexit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        await self._lock.__aexit__(kind, *exception)

    def _refuse_transactions(self, transactions: list[BaseDatabaseWrapper]) -> None:
        if transactions:
            raise InvalidRedlock(
                f"leader({self._name!r}) inside a transaction of {transactions[0].alias!r} would "
                "keep it open for as long as this process waits and leads. Write "
                "transaction.atomic() inside the block, once for each piece of work"
            )

    def _term(self, lock: Lock) -> Term:
        self._reported = False
        return Term(lock)

    def _pause(self, error: StoreUnavailable) -> float:
        """Report that the servers do not answer, once; return the seconds until the next try."""
        if not self._reported:
            self._reported = True
            logger.warning(
                "redlock %s: no leader can be chosen, the candidate goes on trying: %s",
                self._name,
                error,
                extra={"using": self._lock.using},
            )
        return random.uniform(_SHORTEST_PAUSE, _LONGEST_PAUSE)

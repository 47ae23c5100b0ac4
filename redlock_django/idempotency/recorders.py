"""The two ways to record a view: within its own transaction, or around it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from asgiref.sync import sync_to_async
from django.core.exceptions import BadRequest, PermissionDenied, SuspiciousOperation
from django.db import connections, transaction
from django.http import Http404
from django.http.multipartparser import MultiPartParserError
from django.http.response import HttpResponseBase

from redlock_django.exceptions import InvalidRedlock
from redlock_django.idempotency.database_records import DatabaseStore
from redlock_django.idempotency.errors import IdempotencyUnavailable
from redlock_django.idempotency.protocol import Fate
from redlock_django.idempotency.records import Claim, Record, Store
from redlock_django.idempotency.replay import Stored

logger = logging.getLogger("redlock_django")

Judge = Callable[..., tuple[Fate, Stored | None]]
"""`(response or None, undone=, refused=)` to what is recorded of it."""

# What Django answers with a status below 500.
_REFUSALS = (Http404, PermissionDenied, SuspiciousOperation, BadRequest, MultiPartParserError)


class WithinTheTransaction:
    """The record is part of the view's own transaction: both are committed, or neither is."""

    def __init__(
        self, store: DatabaseStore, claim: Claim, judge: Judge, instead_of: Record | None
    ) -> None:
        self.database: str | None = store.alias
        self.started = False
        self._store = store
        self.claim = claim
        self._judge = judge
        self._instead_of = instead_of
        self._aliases: Sequence[str] = ()

    def begin(self, aliases: Sequence[str]) -> None:
        self._aliases = aliases
        # First of all: whoever has the same key waits here for our COMMIT, if the lock failed.
        self._store.begin(self.claim, instead_of=self._instead_of)
        self.started = True

    def finish(self, response: Any) -> None:
        if transaction.get_rollback(using=self._store.alias):
            return  # the view takes it all back
        if not isinstance(response, HttpResponseBase):
            _roll_back(self._aliases)  # Django has yet to complain about it
            return
        fate, stored = self._judge(response, undone=True, refused=False)
        if fate is Fate.FORGET:
            _roll_back(self._aliases)
        elif not self._store.complete(self.claim, response.status_code, stored):
            raise IdempotencyUnavailable("the record of a running request has vanished")

    def committed(self) -> None:
        """Nothing is left to do."""

    def answered(self, response: Any) -> None:
        """Nothing is left to do."""

    def failed(self, error: BaseException) -> None:
        """Nothing is left to do."""

    # An async view has no transaction.

    async def abegin(self) -> None:
        raise NotImplementedError

    async def afinish(self, response: Any) -> None:
        raise NotImplementedError

    def complete(self, response: Any) -> None:
        raise NotImplementedError


class AroundTheView:
    """The record says "running" before the view, and what became of it after its COMMIT.

    Whoever finds it running, and nobody holding its lock, knows that it may have had its effect.
    """

    def __init__(self, store: Store, claim: Claim, judge: Judge, instead_of: Record | None) -> None:
        self.database: str | None = None
        self.started = False
        self._store = store
        self.claim = claim
        self._judge = judge
        self._instead_of = instead_of
        self._aliases: Sequence[str] = ()
        self._finished: tuple[Fate, Stored | None, int] | None = None
        self._commits = 0
        self._by_hand = False
        self._settled = False

    def begin(self, aliases: Sequence[str]) -> None:
        self._aliases = aliases
        self._store.begin(self.claim, instead_of=self._instead_of)
        self.started = True
        for alias in aliases:
            # Before all hooks of the view, which may fail when everything is committed.
            transaction.on_commit(self._count_commit, using=alias)

    def _count_commit(self) -> None:
        self._commits += 1

    async def abegin(self) -> None:
        await sync_to_async(self.begin)(())

    def finish(self, response: Any) -> None:
        if not isinstance(response, HttpResponseBase):
            response = None  # Django has yet to complain about it
        fate, stored = self._judge(response, undone=bool(self._aliases), refused=False)
        if self._aliases and all(map(transaction.get_rollback, self._aliases)):
            fate = Fate.FORGET  # the view takes it all back
        elif fate is Fate.FORGET:
            _roll_back(self._aliases)
        self._finished = fate, stored, getattr(response, "status_code", 0)

    def committed(self) -> None:
        if self._finished is not None:
            self._settle(*self._finished)

    async def afinish(self, response: Any) -> None:
        def finish() -> None:
            self.finish(response)
            self.committed()

        await sync_to_async(finish)()

    def complete(self, response: Any) -> None:
        """Record the response in the transaction that the view itself has open."""
        alias = getattr(self._store, "alias", None)
        if alias is None or not connections[alias].in_atomic_block:
            raise InvalidRedlock(
                "request.idempotency.complete() must be called inside transaction.atomic() of "
                f"database {alias or 'default'!r}, with the database store"
            )
        if callable(render := getattr(response, "render", None)) and not response.is_rendered:
            response = render()
        _, stored = self._judge(response, undone=False, refused=False)
        self._by_hand = True
        if not self._store.complete(self.claim, response.status_code, stored):
            raise IdempotencyUnavailable("the record of a running request has vanished")

    def answered(self, response: Any) -> None:
        """The view was called, but somebody else has answered: there was an error."""
        if not self.started or self._settled or self._known_from_commits():
            return
        fate, _ = self._judge(response, undone=False, refused=False)
        undone = self._aliases or fate is Fate.FORGET
        self._settle(Fate.FORGET if undone else Fate.DOUBT)

    def failed(self, error: BaseException) -> None:
        """The view has raised, or its COMMIT has."""
        if not self.started or self._settled or self._known_from_commits():
            return
        if self._finished is not None:
            self._settle(Fate.DOUBT)  # a COMMIT may have arrived although it failed
            return
        # What was completed by hand was in a transaction, and is not there if that failed.
        undone = bool(self._aliases) or self._by_hand
        fate, _ = self._judge(None, undone=undone, refused=isinstance(error, _REFUSALS))
        self._settle(fate)

    def _known_from_commits(self) -> bool:
        if not (self._commits and self._finished):
            return False
        if self._commits == len(self._aliases):
            self._settle(*self._finished)
        else:
            self._settle(Fate.DOUBT)
        return True

    def _settle(self, fate: Fate, stored: Stored | None = None, status: int = 0) -> None:
        self._settled = True
        try:
            match fate:
                case Fate.FORGET:
                    self._store.forget(self.claim)
                case Fate.DOUBT:
                    self._store.doubt(self.claim.key_hash, self.claim.attempt)
                case _:
                    ours = self._store.complete(self.claim, status, stored)
                    if not (ours or self._by_hand):
                        logger.error(
                            "idempotency: record %s was taken away while its view was running",
                            self.claim.key_hash[:8],
                        )
        except IdempotencyUnavailable:
            # The response is right all the same. A record that says "running" will be doubted.
            logger.error(
                "idempotency: record %s could not be completed and stays uncertain",
                self.claim.key_hash[:8],
            )


Recording = WithinTheTransaction | AroundTheView


def _roll_back(aliases: Sequence[str]) -> None:
    for alias in aliases:
        transaction.set_rollback(True, using=alias)

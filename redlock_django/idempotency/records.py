"""Where it is written which keys were used: what every such place can do."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Self

from django.http import HttpResponse
from django.utils import timezone

from redlock_django.idempotency.errors import ResultUnavailable
from redlock_django.idempotency.key import Seal
from redlock_django.idempotency.protocol import Known, RecordState
from redlock_django.idempotency.replay import Stored

if TYPE_CHECKING:
    from redlock_django.models import IdempotencyRecord


class Beaten(Exception):
    """Somebody else has recorded the same key meanwhile."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What one request says of itself before its view runs.

    The first of `seals` is the one under which it is recorded; the others are those that older
    secrets would have given. `attempt` tells this try apart from every other.
    """

    seals: tuple[Seal, ...]
    user: str = ""
    method: str = ""
    path: str = ""
    retention: timedelta = timedelta(days=1)
    attempt: str = field(default_factory=lambda: secrets.token_hex(16))

    @property
    def key_hash(self) -> str:
        """What the record is found by."""
        return self.seals[0].key_hash

    def known(self, key_hash: str, fingerprint: str, state: str, expires: datetime | None) -> Known:
        """Say what a record means for this request."""
        return Known(
            RecordState(state),
            same=Seal(key_hash, fingerprint) in self.seals,
            expired=expires is not None and expires <= timezone.now(),
        )


@dataclass(frozen=True)
class Record:
    """A record that was found."""

    key_hash: str
    attempt: str
    known: Known
    stored: Stored | None = None

    def replay(self) -> HttpResponse:
        """Give the response that was recorded."""
        if self.stored is None:
            raise ResultUnavailable
        return self.stored.replay()


@dataclass(frozen=True, kw_only=True)
class Unsettled:
    """A request of which it is not recorded what became of it: running, interrupted or uncertain.

    `created` is when it began, None where the store does not say.
    """

    key_hash: str
    attempt: str
    state: RecordState
    user: str
    method: str
    path: str
    created: datetime | None = None

    @classmethod
    def of(cls, row: IdempotencyRecord) -> Self:
        """Take it from a row."""
        same = ("key_hash", "attempt", "user", "method", "path")
        told = {name: getattr(row, name) for name in same}
        return cls(state=RecordState(row.state), created=row.created_at, **told)


class Store(ABC):
    """Records by the hash of their keys. All of it is for threads, not for a running loop.

    Everything raises IdempotencyUnavailable where the database or the cache cannot be asked.
    """

    @abstractmethod
    def find(self, claim: Claim) -> Record | None:
        """Give the record of this key."""

    @abstractmethod
    def begin(self, claim: Claim, *, instead_of: Record | None = None) -> None:
        """Record that the view runs; Beaten if there is a record already.

        `instead_of` is an expired one that this one takes the place of.
        """

    @abstractmethod
    def complete(self, claim: Claim, status: int, stored: Stored | None) -> bool:
        """Record the response, or that there was one (None); False if the record is not ours."""

    @abstractmethod
    def forget(self, claim: Claim) -> None:
        """Take the record back."""

    @abstractmethod
    def doubt(self, key_hash: str, attempt: str) -> None:
        """Record that nobody knows the outcome, unless it has become known meanwhile."""

    @abstractmethod
    def resolve(self, key_hash: str, *, applied: bool, attempt: str | None = None) -> bool:
        """Say what became of an uncertain request; False if it is not uncertain any more.

        `applied` leaves a tombstone, so that it is never run again; otherwise the key is free.
        With `attempt`, only this one, and not a later one with the same key.
        """

    @abstractmethod
    def unsettled(self, beginning: str = "") -> list[Unsettled]:
        """Give what is not settled, oldest first, with key hashes that begin so.

        A cache finds only what it is given the whole hash of.
        """

"""The contract of a store of idempotency records."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Self

from redlock_django.idempotency.key import Claim
from redlock_django.idempotency.protocol import RecordState, RecordStatus
from redlock_django.idempotency.stores.response import StoredResponse

if TYPE_CHECKING:
    from redlock_django.models import IdempotencyRecord


class AlreadyRecorded(Exception):
    """Another request has recorded the same key in the meantime."""


@dataclass(frozen=True)
class Record:
    """A record that was found, with its meaning for the request."""

    key_hash: str
    attempt: str
    status: RecordStatus
    response: StoredResponse | None = None


@dataclass(frozen=True, kw_only=True)
class UnresolvedRequest:
    """A request without a recorded outcome: it is running, interrupted or uncertain.

    `created` is the time at which it began, or None where the store does not keep it.
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
        """Return the request of a database row."""
        same = ("key_hash", "attempt", "user", "method", "path")
        values = {name: getattr(row, name) for name in same}
        return cls(state=RecordState(row.state), created=row.created_at, **values)


class Store(ABC):
    """Records by the hash of their keys. Call it from threads, not from a running loop.

    Every method raises IdempotencyUnavailable if the database or the cache fails.
    """

    lists_records = True
    """True if records can be listed, and found by the beginning of their key hash."""

    @abstractmethod
    def find(self, claim: Claim) -> Record | None:
        """Return the record of the claim's key, or None."""

    @abstractmethod
    def admit(self, claim: Claim, *, most: int, window: timedelta) -> float:
        """Return 0.0 if the claim's owner has fewer than `most` records that began in `window`.

        Otherwise return after how many seconds that will be so. Called once for each record.
        """

    @abstractmethod
    def begin(self, claim: Claim, *, instead_of: Record | None = None) -> None:
        """Record that the view runs; raise AlreadyRecorded if the key has a record.

        A record that another transaction is about to commit counts after a limited wait.
        `instead_of` is an expired record that this one replaces.
        """

    @abstractmethod
    def complete(self, claim: Claim, status: int, response: StoredResponse | None) -> bool:
        """Record that the view completed, with its response or without (None).

        Return False if the record belongs to another attempt, or is gone.
        """

    @abstractmethod
    def delete(self, claim: Claim) -> None:
        """Delete the record of this attempt, unless it is completed."""

    @abstractmethod
    def mark_uncertain(self, key_hash: str, attempt: str) -> None:
        """Record that the outcome is uncertain, if the state is still "running".

        Raises AlreadyRecorded if another transaction is about to record the outcome.
        """

    @abstractmethod
    def forget_expired_responses(self) -> None:
        """Delete some of the responses that are not replayed any more, if the store keeps them.

        Never raises: it is called after a request that was answered well.
        """

    @abstractmethod
    def resolve(self, key_hash: str, *, applied: bool, attempt: str | None = None) -> bool:
        """Record whether an uncertain request took effect; return False if it is not uncertain.

        `applied` leaves a tombstone, so that the request is never run again; otherwise the key
        becomes unused. With `attempt`, only that attempt is resolved.
        """

    @abstractmethod
    def unresolved(self, prefix: str = "") -> list[UnresolvedRequest]:
        """Return the unresolved requests whose key hash has this prefix, oldest first.

        Without `lists_records`, a request is found only by its whole key hash.
        """

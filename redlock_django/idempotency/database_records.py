"""A database table as the place where it is written which keys were used."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

from django.db import IntegrityError, InterfaceError, OperationalError
from django.utils import timezone

from redlock_django.idempotency.errors import IdempotencyUnavailable
from redlock_django.idempotency.protocol import RecordState
from redlock_django.idempotency.records import Beaten, Claim, Record, Store, Unsettled
from redlock_django.idempotency.replay import Stored

if TYPE_CHECKING:
    from redlock_django.models import IdempotencyRecordQuerySet

logger = logging.getLogger("redlock_django")

UNREACHABLE = (OperationalError, InterfaceError)
"""What Django raises where a database is down, or busy for too long."""


class DatabaseStore(Store):
    """Rows of `IdempotencyRecord` in one database."""

    def __init__(self, alias: str, *, retention: timedelta) -> None:
        self.alias = alias
        self._retention = retention

    def rows(self) -> IdempotencyRecordQuerySet:
        """Give all of them, for others to work with."""
        # Not before the apps are ready, which importing this module does not wait for.
        from redlock_django.models import IdempotencyRecord

        return IdempotencyRecord.objects.using(self.alias)

    def _rows(self, key_hash: str, *states: RecordState) -> IdempotencyRecordQuerySet:
        rows = self.rows().filter(key_hash=key_hash)
        return rows.filter(state__in=states) if states else rows

    def find(self, claim: Claim) -> Record | None:
        hashes = [seal.key_hash for seal in claim.seals]
        with _reachable():
            row = self.rows().filter(key_hash__in=hashes).first()
        if row is None:
            return None
        stored = None
        if row.state == RecordState.COMPLETED:
            headers = tuple((name, value) for name, value in row.headers)
            stored = Stored(row.status or 200, headers, bytes(row.body))
        known = claim.known(row.key_hash, row.fingerprint, row.state, row.expires_at)
        return Record(row.key_hash, row.attempt, known, stored)

    def begin(self, claim: Claim, *, instead_of: Record | None = None) -> None:
        with _reachable():
            if instead_of is not None:
                self._rows(instead_of.key_hash).filter(attempt=instead_of.attempt).delete()
            try:
                self.rows().create(
                    key_hash=claim.key_hash,
                    fingerprint=claim.seals[0].fingerprint,
                    attempt=claim.attempt,
                    user=claim.user[:255],
                    method=claim.method,
                    path=claim.path[:255],
                )
            except IntegrityError:
                raise Beaten from None

    def complete(self, claim: Claim, status: int, stored: Stored | None) -> bool:
        now = timezone.now()
        with _reachable():
            changed: int = (
                self._rows(claim.key_hash, RecordState.RUNNING, RecordState.UNCERTAIN)
                .filter(attempt=claim.attempt)
                .update(
                    state=RecordState.TOMBSTONE if stored is None else RecordState.COMPLETED,
                    status=status,
                    headers=[] if stored is None else [list(pair) for pair in stored.headers],
                    body=b"" if stored is None else stored.body,
                    completed_at=now,
                    expires_at=now + claim.retention,
                )
            )
        return changed == 1

    def forget(self, claim: Claim) -> None:
        with _reachable():
            self._rows(claim.key_hash, RecordState.RUNNING, RecordState.UNCERTAIN).filter(
                attempt=claim.attempt
            ).delete()

    def doubt(self, key_hash: str, attempt: str) -> None:
        with _reachable():
            self._rows(key_hash, RecordState.RUNNING).filter(attempt=attempt).update(
                state=RecordState.UNCERTAIN
            )

    def resolve(self, key_hash: str, *, applied: bool, attempt: str | None = None) -> bool:
        uncertain = self._rows(key_hash, RecordState.UNCERTAIN)
        if attempt is not None:
            uncertain = uncertain.filter(attempt=attempt)
        now = timezone.now()
        expires = now + self._retention
        with _reachable():
            if not applied:
                return bool(uncertain.delete()[0])
            changes = {"state": RecordState.TOMBSTONE, "completed_at": now, "expires_at": expires}
            return bool(uncertain.update(**changes))

    def unsettled(self, beginning: str = "") -> list[Unsettled]:
        # Only what is finished expires, and that has an index.
        unsettled = (RecordState.RUNNING, RecordState.UNCERTAIN)
        rows = self.rows().filter(expires_at__isnull=True, state__in=unsettled)
        with _reachable():
            rows = rows.filter(key_hash__startswith=beginning).order_by("created_at", "pk")
            return [Unsettled.of(row) for row in rows]

    def spent(
        self, *, tombstone_retention: timedelta
    ) -> tuple[IdempotencyRecordQuerySet, IdempotencyRecordQuerySet]:
        """Give the records past `tombstone_retention`, and those past their retention only."""
        now = timezone.now()
        rows = self.rows().filter(expires_at__lte=now)
        gone = rows.filter(expires_at__lte=now - tombstone_retention)
        full = rows.filter(expires_at__gt=now - tombstone_retention, state=RecordState.COMPLETED)
        return gone, full

    def purge(
        self, *, tombstone_retention: timedelta, batch: int = 1000
    ) -> Iterator[tuple[str, int]]:
        """Delete records past `tombstone_retention`, and empty those past their retention.

        Yields "deleted" or "emptied" and how many rows a statement changed, of at most `batch`.
        What is running or uncertain stays. Each statement is a transaction of its own, unless
        there is one already.
        """
        gone, full = self.spent(tombstone_retention=tombstone_retention)
        rows = self.rows()
        while pks := list(gone.values_list("pk", flat=True)[:batch]):
            yield "deleted", rows.filter(pk__in=pks).delete()[0]
        while pks := list(full.values_list("pk", flat=True)[:batch]):
            emptied = {"state": RecordState.TOMBSTONE, "headers": [], "body": b""}
            yield "emptied", rows.filter(pk__in=pks).update(**emptied)


class _reachable:  # noqa: N801 - a context manager
    """Say IdempotencyUnavailable where the database cannot be asked."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, UNREACHABLE):
            # What it said may hold the values of a row; it goes to the log without them.
            logger.error("idempotency: the database cannot be asked: %s", type(error).__name__)
            raise IdempotencyUnavailable from error

"""Resolve an interrupted request: record whether it took effect, and log which user resolved it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from enum import Enum
from typing import TYPE_CHECKING

from redlock_django.engine.inspection.holders import HoldingState
from redlock_django.exceptions import ResourceLocked, StoreUnavailable
from redlock_django.idempotency.key import InFlightLock, lock_name
from redlock_django.idempotency.protocol import RecordState
from redlock_django.idempotency.records import RecordStore, store_of
from redlock_django.idempotency.settings import settings_of
from redlock_django.locking.names import printable
from redlock_django.locking.services import locks
from redlock_django.operate.inspection import who_holds

if TYPE_CHECKING:
    from redlock_django.models import IdempotencyRecord

logger = logging.getLogger("redlock_django")

_HELD = (HoldingState.HELD, HoldingState.EXPIRING)


class ResolveOutcome(Enum):
    """The result of resolving a request."""

    RESOLVED = "resolved"
    RUNNING = "running"  # its lock is held
    SETTLED = "settled"  # its outcome is recorded already, or another user resolved it
    NO_QUORUM = "no quorum"  # too few servers answered, so it may be running


def store_and_aliases(using: str) -> tuple[RecordStore, list[str]]:
    """Return the store of an alias, and all aliases that use the same one; raise InvalidRedlock."""
    settings = settings_of(using)
    aliases = [alias for alias in locks if settings_of(alias).database == settings.database]
    return store_of(settings), aliases


def is_running(key_hash: str, aliases: Sequence[str]) -> bool | None:
    """Return whether the lock of a key is held, or None if too few masters answer."""
    known = True
    for alias in aliases:
        found = who_holds(lock_name(key_hash), using=alias)
        if any(holding.state in _HELD for holding in found.locks):
            return True
        unclear = any(holding.state is HoldingState.UNCLEAR for holding in found.locks)
        if unclear or not found.complete:
            known = False
    return False if known else None


def resolve(
    store: RecordStore, record: IdempotencyRecord, *, applied: bool, by: str, aliases: Sequence[str]
) -> ResolveOutcome:
    """Record whether an unresolved request took effect, and log which user resolved it.

    `applied` leaves a tombstone: the request is never run again. Otherwise the key is unused, and
    a retry runs. A record in the state "running" is resolved only if its lock is not held, and
    under that lock. Raises IdempotencyRefused.
    """
    with ExitStack() as held:
        if record.state == RecordState.RUNNING:
            try:
                for alias in aliases:
                    # Need not last until COMMIT: each statement names the state that it expects.
                    name = lock_name(record.key_hash)
                    lock = InFlightLock(name, using=alias, wait=0, until_commit=False)
                    lock.enter_in(held)
            except ResourceLocked:
                return ResolveOutcome.RUNNING
            except StoreUnavailable:
                return ResolveOutcome.NO_QUORUM
            store.mark_uncertain(record.key_hash, record.attempt)
        if not store.resolve(record.key_hash, record.attempt, applied=applied):
            return ResolveOutcome.SETTLED
    logger.warning(
        "idempotency: record %s (%s %s) was resolved by %s: it %s",
        record.key_hash[:8],
        record.method,
        printable(record.path),
        printable(by),
        "took effect" if applied else "did not take effect",
        extra={"key_hash": record.key_hash, "applied": applied, "by": by},
    )
    return ResolveOutcome.RESOLVED

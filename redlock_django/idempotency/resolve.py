"""Saying what became of a request that was interrupted, so that it is known who said it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from enum import Enum

from redlock_django.engine.holders import HoldingState
from redlock_django.exceptions import QuorumUnreachable, ResourceLocked
from redlock_django.idempotency.decorator_options import store_of
from redlock_django.idempotency.key import LockOfKey, lock_name
from redlock_django.idempotency.protocol import RecordState
from redlock_django.idempotency.records import Store, Unsettled
from redlock_django.idempotency.settings import settings_of
from redlock_django.locking.handler import locks
from redlock_django.locking.names import printable
from redlock_django.operate.inspection import who_holds

logger = logging.getLogger("redlock_django")

_HELD = (HoldingState.HELD, HoldingState.EXPIRING)


class ResolveOutcome(Enum):
    """What came of resolving a request."""

    RESOLVED = "resolved"
    RUNNING = "running"  # its lock is held: it is being worked on
    SETTLED = "settled"  # it is known by now, or somebody else has said it
    NO_QUORUM = "no quorum"  # too few masters answered: it may be running


def kept_by(using: str, kind: str | None = None) -> tuple[Store, list[str]]:
    """Give the store of an alias, and every alias that keeps its records there too.

    `kind` is "database" or "cache", if it is not the one of the settings. Raises InvalidRedlock.
    """
    settings = settings_of(using)
    kind = kind or settings.store
    place = getattr(settings, kind)
    aliases = [alias for alias in locks if getattr(settings_of(alias), kind) == place]
    return store_of(replace(settings, store=kind)), aliases


def is_running(key_hash: str, aliases: Sequence[str]) -> bool | None:
    """Say whether the lock of a key is held; None where too few masters answer to tell."""
    known = True
    for alias in aliases:
        found = who_holds(lock_name(key_hash), using=alias)
        if any(holding.state in _HELD for holding in found.locks):
            return True
        unclear = any(holding.state is HoldingState.UNCLEAR for holding in found.locks)
        if unclear or found.undecided:
            known = False
    return False if known else None


def resolve(
    store: Store, record: Unsettled, *, applied: bool, by: str, aliases: Sequence[str]
) -> ResolveOutcome:
    """Record whether a request took effect that nobody knows it of, and log who said so.

    `applied` leaves a tombstone: the key is never run again. Otherwise it is free, and a retry
    runs. One that says "running" is resolved only if nobody holds its lock, and under that lock.
    Raises IdempotencyUnavailable.
    """
    with ExitStack() as held:
        if record.state is RecordState.RUNNING:
            try:
                for alias in aliases:
                    held.enter_context(LockOfKey(lock_name(record.key_hash), using=alias, wait=0))
            except ResourceLocked:
                return ResolveOutcome.RUNNING
            except QuorumUnreachable:
                return ResolveOutcome.NO_QUORUM
            store.doubt(record.key_hash, record.attempt)
        if not store.resolve(record.key_hash, applied=applied, attempt=record.attempt):
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

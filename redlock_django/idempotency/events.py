"""Everything that happens to a repeated request, counted and signalled in one place."""

from __future__ import annotations

from typing import Any

from redlock_django.exceptions import (
    IdempotencyRefused,
    KeyInFlight,
    KeyReused,
    OutcomeUncertain,
    TooManyWaiters,
)
from redlock_django.locking.counters import counters
from redlock_django.signals import request_replayed, send

_COUNTERS: dict[type[IdempotencyRefused], str] = {
    KeyInFlight: "conflicted",
    TooManyWaiters: "conflicted",
    KeyReused: "mismatched",
    OutcomeUncertain: "uncertain",
}


def replayed(using: str, *, sender: type, **details: Any) -> None:
    """Count and signal a request that was answered from a record."""
    counters.count(using, "replayed")
    send(request_replayed, sender=sender, using=using, **details)


def refused(using: str, error_class: type[IdempotencyRefused]) -> None:
    """Count a request that was refused because of an earlier request with its key."""
    if name := _COUNTERS.get(error_class):
        counters.count(using, name)

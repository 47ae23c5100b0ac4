"""All exceptions that users of the app may want to catch.

The errors of idempotency are imported at their first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from django.core.exceptions import ImproperlyConfigured

from redlock_django.engine.errors import (
    AlreadyHeld,
    BadResource,
    LockLost,
    NotAcquired,
    NotHeld,
    QuorumUnreachable,
    RedlockError,
    ResourceLocked,
    StoreUnavailable,
)

if TYPE_CHECKING:
    from redlock_django.idempotency.errors import (
        IdempotencyRefused,
        IdempotencyUnavailable,
        KeyExpired,
        KeyInFlight,
        KeyInvalid,
        KeyMissing,
        KeyReused,
        KeyUnscoped,
        OutcomeUncertain,
        RequestTooLarge,
        ResultUnavailable,
        TooManyRecords,
        TooManyWaiters,
    )


class BadName(BadResource):
    """The site passed a name to `lock()` that is not valid. It is an error of the site, not a 400.

    `resource("order:<int:pk>", pk=value)` makes a valid name, or raises BadResource for a value of
    the client that is not valid.
    """


class InvalidRedlock(ImproperlyConfigured):
    """`settings.REDLOCK` or a decorator is wrong; the message names the alias and the key."""


class IncompleteBody(RedlockError):
    """The connection was closed before the whole body of the request had arrived."""


__all__ = [
    "AlreadyHeld",
    "BadName",
    "BadResource",
    "IdempotencyRefused",
    "IdempotencyUnavailable",
    "IncompleteBody",
    "InvalidRedlock",
    "KeyExpired",
    "KeyInFlight",
    "KeyInvalid",
    "KeyMissing",
    "KeyReused",
    "KeyUnscoped",
    "LockLost",
    "NotAcquired",
    "NotHeld",
    "OutcomeUncertain",
    "QuorumUnreachable",
    "RedlockError",
    "RequestTooLarge",
    "ResourceLocked",
    "ResultUnavailable",
    "StoreUnavailable",
    "TooManyRecords",
    "TooManyWaiters",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("redlock_django.idempotency.errors"), name)

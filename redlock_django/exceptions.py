"""All exceptions that users of the app may want to catch."""

from __future__ import annotations

from django.core.exceptions import ImproperlyConfigured

from redlock_django.engine.errors import (
    AlreadyHeld,
    BadResource,
    LimitReached,
    LockLost,
    NotAcquired,
    NotHeld,
    QuorumUnreachable,
    RedlockError,
    ResourceLocked,
    StoreUnavailable,
    TicketUsed,
)


class BadName(BadResource):
    """The site passed a name to `lock()` that is not valid. It is an error of the site, not a 400.

    `resource("order:<int:pk>", pk=value)` makes a valid name, or raises BadResource for a value of
    the client that is not valid.
    """


class BadTicket(RedlockError, ValueError):
    """The ticket is not one that `transfer()` of this deployment returned, or it was changed."""


class InvalidRedlock(ImproperlyConfigured):
    """`settings.REDLOCK` or a decorator is wrong; the message names the alias and the key."""


class IncompleteBody(RedlockError):
    """The connection was closed before the whole body of the request had arrived."""


class IdempotencyRefused(RedlockError):
    """The request is answered without running its view, because of its idempotency key.

    `retry_after` is in seconds, or None where a retry is of no use.
    """

    def __init__(self, message: str = "", *, retry_after: float | None = None) -> None:
        super().__init__(message or type(self).__doc__ or "")
        self.retry_after = retry_after


class KeyMissing(IdempotencyRefused):
    """The view requires an idempotency key, and the request has none."""


class KeyInvalid(IdempotencyRefused):
    """The idempotency key is empty, too long, repeated or otherwise malformed."""


class KeyUnscoped(IdempotencyRefused):
    """An idempotency key belongs to a user, and this request has no user."""


class KeyReused(IdempotencyRefused):
    """The idempotency key was used before, for a different request."""


class KeyInFlight(IdempotencyRefused):
    """The first request with this idempotency key is still running."""


class TooManyWaiters(IdempotencyRefused):
    """The first request with this key is still running, and MAX_WAITERS threads wait already."""


class KeyExpired(IdempotencyRefused):
    """The retention of this idempotency key is over, and its response is deleted."""


class OutcomeUncertain(IdempotencyRefused):
    """It is not known whether the first request with this idempotency key took effect."""


class ResultUnavailable(IdempotencyRefused):
    """The first request with this idempotency key completed, but its response was not stored."""


class RequestTooLarge(IdempotencyRefused):
    """The body of a request with an idempotency key is too large to be compared."""


class IdempotencyUnavailable(IdempotencyRefused):
    """It cannot be determined whether this request has run before."""


__all__ = [
    "AlreadyHeld",
    "BadName",
    "BadResource",
    "BadTicket",
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
    "LimitReached",
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
    "TicketUsed",
    "TooManyWaiters",
]

"""All exceptions that users of the app may want to catch."""

from __future__ import annotations

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
)


class InvalidRedlock(ImproperlyConfigured):
    """`settings.REDLOCK` or a decorator is wrong; the message names the alias and the key."""


class IdempotencyRefused(RedlockError):
    """A request with an idempotency key is answered without running its view.

    `retry_after` is seconds, or None where trying again is of no use. `problem_base` stands before
    the code in the problem's `type`.
    """

    problem_base = "urn:redlock-django:"

    def __init__(self, message: str = "", *, retry_after: float | None = None) -> None:
        super().__init__(message or type(self).__doc__ or "")
        self.retry_after = retry_after


class KeyMissing(IdempotencyRefused):
    """The view asks for an idempotency key, and the request has none."""


class KeyInvalid(IdempotencyRefused):
    """The idempotency key is empty, too long, repeated or otherwise malformed."""


class KeyUnscoped(IdempotencyRefused):
    """An idempotency key belongs to a user, and this request has none."""


class KeyReused(IdempotencyRefused):
    """The idempotency key was used before, for another request."""


class KeyInFlight(IdempotencyRefused):
    """The first request with this idempotency key is still running."""


class KeyExpired(IdempotencyRefused):
    """The idempotency key was used so long ago that its response is gone."""


class OutcomeUncertain(IdempotencyRefused):
    """Nobody knows whether the first request with this idempotency key had any effect."""


class ResultUnavailable(IdempotencyRefused):
    """The first request with this idempotency key was completed, and its response not kept."""


class RequestTooLarge(IdempotencyRefused):
    """The body of a request with an idempotency key is too large to be compared."""


class IdempotencyUnavailable(IdempotencyRefused):
    """It cannot be found out whether this request has run before."""


__all__ = [
    "AlreadyHeld",
    "BadResource",
    "IdempotencyRefused",
    "IdempotencyUnavailable",
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
]

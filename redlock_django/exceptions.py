"""All exceptions that users of the app may want to catch."""

from __future__ import annotations

from typing import Any

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

    `problem` is the answer, and `code` its code, such as "idempotency-key-reused": the page about
    `@idempotent` lists them. `retry_after` is in seconds, or None where a retry is of no use.
    """

    def __init__(
        self, problem: Any, message: str = "", *, retry_after: float | None = None
    ) -> None:
        super().__init__(message or problem.detail)
        self.problem = problem
        self.retry_after = retry_after

    @property
    def code(self) -> str:
        """Why the request is refused."""
        return str(self.problem.code)


__all__ = [
    "AlreadyHeld",
    "BadName",
    "BadResource",
    "BadTicket",
    "IdempotencyRefused",
    "IncompleteBody",
    "InvalidRedlock",
    "LimitReached",
    "LockLost",
    "NotAcquired",
    "NotHeld",
    "QuorumUnreachable",
    "RedlockError",
    "ResourceLocked",
    "StoreUnavailable",
    "TicketUsed",
]

"""The errors of a lock, distinguished by their cause."""

from __future__ import annotations

from collections.abc import Mapping


class RedlockError(Exception):
    """The base of every error about a lock.

    `resource` is the resource at fault (several are joined by ", ") and `tally` maps each master to
    its answer; it is empty if no master was asked. Neither ever contains a token or a password.
    """

    def __init__(
        self,
        message: str,
        *,
        resource: str = "",
        tally: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.resource = resource
        self.tally: Mapping[str, str] = dict(tally or {})


class NotAcquired(RedlockError):
    """The lock was not acquired, and nothing of the attempt is left on the masters.

    `retry_after` is the time in seconds after which another attempt makes sense, or None if that is
    unknown. `waited` is the time in seconds that passed before the last attempt, 0.0 if that was
    the first.
    """

    def __init__(
        self,
        message: str,
        *,
        resource: str = "",
        tally: Mapping[str, str] | None = None,
        retry_after: float | None = None,
        waited: float = 0.0,
    ) -> None:
        super().__init__(message, resource=resource, tally=tally)
        self.retry_after = retry_after
        self.waited = waited


class ResourceLocked(NotAcquired):
    """Another client holds the resource, or it was just released and is a waiter's turn."""


class StoreUnavailable(NotAcquired):
    """The store cannot say whether the resource is free. `QuorumUnreachable` is the Redis case."""


class QuorumUnreachable(StoreUnavailable):
    """Too few masters can vote: the others are down, do not answer, or are not trusted yet."""


class LockLost(RedlockError):
    """The lock was held and is not held any more."""


class NotHeld(RedlockError):
    """The operation needs a held lock, and this lock was never acquired."""


class AlreadyHeld(RedlockError):
    """The task or thread already holds the lock that it acquires."""


class BadResource(RedlockError, ValueError):
    """The resource name is not valid: it is empty, too long, or has forbidden characters."""

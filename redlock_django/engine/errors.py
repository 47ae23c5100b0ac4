"""What can go wrong with a lock, told apart by whose fault it is."""

from __future__ import annotations

from collections.abc import Mapping


class RedlockError(Exception):
    """The base of every error about a lock.

    `resource` is the resource at fault (several are joined by ", ") and `tally`
    says, by master, what it answered. Neither ever holds a token or a password.
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
    """The lock was not taken, and nothing of the attempt is left behind.

    `retry_after` is the time in seconds after which another try makes sense, or
    None where nobody knows. `waited` is how many seconds passed before the last try, 0.0
    where that was the first.
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
    """Somebody else holds the resource."""


class QuorumUnreachable(NotAcquired):
    """Too few masters could be asked: down, hung, or not trusted yet."""


class LockLost(RedlockError):
    """The lock was ours and is not any more."""


class NotHeld(RedlockError):
    """The operation needs a lock that is held, and this one never was."""


class AlreadyHeld(RedlockError):
    """The same task or thread takes again what it already holds."""


class BadResource(RedlockError, ValueError):
    """The resource name cannot be one: empty, too long, or with forbidden characters."""

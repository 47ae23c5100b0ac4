"""The errors of a lock, distinguished by their cause."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


class Text:
    """A message that is built when it is first read: most refusals are answered unread."""

    __slots__ = ("_build", "_built")

    def __init__(self, build: Callable[[], str]) -> None:
        self._build = build
        self._built: str | None = None

    def __str__(self) -> str:
        if self._built is None:
            self._built = self._build()
        return self._built

    def __repr__(self) -> str:
        return repr(str(self))


class RedlockError(Exception):
    """The base of every error about a lock.

    `resource` is the resource at fault (several are joined by ", ") and `tally` maps each master to
    its answer; it is empty if no master was asked. Neither ever contains a token or a password.
    `remedy` is what an operator must do, "" if nothing is known; with DEBUG the answer contains it.
    """

    remedy: str = ""

    def __init__(
        self,
        message: str | Text,
        *,
        resource: str = "",
        tally: Mapping[str, str] | Callable[[], Mapping[str, str]] | None = None,
    ) -> None:
        super().__init__(message)
        self.resource = resource
        self._tally = tally or {}

    @property
    def tally(self) -> Mapping[str, str]:
        """The answer of each master, by its name."""
        if callable(self._tally):
            self._tally = self._tally()
        return self._tally

    def __reduce__(self) -> tuple[Any, ...]:
        # The functions that build the messages hold tokens, which must not leave this process.
        return type(self), (str(self),), {**vars(self), "_tally": self.tally}


class NotAcquired(RedlockError):
    """The lock was not acquired, and nothing of the attempt is left on the masters.

    `retry_after` is the time in seconds after which another attempt makes sense, or None if that is
    unknown. `waited` is the time in seconds that passed before the last attempt, 0.0 if the call
    has not paused before it. `took` is the time in seconds of all `attempts`; both are 0 if the
    store does not count them. A waiter that its process refuses without asking the masters has made
    no attempt; `took` is then how long it waited.
    """

    attempts: int = 0
    took: float = 0.0

    def __init__(
        self,
        message: str | Text,
        *,
        resource: str = "",
        tally: Mapping[str, str] | Callable[[], Mapping[str, str]] | None = None,
        retry_after: float | Callable[[], float | None] | None = None,
        waited: float = 0.0,
    ) -> None:
        # Not super().__init__(): `BaseException.__new__` has the message.
        self.resource = resource
        self._tally = tally or {}
        self._retry_after = retry_after
        self.waited = waited

    @property
    def resources(self) -> tuple[str, ...]:
        """The resources at fault, one by one. No valid name contains a space."""
        return tuple(filter(None, self.resource.split(", ")))

    @property
    def retry_after(self) -> float | None:
        """The seconds after which another attempt makes sense."""
        if callable(self._retry_after):
            self._retry_after = self._retry_after()
        return self._retry_after

    def __reduce__(self) -> tuple[Any, ...]:
        kind, arguments, state = super().__reduce__()
        return kind, arguments, {**state, "_retry_after": self.retry_after}


class ResourceLocked(NotAcquired):
    """Another client holds the resource, or it was just released and is a waiter's turn."""


class LimitReached(ResourceLocked):
    """As many clients as its `limit` hold the name, or it is the turn of waiters."""


class StoreUnavailable(NotAcquired):
    """The store cannot say whether the resource is free. `QuorumUnreachable` is the Redis case."""


class QuorumUnreachable(StoreUnavailable):
    """Too few masters can vote: the others are down, do not answer, or are not trusted yet."""


class LockLost(RedlockError):
    """The lock was held and is not held any more."""


class NotHeld(RedlockError):
    """The operation needs a held lock, and this lock was never acquired."""


class TicketUsed(NotHeld):
    """The ticket was used before: another client, or this one, has taken the lock handed on."""


class AlreadyHeld(RedlockError):
    """The task or thread already holds the lock that it acquires."""


class BadResource(RedlockError, ValueError):
    """The resource name is not valid: it is empty, too long, or has forbidden characters."""

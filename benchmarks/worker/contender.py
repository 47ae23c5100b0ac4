"""What a job asks of a contender, in both colours."""

from __future__ import annotations

from typing import Any, Protocol

TTL = 30
"""Seconds every contender's locks live: no job takes that long, so no lock runs out in one."""


class Contender(Protocol):
    """A lock library behind five words. Made with its masters, [(host, port), ...].

    `masters_used` is how many of the masters it asks: None all, 1 where it knows one only.
    """

    masters_used: int | None

    def key(self, resource: str) -> str:
        """The key on a master that holds the lock of `resource`."""

    def acquire(self, resource: str) -> Any:
        """Try once. What `release` takes, or None if somebody else holds it."""

    def wait(self, resource: str) -> Any:
        """Take it, however long that takes."""

    def release(self, held: Any) -> None:
        """Give it back."""


class AsyncContender(Protocol):
    """The same with coroutines."""

    masters_used: int | None

    async def connect(self) -> None:
        """Whatever has to be awaited once, on the loop."""

    def key(self, resource: str) -> str:
        """The key on a master that holds the lock of `resource`."""

    async def acquire(self, resource: str) -> Any:
        """Try once. What `release` takes, or None if somebody else holds it."""

    async def wait(self, resource: str) -> Any:
        """Take it, however long that takes."""

    async def release(self, held: Any) -> None:
        """Give it back."""

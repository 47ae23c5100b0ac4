"""The methods of a contender, sync and async."""

from __future__ import annotations

from typing import Any, Protocol

TTL = 30
"""The TTL of all locks in seconds. No job takes that long, so no lock expires in a job."""


class Contender(Protocol):
    """A lock library behind one interface. It is created with its masters, [(host, port), ...].

    `masters_used` is how many of the masters it uses: None for all, 1 for a single one.
    """

    masters_used: int | None

    def key(self, resource: str) -> str:
        """Return the key of the lock of `resource` on a master."""

    def acquire(self, resource: str) -> Any:
        """Try once; return the argument for `release`, or None if another client holds the lock."""

    def wait(self, resource: str) -> Any:
        """Acquire the lock, however long that takes."""

    def release(self, held: Any) -> None:
        """Release the lock."""


class AsyncContender(Protocol):
    """The same interface with coroutines."""

    masters_used: int | None

    async def connect(self) -> None:
        """Set up what has to be awaited once on the loop."""

    def key(self, resource: str) -> str:
        """Return the key of the lock of `resource` on a master."""

    async def acquire(self, resource: str) -> Any:
        """Try once; return the argument for `release`, or None if another client holds the lock."""

    async def wait(self, resource: str) -> Any:
        """Acquire the lock, however long that takes."""

    async def release(self, held: Any) -> None:
        """Release the lock."""

"""The methods of a contender."""

from __future__ import annotations

from typing import Any

TTL = 30
"""The TTL of all locks in seconds. No job takes that long, so no lock expires in a job."""


class Contender:
    """A lock library behind one interface. It is created with its masters, [(host, port), ...].

    It has three methods, which are coroutine functions for the async API:

    - `acquire(resource)` tries once, and returns the argument for `release`, or None if another
      client holds the lock;
    - `wait(resource)` acquires the lock, however long that takes, and returns the same;
    - `release(held)` releases the lock.

    It may have `connect()`, a coroutine function that sets up what has to be awaited on the loop.
    """

    masters_used: int | None = None
    """How many of the masters it uses: None for all, 1 for a single one."""

    prefix = ""
    """The prefix of the key of a lock, before its resource."""

    acquire: Any
    wait: Any
    release: Any

    def key(self, resource: str) -> str:
        """Return the key of the lock of `resource` on a master."""
        return f"{self.prefix}{resource}"

    def elsewhere(self) -> Any:
        """Return what acquires locks as another process would."""
        return self


class LockObjects(Contender):
    """A library with an object for each lock, with `acquire(blocking=...)` and `release()`."""

    def made(self, resource: str) -> Any:
        """Return the object for a lock."""
        raise NotImplementedError

    def acquire(self, resource: str) -> Any:
        lock = self.made(resource)
        return lock if lock.acquire(blocking=False) else None

    def wait(self, resource: str) -> Any:
        lock = self.made(resource)
        lock.acquire()
        return lock

    def release(self, held: Any) -> Any:
        held.release()


class AsyncLockObjects(LockObjects):
    """The same for coroutines."""

    async def acquire(self, resource: str) -> Any:
        lock = self.made(resource)
        return lock if await lock.acquire(blocking=False) else None

    async def wait(self, resource: str) -> Any:
        lock = self.made(resource)
        await lock.acquire()
        return lock

    async def release(self, held: Any) -> None:
        await held.release()

"""Other locks on Redis: redis-py's own, redlock-py and python-redis-lock."""

from __future__ import annotations

from typing import Any

from redis import Redis, StrictRedis
from redis.asyncio import Redis as AsyncRedis
from redis.backoff import NoBackoff
from redis.retry import Retry

from benchmarks.contenders import TTL, Contender, Place


class LockObjects(Contender):
    """A library with an object for each lock, with `acquire(blocking=...)` and `release()`."""

    masters_used: int | None = 1

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

    def release(self, held: Any) -> None:
        held.release()


class RedisPy(LockObjects):
    """redis-py's Lock."""

    def __init__(self, place: Place) -> None:
        host, port = place.masters[0]
        # Its own limit of 100 connections would fail in 200 threads.
        self._client = Redis(host=host, port=port, max_connections=10_000)

    def made(self, resource: str) -> Any:
        return self._client.lock(resource, timeout=TTL)


class AsyncRedisPy(Contender):
    """redis-py's asyncio Lock."""

    api = "async"
    masters_used = 1

    def __init__(self, place: Place) -> None:
        host, port = place.masters[0]
        self._client = AsyncRedis(host=host, port=port, max_connections=10_000)

    async def acquire(self, resource: str) -> Any:
        lock = self._client.lock(resource, timeout=TTL)
        return lock if await lock.acquire(blocking=False) else None

    async def wait(self, resource: str) -> Any:
        lock = self._client.lock(resource, timeout=TTL)
        await lock.acquire()
        return lock

    async def release(self, held: Any) -> None:
        await held.release()

    def view(self, view: Any) -> Any:
        async def locked(request: Any, pk: int) -> Any:
            async with self._client.lock(f"order:{pk}", timeout=TTL):
                return await view(request, pk)

        return locked


class RedlockPy(Contender):
    """redlock-py: one Redlock for all threads, because redis-py's clients are thread-safe."""

    def __init__(self, place: Place, timeout: float | None = None) -> None:
        from redlock import Redlock

        # Without redis-py's ten retries, as Redlock needs its clients.
        more: dict[str, Any] = {} if timeout is None else {"socket_timeout": timeout}
        retry = Retry(NoBackoff(), 0)
        clients = [Redis(host=host, port=port, retry=retry, **more) for host, port in place.masters]
        self._redlock = Redlock(clients, retry_count=1)

    def acquire(self, resource: str) -> Any:
        return self._redlock.lock(resource, TTL * 1000) or None

    def wait(self, resource: str) -> Any:
        while not (held := self.acquire(resource)):
            pass  # a refused try has slept its retry_delay already
        return held

    def release(self, held: Any) -> None:
        self._redlock.unlock(held)


class PythonRedisLock(LockObjects):
    """python-redis-lock, which hands a lock over fastest of all peers."""

    prefix = "lock:"

    def __init__(self, place: Place) -> None:
        host, port = place.masters[0]
        # Its waiters sit in BLPOP for longer than redis-py's default timeout.
        self._client = StrictRedis(host=host, port=port, socket_timeout=None)

    def made(self, resource: str) -> Any:
        from redis_lock import Lock

        return Lock(self._client, resource, expire=TTL)

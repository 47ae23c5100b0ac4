"""redis-py's own Lock on one master."""

from __future__ import annotations

from typing import Any

from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from benchmarks.worker.contender import TTL, AsyncLockObjects, LockObjects


class Threads(LockObjects):
    """The sync API."""

    masters_used = 1

    def __init__(self, masters: list[Any]) -> None:
        host, port = masters[0]
        self._client = Redis(host=host, port=port)

    def made(self, resource: str) -> Any:
        return self._client.lock(resource, timeout=TTL)


class Tasks(AsyncLockObjects):
    """The async API."""

    masters_used = 1

    def __init__(self, masters: list[Any]) -> None:
        host, port = masters[0]
        self._client = AsyncRedis(host=host, port=port)

    def made(self, resource: str) -> Any:
        return self._client.lock(resource, timeout=TTL)

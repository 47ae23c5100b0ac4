"""redis-py's own Lock on one master."""

from __future__ import annotations

from typing import Any

from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from benchmarks.worker.contender import TTL


class Threads:
    """The sync API."""

    masters_used = 1

    def __init__(self, masters: list[Any]) -> None:
        (host, port), *_ = masters
        self._client = Redis(host=host, port=port)

    def key(self, resource: str) -> str:
        return resource

    def acquire(self, resource: str) -> Any:
        made = self._client.lock(resource, timeout=TTL)
        return made if made.acquire(blocking=False) else None

    def wait(self, resource: str) -> Any:
        made = self._client.lock(resource, timeout=TTL)
        made.acquire()
        return made

    def release(self, held: Any) -> None:
        held.release()


class Tasks:
    """The async API."""

    masters_used = 1

    def __init__(self, masters: list[Any]) -> None:
        (host, port), *_ = masters
        self._client = AsyncRedis(host=host, port=port)

    async def connect(self) -> None:
        pass

    def key(self, resource: str) -> str:
        return resource

    async def acquire(self, resource: str) -> Any:
        made = self._client.lock(resource, timeout=TTL)
        return made if await made.acquire(blocking=False) else None

    async def wait(self, resource: str) -> Any:
        made = self._client.lock(resource, timeout=TTL)
        await made.acquire()
        return made

    async def release(self, held: Any) -> None:
        await held.release()

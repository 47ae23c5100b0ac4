"""redis-py's own Lock on one master."""

from __future__ import annotations

from typing import Any

from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from benchmarks.worker.contender import TTL, AsyncLockObjects, Contender, LockObjects


class OneMaster(Contender):
    """The parts of both APIs; `client` is the class of clients."""

    masters_used = 1
    client: Any

    def __init__(self, masters: list[Any]) -> None:
        host, port = masters[0]
        # Its own limit of 100 connections would fail in 200 threads.
        self._client = self.client(host=host, port=port, max_connections=10_000)

    def made(self, resource: str) -> Any:
        return self._client.lock(resource, timeout=TTL)


class Threads(OneMaster, LockObjects):
    """The sync API."""

    client = Redis


class Tasks(OneMaster, AsyncLockObjects):
    """The async API."""

    client = AsyncRedis

"""pottery's Redlock and AIORedlock."""

from __future__ import annotations

import logging
from typing import Any

from pottery import AIORedlock, Redlock
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from benchmarks.worker.contender import TTL

logging.disable()  # it logs a traceback for every master that fails


class Threads:
    """The sync API."""

    masters_used = None

    def __init__(self, masters: list[Any], *, timeout: float | None = None) -> None:
        more: dict[str, Any] = {} if timeout is None else {"socket_timeout": timeout}
        retry = Retry(NoBackoff(), 0)
        self._masters = {Redis(host=h, port=p, retry=retry, **more) for h, p in masters}

    def key(self, resource: str) -> str:
        return f"redlock:{resource}"

    def acquire(self, resource: str) -> Any:
        made = Redlock(key=resource, masters=self._masters, auto_release_time=TTL)
        return made if made.acquire(blocking=False) else None

    def wait(self, resource: str) -> Any:
        made = Redlock(key=resource, masters=self._masters, auto_release_time=TTL)
        made.acquire()
        return made

    def release(self, held: Any) -> None:
        held.release()


class Tasks:
    """The async API."""

    masters_used = None

    def __init__(self, masters: list[Any], *, timeout: float | None = None) -> None:
        more: dict[str, Any] = {} if timeout is None else {"socket_timeout": timeout}
        retry = AsyncRetry(NoBackoff(), 0)
        self._masters = {AsyncRedis(host=h, port=p, retry=retry, **more) for h, p in masters}

    async def connect(self) -> None:
        pass

    def key(self, resource: str) -> str:
        return f"redlock:{resource}"

    async def acquire(self, resource: str) -> Any:
        made = AIORedlock(key=resource, masters=self._masters, auto_release_time=TTL)
        return made if await made.acquire(blocking=False) else None

    async def wait(self, resource: str) -> Any:
        made = AIORedlock(key=resource, masters=self._masters, auto_release_time=TTL)
        await made.acquire()
        return made

    async def release(self, held: Any) -> None:
        await held.release()

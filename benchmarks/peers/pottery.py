"""pottery's Redlock and AIORedlock, without redis-py's retries, as Redlock needs its clients."""

from __future__ import annotations

import logging
from typing import Any

from pottery import AIORedlock, Redlock
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.retry import Retry

from benchmarks.worker.contender import TTL, AsyncLockObjects, LockObjects

logging.disable()  # it logs a traceback for every master that fails


class Threads(LockObjects):
    """The sync API."""

    prefix = "redlock:"

    def __init__(self, masters: list[Any], *, timeout: float | None = None) -> None:
        more: dict[str, Any] = {} if timeout is None else {"socket_timeout": timeout}
        retry = Retry(NoBackoff(), 0)
        self._masters = {Redis(host=h, port=p, retry=retry, **more) for h, p in masters}

    def made(self, resource: str) -> Any:
        return Redlock(key=resource, masters=self._masters, auto_release_time=TTL)


class Tasks(AsyncLockObjects):
    """The async API."""

    prefix = "redlock:"

    def __init__(self, masters: list[Any], *, timeout: float | None = None) -> None:
        more: dict[str, Any] = {} if timeout is None else {"socket_timeout": timeout}
        retry = AsyncRetry(NoBackoff(), 0)
        self._masters = {AsyncRedis(host=h, port=p, retry=retry, **more) for h, p in masters}

    def made(self, resource: str) -> Any:
        return AIORedlock(key=resource, masters=self._masters, auto_release_time=TTL)

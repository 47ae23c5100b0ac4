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

from benchmarks.worker.contender import TTL, AsyncLockObjects, Contender, LockObjects

logging.disable()  # it logs a traceback for every master that fails


class Masters(Contender):
    """The parts of both APIs; `kinds` are the classes of locks, clients and retries."""

    prefix = "redlock:"
    kinds: tuple[Any, Any, Any]

    def __init__(self, masters: list[Any], *, timeout: float | None = None) -> None:
        _, client, retry = self.kinds
        more: dict[str, Any] = {} if timeout is None else {"socket_timeout": timeout}
        never = retry(NoBackoff(), 0)
        self._masters = {client(host=h, port=p, retry=never, **more) for h, p in masters}

    def made(self, resource: str) -> Any:
        return self.kinds[0](key=resource, masters=self._masters, auto_release_time=TTL)


class Threads(Masters, LockObjects):
    """The sync API."""

    kinds = (Redlock, Redis, Retry)


class Tasks(Masters, AsyncLockObjects):
    """The async API."""

    kinds = (AIORedlock, AsyncRedis, AsyncRetry)

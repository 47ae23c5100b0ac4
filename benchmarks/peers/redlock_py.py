"""redlock-py, which sends to one master after the other."""

from __future__ import annotations

from typing import Any

from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from redlock import Redlock

from benchmarks.worker.contender import TTL, Contender


class Threads(Contender):
    """One Redlock for all threads, because redis-py's clients are thread-safe."""

    def __init__(self, masters: list[Any], *, timeout: float | None = None) -> None:
        # Without redis-py's ten retries, as Redlock needs its clients.
        more: dict[str, Any] = {} if timeout is None else {"socket_timeout": timeout}
        retry = Retry(NoBackoff(), 0)
        clients = [Redis(host=host, port=port, retry=retry, **more) for host, port in masters]
        self._redlock = Redlock(clients, retry_count=1)

    def acquire(self, resource: str) -> Any:
        return self._redlock.lock(resource, TTL * 1000) or None

    def wait(self, resource: str) -> Any:
        while not (held := self.acquire(resource)):
            pass  # a refused try has slept its retry_delay already
        return held

    def release(self, held: Any) -> None:
        self._redlock.unlock(held)

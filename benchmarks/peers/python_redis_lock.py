"""python-redis-lock on one master: it waits with BLPOP, the fastest hand-off of the peers."""

from __future__ import annotations

import logging
from typing import Any

from redis import StrictRedis
from redis_lock import Lock

from benchmarks.worker.contender import TTL

logging.disable()  # it warns of every refusal


class Threads:
    """The sync API."""

    masters_used = 1

    def __init__(self, masters: list[Any]) -> None:
        (host, port), *_ = masters
        # Its waiters sit in BLPOP for longer than redis-py's default timeout.
        self._client = StrictRedis(host=host, port=port, socket_timeout=None)

    def key(self, resource: str) -> str:
        return f"lock:{resource}"

    def acquire(self, resource: str) -> Any:
        made = Lock(self._client, resource, expire=TTL)
        return made if made.acquire(blocking=False) else None

    def wait(self, resource: str) -> Any:
        made = Lock(self._client, resource, expire=TTL)
        made.acquire()
        return made

    def release(self, held: Any) -> None:
        held.release()

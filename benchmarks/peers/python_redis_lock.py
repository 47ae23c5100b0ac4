"""python-redis-lock on one master: it waits with BLPOP, the fastest hand-off of the peers."""

from __future__ import annotations

import logging
from typing import Any

from redis import StrictRedis
from redis_lock import Lock

from benchmarks.worker.contender import TTL, LockObjects

logging.disable()  # it warns of every refusal


class Threads(LockObjects):
    """The sync API."""

    masters_used = 1
    prefix = "lock:"

    def __init__(self, masters: list[Any]) -> None:
        host, port = masters[0]
        # Its waiters sit in BLPOP for longer than redis-py's default timeout.
        self._client = StrictRedis(host=host, port=port, socket_timeout=None)

    def made(self, resource: str) -> Any:
        return Lock(self._client, resource, expire=TTL)

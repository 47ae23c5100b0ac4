"""aioredlock, which has no fences, index or checks."""

from __future__ import annotations

import logging
from typing import Any

from aioredlock import Aioredlock, LockError

from benchmarks.worker.contender import TTL, Contender

logging.disable()


class Tasks(Contender):
    """The async API. It has no timeout for a command."""

    def __init__(self, masters: list[Any]) -> None:
        self._places = [{"host": host, "port": port} for host, port in masters]

    async def connect(self) -> None:
        made = {"internal_lock_timeout": TTL}
        self._once = Aioredlock(self._places, retry_count=1, **made)
        self._patient = Aioredlock(self._places, retry_count=1_000_000, **made)

    async def acquire(self, resource: str) -> Any:
        try:
            return self._once, await self._once.lock(resource)
        except LockError:
            return None

    async def wait(self, resource: str) -> Any:
        return self._patient, await self._patient.lock(resource)

    async def release(self, held: Any) -> None:
        maker, lock = held
        await maker.unlock(lock)

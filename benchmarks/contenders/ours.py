"""redlock_django as used by `with lock(...)`, with fence, index, holder, marker and renewal."""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks.contenders import Contender, Place
from redlock_django import lock, lock_resource
from redlock_django.engine.protocol.slots import slot_resource
from redlock_django.exceptions import ResourceLocked

PATIENT = 3600.0
"""Seconds that a waiter waits at most."""


class Ours(Contender):
    """The parts common to both APIs. With a `limit`, so many clients may hold a name at once."""

    prefix = "redlock:lock:"

    def __init__(self, place: Place, limit: int = 1) -> None:
        self._limit = limit
        self._lock: Any = partial(lock, limit=limit) if limit > 1 else lock

    def key(self, resource: str, held: Any = None) -> str:
        if self._limit > 1 and held is not None:
            resource = slot_resource(resource, held.slot)
        return f"{self.prefix}{resource}"

    def view(self, view: Any) -> Any:
        return lock_resource("order:<int:pk>")(view)


class Threads(Ours):
    """The sync API."""

    def acquire(self, resource: str) -> Any:
        try:
            return self._lock(resource).acquire()
        except ResourceLocked:
            return None

    def wait(self, resource: str) -> Any:
        return self._lock(resource, wait=PATIENT).acquire()

    def release(self, held: Any) -> None:
        if not held.release():
            raise RuntimeError(f"{held} was not freed")


class Tasks(Ours):
    """The async API."""

    api = "async"

    async def acquire(self, resource: str) -> Any:
        try:
            return await self._lock(resource).aacquire()
        except ResourceLocked:
            return None

    async def wait(self, resource: str) -> Any:
        return await self._lock(resource, wait=PATIENT).aacquire()

    async def release(self, held: Any) -> None:
        if not await held.arelease():
            raise RuntimeError(f"{held} was not freed")

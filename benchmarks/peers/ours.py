"""redlock_django as used by `with lock(...)`, with fence, index, holder, marker and renewal."""

from __future__ import annotations

import os
from copy import copy
from functools import partial
from importlib import import_module
from typing import Any, Self

import django
from django.conf import settings

from benchmarks.worker.contender import TTL, Contender

# All workers are forked after these imports, which need no settings, and take longer than a job.
for module in ("django.urls", "django.views.debug", "redlock_django.backends.redis",
               "redlock_django.locking.lock"):  # fmt: skip
    import_module(module)

PATIENCE = "BENCHMARKS_MASTER_TIMEOUT"
"""The environment variable with another MASTER_TIMEOUT than the default, in seconds."""

ELSEWHERE = "elsewhere"
"""An alias of the same masters: what one alias holds is another client's for the other."""


def redlock(masters: list[Any], ttl: float = TTL) -> dict[str, dict[str, Any]]:
    """Return the setting REDLOCK; the masters are trusted from the start."""
    urls = [f"redis://{host}:{port}/0" for host, port in masters]
    section: dict[str, Any] = {"MASTERS": urls, "TTL": ttl, "RESTART_DELAY": 0}
    if PATIENCE in os.environ:
        patience = float(os.environ[PATIENCE])
        # The first lock needs a connection to each of the masters, which are new.
        section |= {"MASTER_TIMEOUT": patience, "CONNECT_TIMEOUT": 30 * patience}
    return {"default": section, ELSEWHERE: section}


def configure(masters: list[Any], ttl: float = TTL) -> None:
    """Configure Django for a process that only uses locks."""
    settings.configure(
        SECRET_KEY="insecure: for measurements only",
        INSTALLED_APPS=["redlock_django"],
        REDLOCK=redlock(masters, ttl),
    )
    django.setup()


class Ours(Contender):
    """The parts common to both APIs. `renew` is whether held locks are renewed, as in `with`."""

    prefix = "redlock:lock:"
    _renew = True

    def __init__(self, masters: list[Any], *, renew: bool = True, ttl: float = TTL) -> None:
        configure(masters, ttl)
        from redlock_django import lock, locks
        from redlock_django.exceptions import ResourceLocked

        self._lock: Any = lock
        self._renew = renew
        self._refused, self._locks = ResourceLocked, locks

    def elsewhere(self) -> Self:
        """Return the API of another client of the same masters."""
        other = copy(self)
        other._lock = partial(self._lock, using=ELSEWHERE)
        return other

    def permits(self, limit: int) -> Self:
        """Return the API with a limit, which so many clients may hold a name at once."""
        other = copy(self)
        other._lock = partial(self._lock, limit=limit)
        return other


class Threads(Ours):
    """The sync API."""

    def acquire(self, resource: str) -> Any:
        try:
            return self._lock(resource, renew=self._renew).acquire()
        except self._refused:
            return None

    def wait(self, resource: str) -> Any:
        return self._lock(resource, renew=self._renew, wait=3600).acquire()

    def release(self, held: Any) -> None:
        if not held.release():
            raise RuntimeError(f"{held} was not freed")


class Tasks(Ours):
    """The async API."""

    async def acquire(self, resource: str) -> Any:
        try:
            return await self._lock(resource, renew=self._renew).aacquire()
        except self._refused:
            return None

    async def wait(self, resource: str) -> Any:
        return await self._lock(resource, renew=self._renew, wait=3600).aacquire()

    async def release(self, held: Any) -> None:
        if not await held.arelease():
            raise RuntimeError(f"{held} was not freed")

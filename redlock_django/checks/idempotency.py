"""Where records of idempotent requests are kept."""

from __future__ import annotations

from typing import Any

from django.core import checks
from django.core.cache import caches
from django.core.checks import CheckMessage, register

from redlock_django.checks.settings import TAG
from redlock_django.exceptions import InvalidRedlock
from redlock_django.idempotency.settings import settings_of
from redlock_django.locking.handler import locks

_NOT_SHARED = ("LocMemCache", "DummyCache")


@register(TAG)
def check_cache(**_: Any) -> list[CheckMessage]:
    """W011: a cache for idempotency records that other processes cannot see."""
    warnings: list[CheckMessage] = []
    for alias in locks:
        try:
            options = settings_of(alias)
        except InvalidRedlock:
            continue  # E001 tells of it
        backend = caches.settings.get(options.cache, {}).get("BACKEND", "")
        if options.store == "cache" and backend.rpartition(".")[2] in _NOT_SHARED:
            warnings.append(
                checks.Warning(
                    f"REDLOCK[{alias!r}]: IDEMPOTENCY: CACHE {options.cache!r} is not shared by "
                    "all processes, so that a retry may reach one that knows nothing of it.",
                    hint="Use a cache in Redis, or STORE = 'database'.",
                    id="redlock_django.W011",
                )
            )
    return warnings

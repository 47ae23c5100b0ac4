"""Checks of where the records of idempotent requests are stored."""

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
    """Return W011 for each alias whose idempotency records are in a cache of one process."""
    warnings: list[CheckMessage] = []
    for alias in locks:
        try:
            options = settings_of(alias)
        except InvalidRedlock:
            continue  # E001 reports it.
        backend = caches.settings.get(options.cache, {}).get("BACKEND", "")
        if options.store == "cache" and backend.rpartition(".")[2] in _NOT_SHARED:
            warnings.append(
                checks.Warning(
                    f"REDLOCK[{alias!r}]: IDEMPOTENCY: CACHE {options.cache!r} is not shared "
                    "between processes. A retry that reaches another process is executed again.",
                    hint="Use a cache in Redis, or set STORE to 'database'.",
                    id="redlock_django.W011",
                )
            )
    return warnings

"""Checks of the stores of idempotency records: a cache that forgets, a database apart."""

from __future__ import annotations

from collections.abc import Iterator

from django.apps import apps
from django.core import checks
from django.core.cache import caches
from django.core.cache.backends.db import DatabaseCache
from django.core.cache.backends.dummy import DummyCache
from django.core.cache.backends.filebased import FileBasedCache
from django.core.cache.backends.locmem import LocMemCache
from django.core.checks import CheckMessage
from django.db import router
from django.utils.module_loading import import_string

from redlock_django.idempotency.settings import IdempotencySettings
from redlock_django.models import IdempotencyRecord


def store_warnings(alias: str, options: IdempotencySettings) -> Iterator[CheckMessage]:
    """Yield W011 (a cache that forgets records) or W015 (a database that no view writes to)."""
    if options.store == "cache":
        yield from _cache_warnings(alias, options.cache)
    else:
        yield from _database_warnings(alias, options.database)


def _cache_warnings(alias: str, cache: str) -> Iterator[CheckMessage]:
    try:
        backend = import_string(caches.settings[cache]["BACKEND"])
    except (ImportError, KeyError):
        return  # Django reports it
    where = f"REDLOCK[{alias!r}]: IDEMPOTENCY: CACHE {cache!r}"
    if issubclass(backend, (LocMemCache, DummyCache)):
        problem = "is not shared between processes. A retry that reaches another process"
    elif issubclass(backend, (FileBasedCache, DatabaseCache)):
        problem = "deletes entries at random when it has MAX_ENTRIES. A retry of such a request"
    else:
        return
    yield checks.Warning(
        f"{where} {problem} is executed again.",
        hint="Use a cache in Redis that does not evict, or set STORE to 'database'.",
        id="redlock_django.W011",
    )


def _database_warnings(alias: str, database: str) -> Iterator[CheckMessage]:
    elsewhere = {
        model._meta.label: written
        for model in apps.get_models()
        if model._meta.managed
        and model is not IdempotencyRecord
        and (written := router.db_for_write(model)) != database
    }
    if not elsewhere:
        return
    label, written = next(iter(elsewhere.items()))
    others = f" and {len(elsewhere) - 1} more" if len(elsewhere) > 1 else ""
    yield checks.Warning(
        f"REDLOCK[{alias!r}]: IDEMPOTENCY: records are in DATABASE {database!r}, but "
        f"{label}{others} is written to {written!r}. A record is not committed together with that, "
        "so a retry may be executed again.",
        hint="Set DATABASE to the database that the idempotent views write to; another alias of "
        "REDLOCK, used with idempotent(using=...), may name another one.",
        id="redlock_django.W015",
    )

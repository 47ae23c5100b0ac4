"""What one `idempotent(...)` was told, and what the settings say to the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from redlock_django.idempotency.cache_records import CacheStore
from redlock_django.idempotency.database_records import DatabaseStore
from redlock_django.idempotency.protocol import Fate, settle
from redlock_django.idempotency.records import Store
from redlock_django.idempotency.replay import Stored
from redlock_django.idempotency.settings import IdempotencySettings, settings_of


@dataclass(frozen=True, kw_only=True)
class IdempotentOptions:
    """What one `idempotent(...)` was told, checked. `given` stands before the settings."""

    using: str
    given: dict[str, Any]
    anonymous_scope: Callable[..., Any] | None
    replay_check: Callable[..., Any] | None
    canonical_json: bool
    ignore: tuple[str, ...]

    def settings(self) -> IdempotencySettings:
        """Give the settings of the alias as they are now, with what the decorator was told."""
        return replace(settings_of(self.using), **self.given)


def store_of(settings: IdempotencySettings) -> Store:
    """Give the store that the options name."""
    retention = timedelta(seconds=settings.retention)
    if settings.store == "database":
        return DatabaseStore(settings.database, retention=retention)
    kept = timedelta(seconds=settings.tombstone_retention)
    return CacheStore(settings.cache, retention=retention, tombstone_retention=kept)


def judge(
    settings: IdempotencySettings, response: Any, *, undone: bool, refused: bool
) -> tuple[Fate, Stored | None]:
    """Say what is recorded of a response, or of None where the view has raised."""
    stored = None
    if response is not None:
        stored = Stored.of(
            response, headers=settings.keep_headers, largest=settings.max_response_bytes
        )
    fate = settle(
        None if response is None else response.status_code,
        undone=undone,
        refused=refused,
        storable=stored is not None,
        keep_5xx=settings.on_5xx == "record",
    )
    return fate, stored

"""What one `idempotent(...)` was told, and what the settings say to the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from redlock_django.idempotency.cache_records import CacheStore
from redlock_django.idempotency.database_records import DatabaseStore
from redlock_django.idempotency.options import IdempotencyOptions, options_of
from redlock_django.idempotency.protocol import Fate, settle
from redlock_django.idempotency.records import Store
from redlock_django.idempotency.replay import Stored


@dataclass(frozen=True, kw_only=True)
class IdempotentTerms:
    """What one `idempotent(...)` was told, checked. `given` stands before the settings."""

    using: str
    given: dict[str, Any]
    anonymous_scope: Callable[..., Any] | None
    replay_check: Callable[..., Any] | None
    canonical_json: bool
    ignore: tuple[str, ...]

    def options(self) -> IdempotencyOptions:
        """Give the settings of the alias as they are now, with what the decorator was told."""
        return replace(options_of(self.using), **self.given)


def store_of(options: IdempotencyOptions) -> Store:
    """Give the store that the options name."""
    retention = timedelta(seconds=options.retention)
    if options.store == "database":
        return DatabaseStore(options.database, retention=retention)
    kept = timedelta(seconds=options.tombstone_retention)
    return CacheStore(options.cache, retention=retention, tombstone_retention=kept)


def judge(
    options: IdempotencyOptions, response: Any, *, undone: bool, refused: bool
) -> tuple[Fate, Stored | None]:
    """Say what is recorded of a response, or of None where the view has raised."""
    stored = None
    if response is not None:
        stored = Stored.of(
            response, headers=options.keep_headers, largest=options.max_response_bytes
        )
    fate = settle(
        None if response is None else response.status_code,
        undone=undone,
        refused=refused,
        storable=stored is not None,
        keep_5xx=options.on_5xx == "record",
    )
    return fate, stored

"""The arguments of one `idempotent(...)`, combined with the settings of its alias."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from django.http import HttpRequest

from redlock_django.exceptions import InvalidRedlock, RequestTooLarge
from redlock_django.idempotency.fingerprint import has_posted_form, posted_form, read_whole_body
from redlock_django.idempotency.protocol import ViewOutcome, view_outcome
from redlock_django.idempotency.replay import StoredResponse
from redlock_django.idempotency.settings import IdempotencySettings, settings_of
from redlock_django.idempotency.stores.base import Store
from redlock_django.idempotency.stores.cache import CacheStore
from redlock_django.idempotency.stores.database import DatabaseStore


@dataclass(frozen=True, kw_only=True)
class IdempotentOptions:
    """The validated arguments of one `idempotent(...)`. `given` takes precedence over settings."""

    using: str
    given: dict[str, Any]
    anonymous_scope: Callable[..., Any] | None
    replay_check: Callable[..., Any] | None
    redact: Callable[..., Any] | None
    canonical_json: bool
    ignore: tuple[str, ...]

    def settings(self) -> IdempotencySettings:
        """Return the current settings of the alias, with the arguments of the decorator."""
        return replace(settings_of(self.using), **self.given)

    def read_body(self, request: HttpRequest) -> None:
        """Read the body of a request that may have a key, so that it can be read again.

        For a framework whose parsers read the stream of the request before the view runs. Raises
        RequestTooLarge for a body over DATA_UPLOAD_MAX_MEMORY_SIZE, BadRequest for a form that
        cannot be read, and InvalidRedlock if the body was read before.
        """
        settings = self.settings()
        is_form = has_posted_form(request)
        if request.method in settings.methods and (is_form or settings.header in request.headers):
            try:
                posted_form(request) if is_form else read_whole_body(request)
            except RequestTooLarge as error:
                error.problem_base = settings.problem_base
                raise


def store_of(settings: IdempotencySettings) -> Store:
    """Return the store that the settings name."""
    retention = timedelta(seconds=settings.retention)
    cipher = settings.encryption_keys
    if settings.store == "database":
        return DatabaseStore(settings.database, retention=retention, cipher=cipher)
    tombstone = timedelta(seconds=settings.tombstone_retention)
    return CacheStore(
        settings.cache, retention=retention, tombstone_retention=tombstone, cipher=cipher
    )


def outcome_of(
    settings: IdempotencySettings,
    response: Any,
    *,
    undone: bool,
    is_private: Callable[[], bool] = lambda: False,
    redact: Callable[[bytes], Any] | None = None,
) -> tuple[ViewOutcome, StoredResponse | None]:
    """Return what to record of a response, or of None if the view failed.

    `undone` is that of `view_outcome`. `is_private` returns whether the response must not be
    replayed. `redact` returns the body to store instead of the one that was sent.
    """
    stored = None
    if response is not None and not is_private():
        stored = StoredResponse.of(
            response, headers=settings.keep_headers, largest=settings.max_response_bytes
        )
    if stored is not None:
        forbidden = "no-store" in response.get("Cache-Control", "").lower()
        # `redact` would find nothing in a compressed body, which would be stored whole.
        unreadable = redact is not None and stored.is_encoded
        if not settings.store_body or forbidden or unreadable:
            stored = stored.without_body()
        elif redact is not None:
            stored = replace(stored, body=_redacted(redact, stored.body))
    outcome = view_outcome(
        None if response is None else response.status_code,
        undone=undone,
        storable=stored is not None,
        keep_5xx=settings.on_5xx == "record",
    )
    return outcome, stored


def _redacted(redact: Callable[[bytes], Any], body: bytes) -> bytes:
    redacted = redact(body)
    if not isinstance(redacted, bytes):
        raise InvalidRedlock(
            f"idempotent(): redact must return bytes, got {type(redacted).__name__}"
        )
    return redacted

"""`request.idempotency`: the idempotency of the current request, for its view."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable
from typing import Any
from uuid import UUID

from redlock_django.exceptions import InvalidRedlock


class Idempotency:
    """The value of `request.idempotency` in a view that is `@idempotent`.

    It does not contain the key itself.
    """

    def __init__(
        self,
        key_hash: str = "",
        seed: bytes | None = None,
        complete: Callable[[Any], None] | None = None,
    ) -> None:
        self.key_hash = key_hash
        self._seed = seed or secrets.token_bytes(32)
        self._complete = complete

    @property
    def active(self) -> bool:
        """True if the request came with a key."""
        return bool(self.key_hash)

    def __repr__(self) -> str:
        return f"<Idempotency {self.key_hash[:8] or 'without a key'}>"

    def derived_key(self, name: str) -> str:
        """Return a key for a downstream call, as a UUID: every retry gets the same one.

        Each `name` has its own key. For a request without a key it is different for each request.
        """
        digest = hmac.digest(self._seed, name.encode(), hashlib.sha256)
        return str(UUID(bytes=digest[:16], version=4))

    def complete(self, response: Any) -> None:
        """Record the response of an async view, inside the transaction of its effects.

        Call it last in that `atomic()` block, in a thread, and return the same response from the
        view. The record is then committed with the block, or not at all. Raises InvalidRedlock in
        a sync view, whose record is in its transaction anyway, with the cache store, and outside
        of an atomic block of the record's database.
        """
        if not self.active:
            return
        if self._complete is None:
            raise InvalidRedlock(
                "request.idempotency.complete() is for async views with the database store; "
                "here @idempotent completes the record itself"
            )
        self._complete(response)

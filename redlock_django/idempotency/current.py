"""`request.idempotency`: what a view may know and do about its own idempotency."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable
from typing import Any
from uuid import UUID

from redlock_django.exceptions import InvalidRedlock


class Idempotency:
    """What `request.idempotency` is in a view that is `@idempotent`.

    `active` is whether the request came with a key. The key itself is not here.
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
        """Whether the request came with a key."""
        return bool(self.key_hash)

    def __repr__(self) -> str:
        return f"<Idempotency {self.key_hash[:8] or 'without a key'}>"

    def derived_key(self, name: str) -> str:
        """Give a key for a call downstream, as a UUID: the same one whenever this is tried again.

        Each `name` has its own. For a request without a key it is new with every request.
        """
        digest = hmac.digest(self._seed, name.encode(), hashlib.sha256)
        return str(UUID(bytes=digest[:16], version=4))

    def complete(self, response: Any) -> None:
        """Record the response of an async view, inside the transaction that has its effects.

        To be called last in that `atomic()` block, in a thread; return the same response from the
        view. From then on the record is committed with the block, or not at all. Raises
        InvalidRedlock in a sync view, whose record is in its transaction anyway, for the cache
        store, and outside of a block of the record's database.
        """
        if not self.active:
            return
        if self._complete is None:
            raise InvalidRedlock(
                "request.idempotency.complete() is for async views with the database store; "
                "here @idempotent completes the record itself"
            )
        self._complete(response)

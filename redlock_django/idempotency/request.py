"""Attributes of the request for its view: `idempotency` and `idempotency_field`."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString

from redlock_django.exceptions import InvalidRedlock
from redlock_django.idempotency.settings import settings_of
from redlock_django.web.request import mark_single_use


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
        a sync view, whose record is in its transaction anyway, and outside of an atomic block of
        the record's database.
        """
        if not self.active:
            return
        if self._complete is None:
            raise InvalidRedlock(
                "request.idempotency.complete() is for async views; in a sync view @idempotent "
                "completes the record itself"
            )
        self._complete(response)


class HiddenKey:
    """The value of `{{ request.idempotency_field }}`: a hidden input, with a new key each time."""

    def __init__(self, using: str = "default") -> None:
        self._using = using

    def __str__(self) -> SafeString:
        mark_single_use()
        name = settings_of(self._using).field
        # Firefox restores hidden fields when a page is reloaded: it would send the old key.
        return format_html(
            '<input type="hidden" name="{}" value="{}" autocomplete="off">', name, uuid4()
        )

    __html__ = __str__


def attach(request: HttpRequest, idempotency: Idempotency, using: str) -> None:
    """Set `request.idempotency` for the view, and `request.idempotency_field` for templates."""
    request.idempotency = idempotency  # type: ignore[attr-defined]
    request.idempotency_field = HiddenKey(using)  # type: ignore[attr-defined]

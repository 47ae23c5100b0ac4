"""Read from a request what its idempotency is about: its key, its scope and its fingerprint."""

from __future__ import annotations

import logging
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING

from django.http import HttpRequest

from redlock_django.exceptions import KeyInvalid, KeyMissing, KeyUnscoped
from redlock_django.idempotency.fingerprint import (
    has_posted_form,
    posted_form,
    request_fingerprint,
)
from redlock_django.idempotency.flow.steps import CallHook, GetUser, InThread, Steps
from redlock_django.idempotency.key import (
    Claim,
    UserId,
    host_of,
    owner_hash,
    parse_key,
    request_hashes,
    scope_of,
    seed_of,
    user_of,
)
from redlock_django.idempotency.placement import check_placement
from redlock_django.idempotency.settings import IdempotencySettings, IdempotentOptions
from redlock_django.web.request_values import check_body_is_complete
from redlock_django.web.transactions import view_name

if TYPE_CHECKING:
    from redlock_django.web.call import Call

logger = logging.getLogger("redlock_django")

_UNSCOPED = (
    "idempotency: %s refused an anonymous request with a key. Pass anonymous_scope= to "
    "@idempotent, or on_unscoped='ignore' to run such requests as if they had no key"
)


class ClaimReader:
    """Reads the claim of one request.

    `from_form` is whether the key was in a form field. `seed` is that of the derived keys.
    """

    def __init__(self, call: Call, options: IdempotentOptions, *, is_async: bool) -> None:
        self._call = call
        self._options = options
        self._is_async = is_async
        self._request: HttpRequest = getattr(call.request, "_request", call.request)
        self.from_form = False
        self.seed = b""

    @cached_property
    def _settings(self) -> IdempotencySettings:
        return self._options.settings()

    @property
    def may_have_key(self) -> bool:
        """True if the request has a key in its header, or a form that may contain one."""
        has_header = self._settings.header in self._request.headers
        return self._request.method in self._settings.methods and (
            has_header or has_posted_form(self._request)
        )

    def claim(self) -> Steps:
        """Yield steps, and return the claim of the request: its user, key and fingerprint.

        Return None if it has no key, or no scope, and the view does not require one.
        """
        if self._request.method not in self._settings.methods:
            return None
        sent = self._request.headers.get(self._settings.header)
        key = parse_key(sent) if sent is not None else (yield from self._key_in_form())
        if key is None:
            if self._settings.required:
                raise KeyMissing
            return None
        if self._settings.key_pattern and not self._settings.key_pattern.fullmatch(key):
            raise KeyInvalid
        check_placement(self._call, self._settings, is_async=self._is_async)
        user = user_of((yield GetUser()))
        scope = yield from self._scope(user)
        if scope is None:
            if self._settings.required or self._settings.on_unscoped == "reject":
                logger.warning(_UNSCOPED, view_name(self._call.view))
                raise KeyUnscoped
            return None
        self.seed = seed_of(scope, key)
        waiting = ("wait", "auto") if self.from_form else ("wait",)
        return Claim(
            hashes=request_hashes(
                scope, key, (yield InThread(self._fingerprint)), self._settings.secrets
            ),
            owner=owner_hash(scope, self._settings.secrets),
            user="" if user is None else user.pk,
            method=self._request.method or "",
            path=self._request.path.replace("\0", "%00"),  # PostgreSQL stores no NUL
            retention=timedelta(seconds=self._settings.retention),
            wait=self._settings.wait if self._settings.in_flight in waiting else None,
        )

    def _key_in_form(self) -> Steps:
        if not has_posted_form(self._request):
            return None
        values = yield InThread(lambda: posted_form(self._request).getlist(self._settings.field))
        check_body_is_complete(self._request)  # the field may be in the part that is missing
        # Each form of a page has a field of its own: the forms of a formset, two in one <form>.
        # They are sent together, so the first key stands for all.
        self.from_form = bool(values)
        return parse_key(values[0]) if values else None

    def _scope(self, user: UserId | None) -> Steps:
        anonymous = tenant = None
        if user is None and self._options.anonymous_scope is not None:
            anonymous = yield CallHook(self._options.anonymous_scope)
            if anonymous in (None, ""):
                return None  # such as a header that the client did not send
            # Other empty values, such as 0, are refused: all clients would share that scope.
            anonymous = anonymous or ""
        if self._settings.tenant is not None:
            tenant = (yield CallHook(self._settings.tenant)) or ""
        return scope_of(user, anonymous, tenant, host_of(self._request))

    def _fingerprint(self) -> bytes:
        return request_fingerprint(
            self._request,
            key_field=self._settings.field,
            canonical_json=self._options.canonical_json,
            ignore=self._options.ignore,
            largest=self._settings.max_request_bytes,
        )

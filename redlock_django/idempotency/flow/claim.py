"""The claim of a request: its key, the owner of the key, and its fingerprint."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import TYPE_CHECKING

from django.http import HttpRequest

from redlock_django.exceptions import KeyInvalid, KeyMissing, KeyUnscoped
from redlock_django.idempotency.fingerprint import request_fingerprint
from redlock_django.idempotency.flow.runner import CallHook, GetUser, InThread, Steps
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

    def __init__(
        self, call: Call, options: IdempotentOptions, settings: IdempotencySettings, is_async: bool
    ) -> None:
        self._call = call
        self._options = options
        self._settings = settings
        self._is_async = is_async
        self._request: HttpRequest = getattr(call.request, "_request", call.request)
        self.from_form = False
        self.seed = b""

    def claim(self) -> Steps:
        """Yield steps, and return the claim of the request: its user, key and fingerprint.

        Return None if it has no key, or no scope, and the view does not require one.
        """
        settings, request = self._settings, self._request
        key = yield from self._sent_key()
        if key is None:
            if settings.required and request.method in settings.methods:
                raise KeyMissing
            return None
        if settings.key_pattern and not settings.key_pattern.fullmatch(key):
            raise KeyInvalid
        check_placement(self._call, settings, is_async=self._is_async)
        user = user_of((yield GetUser()))
        scope = yield from self._scope(user)
        if scope is None:
            if settings.required or settings.on_unscoped == "reject":
                logger.warning(_UNSCOPED, view_name(self._call.view))
                raise KeyUnscoped
            return None
        self.seed = seed_of(scope, key)
        fingerprint = yield InThread(self._fingerprint)
        waiting = ("wait", "auto") if self.from_form else ("wait",)
        return Claim(
            hashes=request_hashes(scope, key, fingerprint, settings.secrets),
            owner=owner_hash(scope, settings.secrets),
            user="" if user is None else user.pk,
            method=request.method or "",
            path=request.path.replace("\0", "%00"),  # PostgreSQL stores no NUL
            retention=timedelta(seconds=settings.retention),
            wait=settings.wait if settings.on_in_flight in waiting else None,
        )

    def _sent_key(self) -> Steps:
        """Yield steps, and return the key in the header or else in the form, or None.

        Raises KeyInvalid.
        """
        if not self._settings.may_have_key(self._request):
            return None
        sent = self._settings.sent_header(self._request)
        if sent is None:
            sent = yield InThread(lambda: self._settings.key_in_form(self._request))
            check_body_is_complete(self._request)  # the field may be in the part that is missing
            self.from_form = sent is not None
        return None if sent is None else parse_key(sent)

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

"""The claim of a request: its key, the owner of the key, and its fingerprint."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from django.http import HttpRequest

from redlock_django.exceptions import BadResource, KeyInvalid, KeyMissing, KeyUnscoped
from redlock_django.idempotency.fingerprint import read_for_view, request_fingerprint
from redlock_django.idempotency.flow.runner import CallHook, GetUser, InThread, Steps
from redlock_django.idempotency.key import (
    Claim,
    KeySource,
    UserId,
    check_key,
    given_key,
    host_of,
    parse_key,
    provider_scope,
    request_hashes,
    scope_of,
    seed_of,
    user_of,
)
from redlock_django.idempotency.placement import check_placement
from redlock_django.idempotency.settings import IdempotencySettings, IdempotentOptions
from redlock_django.web.request_values import check_body_is_complete, request_value
from redlock_django.web.transactions import view_name

if TYPE_CHECKING:
    from redlock_django.web.locked_view import Call

logger = logging.getLogger("redlock_django")

_UNSCOPED = (
    "idempotency: %s refused an anonymous request with a key. Pass anonymous_scope= to "
    "@idempotent, or scope= for a webhook"
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

        Return None if it has no key, and the view does not require one.
        """
        settings, request = self._settings, self._request
        key = yield from self._sent_key()
        if key is None:
            if settings.required and request.method in settings.methods:
                if self._options.key is not None:
                    self._log_refusal("it has no key")
                raise KeyMissing
            return None
        check_placement(self._call, settings, is_async=self._is_async)
        # With a scope, too: `ResponsePolicy` compares the user, who must be loaded in a thread.
        caller = yield GetUser()
        user = user_of(caller) if self._options.scope is None else None
        scope = yield from self._scope(user)
        if scope is None:
            logger.warning(_UNSCOPED, view_name(self._call.view))
            raise KeyUnscoped
        self.seed = seed_of(scope, key)
        fingerprint = yield InThread(self._fingerprint)
        return Claim(
            hashes=request_hashes(scope, key, fingerprint),
            user="" if user is None else user.pk,
            method=request.method or "",
            path=request.path.replace("\0", "%00"),  # PostgreSQL stores no NUL
            retention=timedelta(seconds=settings.retention),
            wait=self._options.wait(from_form=self.from_form),
        )

    def _sent_key(self) -> Steps:
        """Yield steps, and return the key of the request, or None.

        It is where `key=` says, or in the header or else in the form. Raises KeyInvalid.
        """
        if not self._options.may_have_key(self._request):
            return None
        if self._options.key is not None:
            return (yield from self._given_key(self._options.key))
        sent = self._settings.sent_header(self._request)
        if sent is None:
            sent = yield InThread(lambda: self._settings.key_in_form(self._request))
            check_body_is_complete(self._request)  # the field may be in the part that is missing
            self.from_form = sent is not None
        if sent is None:
            return None
        return parse_key(sent)

    def _given_key(self, place: KeySource | Callable[..., Any]) -> Steps:
        """Yield steps, and return the key that `key=` names, or None."""
        yield InThread(partial(read_for_view, self._request))
        check_body_is_complete(self._request)
        if isinstance(place, KeySource):
            value = yield InThread(partial(self._value_at, place))
        else:
            value = yield CallHook(place)
            check_key(place, value)
        if value is None:
            return None
        try:
            return given_key(value)
        except KeyInvalid:
            self._log_refusal("the value is empty, too long or not printable")
            raise

    def _value_at(self, place: KeySource) -> str | None:
        """Return the value in the request; raise KeyInvalid if it may be read in two ways."""
        try:
            return request_value(self._request, *place)
        except BadResource as error:
            self._log_refusal(str(error))
            raise KeyInvalid from None

    def _log_refusal(self, reason: str) -> None:
        # The sender of an event seldom shows its answer to those who operate the site.
        name, key = view_name(self._call.view), self._options.key
        place = str(key) if isinstance(key, KeySource) else "its key"
        logger.warning("idempotency: %s refused a request for %s: %s", name, place, reason)

    def _scope(self, user: UserId | None) -> Steps:
        if (scope := self._options.scope) is not None:
            name = (yield CallHook(scope)) if callable(scope) else scope
            return None if name in (None, "") else provider_scope(name, (yield from self._tenant()))
        anonymous = None
        if user is None and self._options.anonymous_scope is not None:
            anonymous = yield CallHook(self._options.anonymous_scope)
            if anonymous in (None, ""):
                return None  # such as a header that the client did not send
            # Other empty values, such as 0, are refused: all clients would share that scope.
            anonymous = anonymous or ""
        tenant = yield from self._tenant()
        return scope_of(user, anonymous, tenant, host_of(self._request))

    def _tenant(self) -> Steps:
        tenant = self._settings.tenant
        return None if tenant is None else (yield CallHook(tenant)) or ""

    def _fingerprint(self) -> bytes:
        return request_fingerprint(
            self._request,
            key_field=self._settings.field,
            path_only=not self._options.compares_body,
        )

"""The claim of a request: its key, the owner of the key, and its fingerprint."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from asgiref.sync import async_to_sync
from django.http import HttpRequest

from redlock_django.exceptions import BadResource, IdempotencyRefused, InvalidRedlock
from redlock_django.idempotency.fingerprint import read_for_view, request_fingerprint
from redlock_django.idempotency.key import (
    Claim,
    KeySource,
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
from redlock_django.idempotency.placement import (
    check_placement,
)
from redlock_django.idempotency.refusals import KEY_INVALID, KEY_MISSING, KEY_UNSCOPED
from redlock_django.idempotency.settings import IdempotentOptions
from redlock_django.web.locked_view import Call
from redlock_django.web.request import (
    check_body_is_complete,
    request_user,
    request_value,
    user_of_async_view,
)
from redlock_django.web.view_kinds import view_name

logger = logging.getLogger("redlock_django")


class ClaimReader:
    """Reads the claim of one request; for an async view, in a thread.

    `seed` is that of the derived keys.
    """

    def __init__(self, call: Call, options: IdempotentOptions, *, is_async: bool) -> None:
        self._call = call
        self._options = options
        self._is_async = is_async
        self._settings = options.settings()
        self._request: HttpRequest = getattr(call.request, "_request", call.request)
        self._from_form = False
        self.seed = b""

    def read(self) -> Claim | None:
        """Return the claim of the request, or None without a key, where the view requires none."""
        key = self._key() if self._options.may_have_key(self._request) else None
        if key is None:
            self._check_not_required()
            return None
        check_placement(self._call, self._settings, is_async=self._is_async)
        return self._claim(key)

    def _check_not_required(self) -> None:
        """Refuse the request if the view requires a key."""
        if self._settings.required and self._request.method in self._settings.methods:
            if self._options.key is not None:
                self._log_refusal("it has no key")
            raise IdempotencyRefused(KEY_MISSING)

    def _key(self) -> str | None:
        """Return the key of the request, or None: where `key=` says, in the header or the form."""
        request, settings = self._request, self._settings
        if (place := self._options.key) is not None:
            return self._given_key(place)
        if (sent := settings.sent_header(request)) is None:
            sent = settings.key_in_form(request)
            check_body_is_complete(request)  # the field may be in the part that is missing
            self._from_form = sent is not None
        return None if sent is None else parse_key(sent)

    def _given_key(self, place: KeySource | Callable[..., Any]) -> str | None:
        read_for_view(self._request)
        check_body_is_complete(self._request)
        try:
            if isinstance(place, KeySource):
                value = request_value(self._request, *place)
            else:
                check_key(place, value := self.hook(place))
            return None if value is None else given_key(value)
        except (BadResource, IdempotencyRefused) as error:
            self._log_refusal(
                str(error)
                if isinstance(error, BadResource)
                else "the value is empty, too long or not printable"
            )
            raise IdempotencyRefused(KEY_INVALID) from None

    def _log_refusal(self, reason: str) -> None:
        # The sender of an event seldom shows its answer to those who operate the site.
        name, key = view_name(self._call.view), self._options.key
        place = str(key) if isinstance(key, KeySource) else "its key"
        logger.warning("idempotency: %s refused a request for %s: %s", name, place, reason)

    def _claim(self, key: str) -> Claim:
        request, settings = self._request, self._settings
        # With a scope, too: `ResponsePolicy` compares the user, who must be loaded in a thread.
        user_now = (user_of_async_view if self._is_async else request_user)(self._call.request)
        user = user_of(user_now) if self._options.scope is None else None
        scope = self._scope(user)
        if scope is None:
            logger.warning(
                "idempotency: %s refused an anonymous request with a key. Pass anonymous_scope= to "
                "@idempotent, or scope= for a webhook",
                view_name(self._call.view),
            )
            raise IdempotencyRefused(KEY_UNSCOPED)
        self.seed = seed_of(scope, key)
        fingerprint = request_fingerprint(
            request, key_field=settings.field, path_only=not self._options.compares_body
        )
        return Claim(
            hashes=request_hashes(scope, key, fingerprint),
            user="" if user is None else user.pk,
            method=request.method or "",
            path=request.path.replace("\0", "%00"),  # PostgreSQL stores no NUL
            retention=timedelta(seconds=settings.retention),
            wait=self._options.wait(from_form=self._from_form),
        )

    def _scope(self, user: Any) -> str | None:
        if (scope := self._options.scope) is not None:
            name = self.hook(scope) if callable(scope) else scope
            return None if name in (None, "") else provider_scope(name, self._tenant())
        anonymous = None
        if user is None and self._options.anonymous_scope is not None:
            anonymous = self.hook(self._options.anonymous_scope)
            if anonymous in (None, ""):
                return None  # such as a header that the client did not send
            # Other empty values, such as 0, are refused: all clients would share that scope.
            anonymous = anonymous or ""
        return scope_of(user, anonymous, self._tenant(), host_of(self._request))

    def _tenant(self) -> Any:
        tenant = self._settings.tenant
        return None if tenant is None else self.hook(tenant) or ""

    def hook(self, hook: Callable[..., Any]) -> Any:
        """Return the result of a hook; a coroutine function of an async view runs in its loop."""
        result = hook(self._call.request, **self._call.kwargs)
        if not inspect.isawaitable(result):
            return result
        if self._is_async:
            return async_to_sync(_awaited)(result)
        if inspect.iscoroutine(result):
            result.close()
        raise InvalidRedlock(
            f"{view_name(self._call.view)} is a sync view, but {view_name(hook)}, an argument of "
            "its @idempotent, is a coroutine function. Use a plain function"
        )


async def _awaited(result: Awaitable[Any]) -> Any:
    return await result

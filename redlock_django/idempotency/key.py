"""The idempotency key: where it is, its syntax, its owner, and the claim of a request to it."""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
import re
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from asgiref.sync import async_to_sync
from django.conf import settings
from django.http import HttpRequest
from django.http.request import split_domain_port
from django.utils import timezone
from django.utils.crypto import salted_hmac

from redlock_django.exceptions import BadResource, IdempotencyRefused, InvalidRedlock
from redlock_django.idempotency.fingerprint import read_for_view, request_fingerprint
from redlock_django.idempotency.protocol import RecordState, RecordStatus
from redlock_django.idempotency.refusals import KEY_INVALID, KEY_MISSING, KEY_UNSCOPED
from redlock_django.idempotency.settings import IdempotentOptions, KeySource
from redlock_django.web.locked_view import Call
from redlock_django.web.request import (
    check_body_is_complete,
    request_user,
    request_value,
    user_of_async_view,
)
from redlock_django.web.view_kinds import view_name

logger = logging.getLogger("redlock_django")

LONGEST = 255
"""The greatest length of an idempotency key, in characters."""

# What RFC 9110 allows in a token, plus ":" "/" "=" "@", which keys in use contain. No comma:
# it joins two header lines.
_BARE = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~:/=@-]+")
BARE_KEY = r"[A-Za-z0-9!#$%&'*+.^_`|~/=@-][A-Za-z0-9!#$%&'*+.^_`|~:/=@-]*"
"""Most keys that may be sent without quotation marks, in the syntax that OpenAPI has as well.

All but those that begin with ":", of which some are a byte sequence.
"""
_BYTES = re.compile(":.*:")  # a byte sequence of structured fields


def parse_key(text: str) -> str:
    """Return the key in a header or form field: a structured field's string, or a bare token.

    `"abc"` and `abc` are the same key; parameters after the string are ignored. Raises
    IdempotencyRefused.
    """
    text = text.strip(" \t")
    key = _quoted(text) if text.startswith('"') else text
    if not (key.strip() and len(key) <= LONGEST):
        raise IdempotencyRefused(KEY_INVALID)
    if key is text and (not _BARE.fullmatch(text) or _BYTES.fullmatch(text)):
        raise IdempotencyRefused(KEY_INVALID)
    return key


def _quoted(text: str) -> str:
    import http_sf  # not above: few clients quote their keys, and django.setup() stays fast

    try:
        item: Any = http_sf.parse(text.encode("ascii"), tltype="item")
    except ValueError:  # of encode(), or of http-sf, which has no class of its own before 1.1
        # Not chained, because the message quotes the client's string.
        raise IdempotencyRefused(KEY_INVALID) from None
    return str(item[0])  # item[1] has its parameters


def check_key(key: Callable[..., Any], value: object) -> None:
    """Raise InvalidRedlock for a result of a callable `key` that is neither a string nor None."""
    if value is not None and not isinstance(value, str):
        raise InvalidRedlock(
            f"idempotent(): key {getattr(key, '__qualname__', key)!r} must return a string, or "
            f"None for a request without a key, got {type(value).__name__}"
        )


def given_key(key: str) -> str:
    """Return the key that a sender has put into its request as it is, such as the id of an event.

    Raises IdempotencyRefused if it is empty, too long or has characters that are not printable.
    """
    if key.strip() and len(key) <= LONGEST and key.isprintable():
        return key
    raise IdempotencyRefused(KEY_INVALID)


class RequestHashes(NamedTuple):
    """The HMACs of a key and of its request under one secret; 64 hex digits each."""

    key_hash: str
    fingerprint: str


def request_hashes(scope: str, key: str, fingerprint: bytes) -> tuple[RequestHashes, ...]:
    """Return the hashes under SECRET_KEY, by which a record is written, and its fallbacks."""
    name = _name(scope, key)
    hashes = (
        RequestHashes(
            _hmac("key", name, secret).hex(), _hmac("fingerprint", fingerprint, secret).hex()
        )
        for secret in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)
    )
    return tuple(dict.fromkeys(hashes))  # a secret may be in the settings twice


def lock_name(key_hash: str) -> str:
    """Return the resource that is locked while the first request with a key runs.

    No template can render such a name: in rendered names "~" only precedes a hash, and it is
    never this early in the name.
    """
    return f"idempotency~{key_hash}"


def seed_of(scope: str, key: str) -> bytes:
    """Return the seed from which keys for downstream calls are derived.

    It depends on no secret, so that a retry after a change of the secret derives the same keys.
    """
    return hashlib.sha256(b"redlock_django.idempotency.seed" + _name(scope, key)).digest()


def _name(scope: str, key: str) -> bytes:
    return json.dumps([scope, key]).encode()


def _hmac(purpose: str, value: bytes, secret: str | bytes) -> bytes:
    salt = f"redlock_django.idempotency.{purpose}"
    return salted_hmac(salt, value, secret=secret, algorithm="sha256").digest()


class UserId(NamedTuple):
    """The user who is logged in: `pk` as a string, and the `kind` of user it belongs to."""

    pk: str
    kind: str


def user_of(user: Any) -> UserId | None:
    """Return the stable id of a user who is logged in, else None.

    It is not derived from the token or the session, so a client that renews them keeps its keys.
    """
    if user is None or not getattr(user, "is_authenticated", False):
        return None
    pk = getattr(user, "pk", None)
    if pk is None:
        raise InvalidRedlock(
            f"idempotent(): the user, of type {type(user).__name__}, is logged in and has no pk. "
            "Give it a pk that is the same in every request"
        )
    return UserId(str(pk), _kind_of(user.__class__))  # of a lazy user, the class of the real one


def _kind_of(user_class: Any) -> str:
    # A site may have several kinds of users, such as customers, staff and API clients, with
    # overlapping pks. Not all of them are models.
    model = getattr(getattr(user_class, "_meta", None), "concrete_model", None)
    if model is not None:
        return f"model {model._meta.label_lower}"
    return f"class {user_class.__module__}.{user_class.__qualname__}"


def host_of(request: HttpRequest) -> str:
    """Return the host name that a request was sent to, without its port.

    Raises DisallowedHost if ALLOWED_HOSTS does not contain it.
    """
    return split_domain_port(request.get_host())[0]


def scope_of(user: UserId | None, anonymous: object, tenant: object, host: str) -> str | None:
    """Return the scope, made of a user's id and of the results of the site's hooks.

    Without a `tenant` (None), each host has keys of its own. Return None if there is neither a user
    nor a scope for anonymous requests.
    """
    if user is not None:
        owner = ["user", user.kind, user.pk]
    elif anonymous is not None:
        owner = ["anonymous", _string(anonymous, "anonymous_scope")]
    else:
        return None
    part = ["host", host] if tenant is None else ["tenant", _string(tenant, "tenant")]
    return json.dumps([owner, part])


def provider_scope(scope: object, tenant: object) -> str:
    """Return the scope of the ids of a provider, which are the same on each host of the site."""
    part = ["tenant", _string(tenant, "tenant")] if tenant is not None else ["site"]
    return json.dumps([["scope", _string(scope, "scope")], part])


def _string(value: object, name: str) -> str:
    # An empty scope would be shared by all users, and show one user's response to another.
    if isinstance(value, str | int) and not isinstance(value, bool) and value != "":
        return str(value)
    raise InvalidRedlock(
        f"idempotent(): {name} must return a string that is not empty, got {type(value).__name__}"
    )


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The description of a request before its view runs.

    It is recorded under the first of `hashes`; the others are those of older secrets. `wait` is how
    many seconds it may wait while the same request runs, or None. `attempt` distinguishes this
    attempt from every other one with the same key.
    """

    hashes: tuple[RequestHashes, ...]
    user: str = ""
    method: str = ""
    path: str = ""
    retention: timedelta = timedelta(days=1)
    wait: float | None = None
    attempt: str = field(default_factory=lambda: secrets.token_hex(16))

    @property
    def key_hash(self) -> str:
        """The hash by which the record is found."""
        return self.hashes[0].key_hash

    def status_of(
        self, key_hash: str, fingerprint: str, state: str, expires: datetime | None
    ) -> RecordStatus:
        """Return the meaning of a record for this request."""
        return RecordStatus(
            RecordState(state),
            same=RequestHashes(key_hash, fingerprint) in self.hashes,
            expired=expires is not None and expires <= timezone.now(),
        )


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

    def key(self) -> str | None:
        """Return the key of the request; None without one, where the view requires none."""
        key = self._sent_key() if self._options.may_have_key(self._request) else None
        required = self._settings.required and self._request.method in self._settings.methods
        if key is None and required:
            if self._options.key is not None:
                self._log_refusal("it has no key")
            raise IdempotencyRefused(KEY_MISSING)
        return key

    def _sent_key(self) -> str | None:
        """Return the key where `key=` says, in the header or in the form, or None."""
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

    def claim(self, key: str) -> Claim:
        """Return the claim of the request with this key."""
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

"""The idempotency key: its syntax, its owner, its lock, and what a view sees of it."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from django.conf import settings
from django.http import HttpRequest
from django.http.request import split_domain_port
from django.utils.crypto import salted_hmac
from django.utils.html import format_html
from django.utils.safestring import SafeString

from redlock_django.exceptions import IdempotencyRefused, InvalidRedlock
from redlock_django.idempotency.refusals import KEY_INVALID
from redlock_django.idempotency.settings import settings_of
from redlock_django.locking.lock import Lock
from redlock_django.web.request import mark_single_use

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
# A string of structured fields (RFC 9651), and its parameters, without a comma: that would separate
# the keys of two header lines.
_STRING = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"(?:;[ -+\--~]*)?')


def parse_key(text: str) -> str:
    """Return the key in a header or form field: a structured field's string, or a bare token.

    `"abc"` and `abc` are the same key; parameters after the string are ignored. Raises
    IdempotencyRefused.
    """
    text = text.strip(" \t")
    if quoted := _STRING.fullmatch(text):
        text = re.sub(r"\\(.)", r"\1", quoted[1])
    elif not _BARE.fullmatch(text) or _BYTES.fullmatch(text):
        raise IdempotencyRefused(KEY_INVALID)
    if not (text.strip() and len(text) <= LONGEST):
        raise IdempotencyRefused(KEY_INVALID)
    return text


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

    @property
    def exact_names(self) -> list[str]:
        """The resources that are locked while the same request runs."""
        return [f"{lock_name(each.key_hash)}~{each.fingerprint[:32]}" for each in self.hashes]

    def lock(self, *, using: str, wait: float) -> InFlightLock:
        """Return the lock to hold while the request runs, for an attempt that waits so long."""
        # Another process may still use an older SECRET_KEY.
        names = [lock_name(each.key_hash) for each in self.hashes]
        holder = {"path": self.path}
        return InFlightLock(*self.exact_names, *names, using=using, wait=wait, holder=holder)


class InFlightLock(Lock):
    """The lock that a request with a key holds while it runs, whatever `ON_UNAVAILABLE` says.

    Without this lock it is not known whether the first request is still running.
    """

    _strict = True
    keeps_response = True

    def __init__(self, *resources: str, **options: Any) -> None:
        super().__init__(*resources, **options)
        # Names with a fingerprint come first: the refused one tells which request is running.
        self._arguments.in_order = self.resources


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

    def __init__(self, request: HttpRequest, using: str = "default") -> None:
        self._request, self._using = request, using

    def __str__(self) -> SafeString:
        mark_single_use(self._request)
        name = settings_of(self._using).field
        # Firefox restores hidden fields when a page is reloaded: it would send the old key.
        return format_html(
            '<input type="hidden" name="{}" value="{}" autocomplete="off">', name, uuid4()
        )

    __html__ = __str__


def attach(request: HttpRequest, idempotency: Idempotency, using: str) -> None:
    """Set `request.idempotency` for the view, and `request.idempotency_field` for templates."""
    request.idempotency = idempotency  # type: ignore[attr-defined]
    request.idempotency_field = HiddenKey(request, using)  # type: ignore[attr-defined]

"""The idempotency key: its syntax, and the hashes under which it is recorded."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from django.conf import settings
from django.utils.crypto import salted_hmac

from redlock_django.exceptions import KeyInvalid

LONGEST = 255
"""The greatest length of an idempotency key, in characters."""

# What RFC 9110 allows in a token, plus ":" "/" "=" "@", which keys in use contain. No comma:
# it joins two header lines.
_BARE = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~:/=@-]+")
_BYTES = re.compile(":.*:")  # a byte sequence of structured fields


def parse_key(text: str) -> str:
    """Return the key in a header or form field: a structured field's string, or a bare token.

    `"abc"` and `abc` are the same key; parameters after the string are ignored. Raises KeyInvalid.
    """
    text = text.strip(" \t")
    key = _quoted(text) if text.startswith('"') else text
    if not (key.strip() and len(key) <= LONGEST):
        raise KeyInvalid
    if key is text and (not _BARE.fullmatch(text) or _BYTES.fullmatch(text)):
        raise KeyInvalid
    return key


def _quoted(text: str) -> str:
    import http_sf  # here, because few clients quote their keys, and django.setup() stays fast

    try:
        item: Any = http_sf.parse(text.encode("ascii"), tltype="item")
    except ValueError:  # of http-sf, which has a class of its own from 1.1 on only, or of encode()
        # Not chained, because the message quotes the client's string.
        raise KeyInvalid from None
    return str(item[0])  # item[1] has its parameters


class RequestHashes(NamedTuple):
    """The HMACs of a key and of its request under one secret; 64 hex digits each."""

    key_hash: str
    fingerprint: str


def request_hashes(
    scope: str, key: str, fingerprint: bytes, secrets: Iterable[str | bytes] | None = None
) -> tuple[RequestHashes, ...]:
    """Return the hashes under each of the secrets; a record is written under the first.

    The default is SECRET_KEY and then SECRET_KEY_FALLBACKS.
    """
    name = _name(scope, key)
    return tuple(
        RequestHashes(
            _hmac("key", name, secret).hex(), _hmac("fingerprint", fingerprint, secret).hex()
        )
        for secret in secrets or (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)
    )


def owner_hash(scope: str, secrets: Iterable[str | bytes] | None = None) -> str:
    """Return the HMAC of a scope under the first of the secrets; 64 hex digits."""
    secret = next(iter(secrets or [settings.SECRET_KEY]))
    return _hmac("owner", scope.encode(), secret).hex()


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

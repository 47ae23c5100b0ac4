"""The idempotency key: how a client may write it, and what it is known by inside."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

import http_sf
from django.conf import settings
from django.utils.crypto import salted_hmac

from redlock_django.idempotency.errors import KeyInvalid
from redlock_django.locking.lock import Lock

LONGEST = 255
"""Characters an idempotency key may have."""

# What RFC 9110 allows in a token, and ":" "/" "=" "@", which keys in the wild have. No comma:
# it is what two header lines are joined with.
_BARE = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~:/=@-]+")


def parse_key(text: str) -> str:
    """Give the key in a header or form field: a structured field's string, or a bare token.

    `"abc"` and `abc` are one key; parameters behind the string are ignored. Raises KeyInvalid.
    """
    text = text.strip(" \t")
    key = _quoted(text) if text.startswith('"') else text
    if not (key.strip() and len(key) <= LONGEST):
        raise KeyInvalid
    if key is text and not _BARE.fullmatch(text):
        raise KeyInvalid
    return key


def _quoted(text: str) -> str:
    try:
        item: Any = http_sf.parse(text.encode("ascii"), tltype="item")
    except (http_sf.StructuredFieldError, UnicodeEncodeError):
        # Not chained: the message quotes what the client wrote.
        raise KeyInvalid from None
    return str(item[0])  # what follows are its parameters


class Seal(NamedTuple):
    """What a key and its request are known by, under one SECRET_KEY; 64 hex digits each."""

    key_hash: str
    fingerprint: str


def seal(scope: str, key: str, fingerprint: bytes) -> tuple[Seal, ...]:
    """Hash key and fingerprint with SECRET_KEY, then with each of SECRET_KEY_FALLBACKS."""
    name = json.dumps([scope, key]).encode()
    return tuple(
        Seal(_hmac("key", name, secret).hex(), _hmac("fingerprint", fingerprint, secret).hex())
        for secret in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)
    )


def lock_name(key_hash: str) -> str:
    """Give the resource that is locked while the first request with a key runs.

    No template can give such a name: "~" stands in names only before a hash, and far behind.
    """
    return f"idempotency~{key_hash}"


class LockOfKey(Lock):
    """The lock that says whether a request is running; never gone without."""

    _strict = True  # without it nobody could say whether the first request is still running

    def _in_order(self) -> tuple[str, ...]:
        # Which of them is refused first says something, and everybody has them in this order.
        return self.resources


def seed_of(scope: str, key: str) -> bytes:
    """Give what further keys for calls downstream are derived from."""
    return _hmac("seed", json.dumps([scope, key]).encode(), settings.SECRET_KEY)


def _hmac(what: str, value: bytes, secret: str | bytes) -> bytes:
    salt = f"redlock_django.idempotency.{what}"
    return salted_hmac(salt, value, secret=secret, algorithm="sha256").digest()

"""The stored form of a response, and its replay."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Collection
from dataclasses import dataclass, replace
from io import BytesIO
from typing import Any, Self

from django.http import HttpResponse

KEPT_HEADERS = frozenset(
    {
        "access-control-allow-credentials",
        "access-control-allow-origin",
        "access-control-expose-headers",
        "content-disposition",
        "content-encoding",
        "content-language",
        "content-security-policy",
        "content-security-policy-report-only",
        "content-type",
        "cross-origin-embedder-policy",
        "cross-origin-opener-policy",
        "cross-origin-resource-policy",
        "etag",
        "last-modified",
        "link",
        "location",
        "permissions-policy",
        "referrer-policy",
        "vary",
        "x-content-type-options",
        "x-frame-options",
    }
)
"""The response headers that are stored, in lower case; settings may add to them."""

NEVER_KEPT = frozenset(
    {
        "authorization",
        "connection",
        "content-length",
        "date",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "server",
        "set-cookie",
        "transfer-encoding",
        "www-authenticate",
    }
)
"""Headers that belong to one response or are secret; settings cannot add these."""


@dataclass(frozen=True)
class StoredResponse:
    """The stored parts of a response."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    @classmethod
    def of(cls, response: Any, *, headers: Collection[str], largest: int) -> Self | None:
        """Return the stored form of a finished response, with those of its headers.

        A body that is compressed with gzip is stored uncompressed, because a retry may come from a
        client that does not accept it. What cannot be unpacked is stored as it is. Return None for
        a streaming response and for a body over `largest` bytes.
        """
        if response.streaming:
            return None
        body, names = bytes(response.content), {*headers}
        if body and response.get("Content-Encoding", "").strip().lower() in ("gzip", "x-gzip"):
            unpacked = _unpacked(body, largest + 1)
            if unpacked is not None:
                body, names = unpacked, names - {"content-encoding"}
        if len(body) > largest:
            return None
        kept = tuple((name, v) for name, v in response.items() if name.lower() in names)
        return cls(response.status_code, kept, body)

    @property
    def is_encoded(self) -> bool:
        """True if the body is compressed, so that nothing here can read it."""
        encodings = [v for name, v in self.headers if name.lower() == "content-encoding"]
        return any(encoding.strip().lower() != "identity" for encoding in encodings)

    def without_body(self) -> Self:
        """Return the response without its body, whose replay says so in a header."""
        about_body = ("content-encoding", "content-type", "etag")
        kept = tuple((name, v) for name, v in self.headers if name.lower() not in about_body)
        return replace(self, headers=(*kept, ("Idempotency-Body", "omitted")), body=b"")

    def replay(self) -> HttpResponse:
        """Return the same response, with `Idempotent-Replayed: true`."""
        response = HttpResponse(self.body, status=self.status)
        if not any(name.lower() == "content-type" for name, _ in self.headers):
            del response["Content-Type"]
        for name, value in self.headers:
            response[name] = value
        response["Idempotent-Replayed"] = "true"
        response["Cache-Control"] = "no-store"
        return response


def _unpacked(body: bytes, most: int) -> bytes | None:
    """Return at most `most` bytes of an unpacked gzip body, or None if it is not valid gzip.

    No more than that is in memory: a small body may unpack to a thousand times its size.
    """
    try:
        with gzip.GzipFile(fileobj=BytesIO(body)) as file:
            return file.read(most)
    except (OSError, EOFError, zlib.error):
        return None

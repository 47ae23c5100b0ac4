"""The stored form of a response, and its replay."""

from __future__ import annotations

import base64
import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Self

from django.http import HttpResponse

KEPT_HEADERS = frozenset(
    {
        "content-disposition",
        "content-encoding",
        "content-language",
        "content-type",
        "etag",
        "last-modified",
        "link",
        "location",
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

        Return None for a streaming response and for a body over `largest` bytes.
        """
        if response.streaming or len(response.content) > largest:
            return None
        kept = tuple((name, v) for name, v in response.items() if name.lower() in headers)
        return cls(response.status_code, kept, bytes(response.content))

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

    def dumps(self) -> str:
        """Return the response as JSON."""
        body = base64.b64encode(self.body).decode("ascii")
        return json.dumps({"status": self.status, "headers": self.headers, "body": body})

    @classmethod
    def loads(cls, text: str) -> Self:
        """Return the response that `dumps` wrote."""
        values = json.loads(text)
        headers = tuple((str(name), str(value)) for name, value in values["headers"])
        return cls(values["status"], headers, base64.b64decode(values["body"]))

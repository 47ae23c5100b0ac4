"""The stored form of a response, with the messages that its view has added, and its replay."""

from __future__ import annotations

import gzip
import json
import sys
import zlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from typing import TYPE_CHECKING, Any, Self

from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeData, mark_safe

if TYPE_CHECKING:
    from django.contrib.messages.storage.base import BaseStorage, Message

_NOT_KEPT = frozenset(
    {
        # Of one connection: hop-by-hop headers of RFC 9110, section 7.6.1, and what servers add.
        "connection",
        "content-length",  # the server writes that of the replay
        "date",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "server",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        # Of one client. The messages of Django in such a header are recorded as messages.
        "set-cookie",
    }
)
"""The response headers that are not replayed, in lower case, with those that Connection names."""

_OF_BYTES = frozenset(
    {"content-digest", "content-encoding", "content-md5", "digest", "repr-digest"}
)
"""Headers that are true only of a body with the same bytes."""


@dataclass(frozen=True)
class StoredResponse:
    """The stored parts of a response."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    messages: str = ""
    """The messages that the view has added, by `dumps`."""

    @classmethod
    def of(cls, response: Any, *, largest: int, messages: str = "") -> Self | None:
        """Return the stored form of a finished response.

        A body that is compressed with gzip is stored uncompressed, because a retry may come from a
        client that does not accept it. What cannot be unpacked is stored as it is. Return None for
        a streaming response and for a body over `largest` bytes.
        """
        if response.streaming:
            return None
        body, left_out = bytes(response.content), _NOT_KEPT | _named(response.get("Connection", ""))
        if body and response.get("Content-Encoding", "").strip().lower() in ("gzip", "x-gzip"):
            unpacked = _unpacked(body, largest + 1)
            if unpacked is not None:
                body, left_out = unpacked, left_out | _OF_BYTES
        if len(body) > largest:
            return None
        kept = tuple((name, v) for name, v in response.items() if name.lower() not in left_out)
        return cls(response.status_code, kept, body, messages)

    @property
    def is_encoded(self) -> bool:
        """True if the body is compressed, so that nothing here can read it."""
        encodings = [v for name, v in self.headers if name.lower() == "content-encoding"]
        return any(encoding.strip().lower() != "identity" for encoding in encodings)

    def with_body(self, body: bytes) -> Self:
        """Return the response with another body, without the headers about the bytes of its own."""
        if body == self.body:
            return self
        return replace(self, headers=self._headers_without(_OF_BYTES), body=body)

    def without_body(self) -> Self:
        """Return the response without its body, whose replay says so in a header."""
        kept = self._headers_without(_OF_BYTES | {"content-type", "etag"})
        return replace(self, headers=(*kept, ("Idempotency-Body", "omitted")), body=b"")

    def _headers_without(self, names: Collection[str]) -> tuple[tuple[str, str], ...]:
        return tuple((name, v) for name, v in self.headers if name.lower() not in names)

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


def _named(connection: str) -> set[str]:
    """Return the names of headers in the value of a Connection header, in lower case."""
    return {name.strip().lower() for name in connection.split(",")}


def _unpacked(body: bytes, most: int) -> bytes | None:
    """Return at most `most` bytes of an unpacked gzip body, or None if it is not valid gzip.

    No more than that is in memory: a small body may unpack to a thousand times its size.
    """
    try:
        with gzip.GzipFile(fileobj=BytesIO(body)) as file:
            return file.read(most)
    except (OSError, EOFError, zlib.error):
        return None


# MessageMiddleware stores the messages of `django.contrib.messages` around the view: in a cookie of
# the response, or in the session. So a replay adds them with Django's own API, and the middleware
# stores them for its response.


def added_messages(request: HttpRequest) -> Sequence[Message]:
    """Return the messages that were added while this request ran, and that no page has shown."""
    # A page that shows them moves them from here to the loaded ones: then its body has them.
    return list(getattr(_storage(request), "_queued_messages", ()))


def dumps(messages: Iterable[Message]) -> str:
    """Return messages as JSON in ASCII, which every database stores, or "" for none."""
    rows = [
        (one.level, str(one.message), str(one.extra_tags or ""), isinstance(one.message, SafeData))
        for one in messages
    ]
    return json.dumps(rows) if rows else ""


def add_again(request: HttpRequest, dumped: str) -> None:
    """Add the messages of `dumps` to a request, unless its client is going to be shown them.

    That is so if the request has sent them in its cookie, and if the first request has left them
    in the session on the server, where they are until they are shown.
    """
    storage: Any = _storage(request)
    if storage is None or not dumped or _keeps_on_server(storage, request):
        return
    from django.contrib.messages.storage.base import Message

    missing = []
    for level, text, tags, is_safe in json.loads(dumped):
        message = Message(level, mark_safe(text) if is_safe else text, tags)
        if message not in storage:
            missing.append(message)
    own_level, storage.level = storage.level, 0  # the view may have lowered it
    for message in missing:
        storage.add(message.level, message.message, message.extra_tags)
    storage.level = own_level


def _storage(request: HttpRequest) -> BaseStorage | None:
    """Return the messages of a request, or None without MessageMiddleware."""
    return getattr(request, "_messages", None)


def _keeps_on_server(storage: BaseStorage, request: HttpRequest) -> bool:
    """Return whether messages are in a session of this client whose data is on the server."""
    from django.contrib.messages.storage.session import SessionStorage

    if not isinstance(storage, SessionStorage):
        return False
    session: Any = request.session
    session.keys()  # loads it: the key of a session that has ended becomes None
    return session.session_key is not None and not is_in_cookie(session)


def is_in_cookie(session: object) -> bool:
    """Return whether the data of a session is in its cookie, and not on the server."""
    # A session of this class has imported it.
    module: Any = sys.modules.get("django.contrib.sessions.backends.signed_cookies")
    return module is not None and isinstance(session, module.SessionStore)

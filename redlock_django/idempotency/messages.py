"""The messages of `django.contrib.messages` that a view has added: kept, and added on a replay.

MessageMiddleware stores messages around the view: in a cookie of the response, or in the session.
So a replay adds them with Django's own API, and the middleware stores them for its response.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from django.http import HttpRequest
from django.utils.safestring import SafeData, mark_safe

if TYPE_CHECKING:
    from django.contrib.messages.storage.base import BaseStorage, Message


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

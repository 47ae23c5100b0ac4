"""The caller of a view, as far as the view itself may change it: its session, user and token.

A replay does not run the view, so it neither sets the cookie of a session nor checks a token.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from django.http import HttpRequest

from redlock_django.web.request_values import request_user
from redlock_django.web.transactions import view_name

if TYPE_CHECKING:
    from redlock_django.web.call import Call

logger = logging.getLogger("redlock_django")


class Caller(NamedTuple):
    """The caller at one moment. `cookie` is what the session cookie of its response names."""

    cookie: object
    user: object
    auth: object

    @classmethod
    def of(cls, call: Call) -> Caller:
        """Return the caller at this moment."""
        request = getattr(call.request, "_request", call.request)
        # REST framework and django-ninja set `auth`.
        return cls(_session_cookie(request), _user(request), getattr(request, "auth", None))


def response_is_private(call: Call, before: Caller, *, has_replay_check: bool) -> bool:
    """Return whether the response of a view must not be replayed; `before` is before the view."""
    after = Caller.of(call)
    if after.cookie != before.cookie:  # such as that of a login
        return True
    if has_replay_check or after == before:
        return False
    logger.warning(
        "idempotency: the response of %s is not stored, because request.user or request.auth was "
        "set inside of @idempotent, and a replay would skip that. Put @idempotent below what "
        "authenticates the client, or pass replay_check=",
        view_name(call.view),
    )
    return True


def _session_cookie(request: HttpRequest) -> object:
    session: Any = getattr(request, "session", None)
    key = getattr(session, "session_key", None)
    if key is not None and not _is_in_cookie(session):
        return key, False
    # The response will have a cookie of a new session, or one with the new data.
    return key, getattr(session, "modified", False) and not session.is_empty()


def _is_in_cookie(session: object) -> bool:
    """Return whether the data of a session is in its cookie, and not on the server."""
    # A session of this class has imported it.
    module: Any = sys.modules.get("django.contrib.sessions.backends.signed_cookies")
    return module is not None and isinstance(session, module.SessionStore)


def _user(request: HttpRequest) -> object:
    user = request_user(request)
    if not getattr(user, "is_authenticated", False):
        return None
    return user.__class__, getattr(user, "pk", None)  # of a lazy user, the class of the real one

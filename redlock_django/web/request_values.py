"""The values, the user and the body of a request, for a lock.

If a client made the lock read one value and the view another, the view would change data without a
lock. So a request that could be read in two ways is refused.

`request.user` is the authority on the user, because everything that authenticates a request sets
it: Django's `login()` and `alogin()`, middleware for tokens or impersonation, REST framework.
Django's `request.auser()` reads the session and does not notice that `request.user` was replaced.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from asgiref.sync import async_to_sync, iscoroutinefunction, sync_to_async
from django.conf import settings
from django.core.handlers.wsgi import WSGIRequest
from django.http import HttpRequest
from django.http.request import HttpHeaders

from redlock_django.exceptions import BadResource, IncompleteBody, InvalidRedlock

SOURCES = ("header", "get")
"""Where `request_value` finds values."""


def header_of(request: HttpRequest, name: str) -> str | None:
    """Return one header of a request, or None; `request.headers` copies all of them first."""
    value: str | None = request.META.get(HttpHeaders.to_wsgi_name(name))
    return value


def request_value(request: Any, source: str, name: str, label: str = "") -> str | None:
    """Return one value of a header or of the query, None if it is missing.

    `label` names the value in errors, instead of the source and the name. Raises BadResource for
    several values, of which the view might take another one.
    """
    request = getattr(request, "_request", request)
    values = request.GET.getlist(name) if source == "get" else [header_of(request, name)]
    if len(values) > 1:
        fault = f"it has {len(values)} values"
    elif source == "header" and "," in (values[0] or ""):  # as servers join two header lines
        fault = "the header has a comma, which separates several values"
    else:
        return values[0] if values else None
    raise BadResource(f"<{label or f'{source}:{name}'}>: {fault}")


_DJANGO = "django.contrib.auth.middleware"


def request_user(request: Any) -> Any:
    """Return `request.user`, or None if nothing has set it."""
    return getattr(request, "user", None)


async def arequest_user(request: Any) -> Any:
    """Return the user of an async view's request, or None if nothing has set it.

    Raises InvalidRedlock if a middleware has replaced `request.auser` and not `request.user`.
    """
    return await sync_to_async(user_of_async_view)(request)


def user_of_async_view(request: Any) -> Any:
    """Return the user as `arequest_user` does, in a thread of that view."""
    user = request_user(request)
    getattr(user, "is_authenticated", None)  # loads a lazy user, which may query the database
    auser = getattr(request, "auser", None)
    if auser is None or _reads_session(auser):
        return user
    replaced = async_to_sync(auser)()
    if user is not None and _identity(user) != _identity(replaced):
        raise InvalidRedlock(
            "request.user and request.auser() are different users. A middleware that sets "
            "request.auser must set request.user to the same user"
        )
    return replaced


def _reads_session(auser: Any) -> bool:
    """Return whether `request.auser` is the one that AuthenticationMiddleware has set."""
    return getattr(getattr(auser, "func", None), "__module__", "") == _DJANGO


def _identity(user: Any) -> tuple[object, ...]:
    # A lazy user reports the class of the user that it loads.
    return user.__class__, getattr(user, "is_authenticated", False), getattr(user, "pk", None)


async def acall_hook(hook: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return the result of a function of the site that is called for an async view.

    A coroutine function runs in the loop. A plain one may query the database, so it runs in a
    thread; what it returns may be awaitable, as that of a lambda.
    """
    call = hook if iscoroutinefunction(hook) else sync_to_async(hook)
    result = await call(*args, **kwargs)
    return await result if inspect.isawaitable(result) else result


LARGEST_READ = 2_621_440
"""Bytes of the largest body to read if DATA_UPLOAD_MAX_MEMORY_SIZE is None: Django's default."""


def declared_length(request: Any) -> int:
    """Return the Content-Length of a request in bytes, 0 if it has none."""
    try:
        return int(request.META.get("CONTENT_LENGTH") or 0)
    except ValueError:
        return 0  # as Django reads it


def read_body(request: Any) -> None:
    """Read a small body before a lock is acquired, so that a slow client does not hold the lock.

    A body over DATA_UPLOAD_MAX_MEMORY_SIZE (an upload of files) stays unread, because the view may
    stream it. Under ASGI the whole body has arrived before Django handles the request. Raises
    IncompleteBody if the connection was closed in the middle of the body.
    """
    if not request.META.get("CONTENT_LENGTH"):
        return  # as nearly all that only read
    request = getattr(request, "_request", request)
    declared = declared_length(request)
    if declared <= 0 or not isinstance(request, WSGIRequest) or vars(request).get("_read_started"):
        return
    if declared <= (settings.DATA_UPLOAD_MAX_MEMORY_SIZE or LARGEST_READ):
        request.body  # noqa: B018 - Django keeps it for the view, as POST or a stream too
        check_body_is_complete(request)


def check_body_is_complete(request: Any) -> None:
    """Raise IncompleteBody if a body that was read is shorter than its Content-Length.

    A WSGI server does not report that the client closed the connection in the middle of the body:
    Django sees the end of a shorter one. Call this after the body or the form was read; it reads
    nothing itself. Middleware that replaces a body by a shorter one has to set CONTENT_LENGTH.
    """
    request = getattr(request, "_request", request)
    read: int | None
    if hasattr(request, "_body"):
        read = len(request._body)
    else:
        # A form with files is parsed from Django's stream, whose position this is. Under ASGI there
        # is none: Django does not handle a request before its whole body has arrived.
        read = getattr(getattr(request, "_stream", None), "_pos", None)
    if read is not None and read < declared_length(request):
        raise IncompleteBody("the connection was closed before the whole body had arrived")

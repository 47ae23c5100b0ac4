"""The body of a request: read before a lock is acquired, and checked that it is complete."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.handlers.wsgi import WSGIRequest

from redlock_django.exceptions import IncompleteBody

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

"""The check that the body of a request has arrived completely."""

from __future__ import annotations

from typing import Any

from redlock_django.exceptions import IncompleteBody


def declared_length(request: Any) -> int:
    """Return the Content-Length of a request in bytes, 0 if it has none."""
    try:
        return int(request.META.get("CONTENT_LENGTH") or 0)
    except ValueError:
        return 0  # as Django reads it


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

"""The answer to an exception of a view, where that answer is recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.exceptions import BadRequest, PermissionDenied, SuspiciousOperation
from django.core.handlers.exception import get_exception_response
from django.http import Http404, HttpRequest
from django.http.multipartparser import MultiPartParserError
from django.urls import get_resolver, get_urlconf

if TYPE_CHECKING:
    from redlock_django.web.locked_view import Call

# The exceptions that Django answers with a status below 500.
_STATUSES: dict[type[Exception], int] = {
    Http404: 404,
    PermissionDenied: 403,
    SuspiciousOperation: 400,
    BadRequest: 400,
    MultiPartParserError: 400,
}


def answer_to(call: Call, error: Exception) -> Any:
    """Return the client's answer to an exception that is not a failure, such as Http404, or None.

    Django answers the exception itself later, with the same page.
    """
    if call.wrapped:
        return None  # a framework answers it in its own way
    for error_class, status in _STATUSES.items():
        if isinstance(error, error_class):
            return _answer_of_django(call.request, error, status)
    return None


def _answer_of_django(request: HttpRequest, error: Exception, status: int) -> Any:
    # Unlike response_for_exception(), this does not log: Django logs the exception later.
    response = get_exception_response(request, get_resolver(get_urlconf()), status, error)
    render = getattr(response, "render", None)
    return render() if callable(render) else response

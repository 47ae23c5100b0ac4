"""The answer to an exception of a view, where that answer is recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.core.exceptions import BadRequest, PermissionDenied, SuspiciousOperation
from django.core.handlers.exception import get_exception_response
from django.http import Http404, HttpRequest
from django.http.multipartparser import MultiPartParserError
from django.urls import get_resolver, get_urlconf

from redlock_django.web.view_kinds import is_async_class

if TYPE_CHECKING:
    from redlock_django.web.call import Call

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

    Django answers the exception itself later, with the same page. REST framework's answer must be
    returned instead of raising the exception, because its exception handler runs only once.
    """
    if call.wrapped:
        return None if is_async_class(call.owner.__class__) else _answer_of_framework(call, error)
    for error_class, status in _STATUSES.items():
        if isinstance(error, error_class):
            return _answer_of_django(call.request, error, status)
    return None


def _answer_of_django(request: HttpRequest, error: Exception, status: int) -> Any:
    # Unlike response_for_exception(), this does not log: Django logs the exception later.
    response = get_exception_response(request, get_resolver(get_urlconf()), status, error)
    render = getattr(response, "render", None)
    return render() if callable(render) else response


def _answer_of_framework(call: Call, error: Exception) -> Any:
    known = hasattr(error, "status_code") or isinstance(error, (Http404, PermissionDenied))
    if not known:
        return None
    return call.owner.finish_under_lock(call.request, call.owner.handle_exception(error))

"""Lock errors as HTTP answers: problem+json, JSON or HTML, as the client asks for."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from asgiref.sync import sync_to_async
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template import TemplateDoesNotExist
from django.template.loader import get_template
from django.utils.translation import gettext

from redlock_django.exceptions import (
    BadResource,
    LockLost,
    QuorumUnreachable,
    RedlockError,
    ResourceLocked,
)

ANSWERED = (ResourceLocked, QuorumUnreachable, LockLost, BadResource)
"""The errors that have an HTTP answer; any other is a fault of the site's own code."""


def gettext_noop(message: str) -> str:
    """Mark a text for translation, as Django's own does, but without asking for settings."""
    return message


_PROBLEM = "application/problem+json"
_JSON = "application/json"
_HTML = "text/html"


class _Kind(NamedTuple):
    status: int
    code: str
    title: str
    detail: str


# The texts say nothing about who holds the lock, nor which masters are down.
_KINDS: dict[type[RedlockError], _Kind] = {
    ResourceLocked: _Kind(
        423,
        "resource-locked",
        gettext_noop("Resource is locked"),
        gettext_noop("Another request is working on this resource."),
    ),
    QuorumUnreachable: _Kind(
        503,
        "lock-unavailable",
        gettext_noop("Lock service is unavailable"),
        gettext_noop("The resource cannot be locked at the moment. Nothing was changed."),
    ),
    LockLost: _Kind(
        503,
        "lock-lost",
        gettext_noop("Lock was lost"),
        gettext_noop("The resource could not be kept locked. Nothing was changed."),
    ),
    BadResource: _Kind(
        400,
        "bad-resource",
        gettext_noop("Bad request"),
        gettext_noop("A value that names the resource is missing or wrong."),
    ),
}


def answer(request: HttpRequest, error: RedlockError, *, status: int | None = None) -> HttpResponse:
    """Give the response for one of the `ANSWERED` errors.

    `status` is the HTTP status for a held lock; 423 if left out. `Retry-After` is whole
    seconds, at least 1.
    """
    wait = retry_after(error)
    response = _written(request, problem_of(error, status=status), wait)
    response["Cache-Control"] = "no-store"
    response["Vary"] = "Accept"
    if wait is not None:
        response["Retry-After"] = str(wait)
    return response


async def aanswer(
    request: HttpRequest, error: RedlockError, *, status: int | None = None
) -> HttpResponse:
    """Do as `answer` does, in an async view: the site's own page may ask the database."""
    if _preferred(request) == _HTML:
        return await sync_to_async(answer)(request, error, status=status)
    return answer(request, error, status=status)


def problem_of(error: RedlockError, *, status: int | None = None) -> dict[str, Any]:
    """Give what a client is told about one of the `ANSWERED` errors, as RFC 9457 writes it."""
    kind = next(kind for cls, kind in _KINDS.items() if isinstance(error, cls))
    if status is not None and isinstance(error, ResourceLocked):
        kind = kind._replace(status=status)
    return {
        "type": f"urn:redlock-django:{kind.code}",
        "title": gettext(kind.title),
        "status": kind.status,
        "detail": gettext(kind.detail),
        "code": kind.code,
        "retryable": not isinstance(error, BadResource),
    }


def retry_after(error: RedlockError) -> int | None:
    """Give the whole seconds, at least 1, after which to try again; None where nobody knows."""
    if isinstance(error, BadResource):
        return None
    seconds: float | None = getattr(error, "retry_after", None)
    if seconds is None:
        return None if isinstance(error, ResourceLocked) else 1
    return max(1, math.ceil(seconds))


def _preferred(request: HttpRequest) -> str:
    # The first one is what a client gets that does not say, or says */*.
    return request.get_preferred_type([_PROBLEM, _JSON, _HTML]) or _PROBLEM


def _written(request: HttpRequest, problem: dict[str, Any], wait: int | None) -> HttpResponse:
    preferred, status = _preferred(request), problem["status"]
    if preferred == _HTML:
        try:
            page = get_template("redlock_django/refused.html")
        except TemplateDoesNotExist:
            # A site without app templates is refused as well, if less prettily.
            preferred = _PROBLEM
        else:
            context = {"problem": problem, "retry_after": wait}
            return HttpResponse(page.render(context, request), status=status)
    return JsonResponse(problem, status=status, content_type=preferred)

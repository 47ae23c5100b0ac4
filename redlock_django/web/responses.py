"""Lock errors as HTTP responses: problem+json, JSON or HTML, as the client accepts."""

from __future__ import annotations

from typing import Any

from asgiref.sync import sync_to_async
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template import TemplateDoesNotExist
from django.template.loader import get_template

from redlock_django.exceptions import RedlockError
from redlock_django.web.problems import problem_of, retry_after

_PROBLEM = "application/problem+json"
_JSON = "application/json"
_HTML = "text/html"


def answer(request: HttpRequest, error: RedlockError, *, status: int | None = None) -> HttpResponse:
    """Return the response to an error that has a problem type.

    `status` is the HTTP status for a held lock, 423 if left out. `Retry-After` is in whole
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
    """Return the response as `answer` does, in an async view.

    The HTML page is rendered in a thread, because a site's own template may query the database.
    """
    if _preferred(request) == _HTML:
        return await sync_to_async(answer)(request, error, status=status)
    return answer(request, error, status=status)


def _preferred(request: HttpRequest) -> str:
    # A client that sends no Accept header, or */*, gets the first of these.
    return request.get_preferred_type([_PROBLEM, _JSON, _HTML]) or _PROBLEM


def _written(request: HttpRequest, problem: dict[str, Any], wait: int | None) -> HttpResponse:
    preferred, status = _preferred(request), problem["status"]
    if preferred == _HTML:
        try:
            page = get_template("redlock_django/refused.html")
        except TemplateDoesNotExist:
            # The site does not load templates of apps, so this page is not found.
            preferred = _PROBLEM
        else:
            # Only a request without a body can be sent again by a link.
            is_get = request.method in ("GET", "HEAD") and problem["retryable"]
            context = {"problem": problem, "retry_after": wait, "retry_by_link": is_get}
            return HttpResponse(page.render(context, request), status=status)
    return JsonResponse(problem, status=status, content_type=preferred)

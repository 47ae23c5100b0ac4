"""HTTP answers to errors: problem types (RFC 9457), written as problem+json or a page.

A request that is refused because of its idempotency key brings its own. An answer to a lock error
says "Nothing was changed" and `retryable` only if that is certain (`judge_effects`).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard, cast

from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import connections
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.http.response import HttpResponseBase
from django.template import TemplateDoesNotExist
from django.template.loader import get_template
from django.utils.translation import gettext

from redlock_django.engine.inspection.printable import printable
from redlock_django.exceptions import (
    BadName,
    BadResource,
    IdempotencyRefused,
    IncompleteBody,
    LimitReached,
    LockLost,
    RedlockError,
    ResourceLocked,
    StoreUnavailable,
)

logger = logging.getLogger("redlock_django")

PROBLEM_BASE = "urn:redlock-django:"
"""The start of a problem's `type`."""


def gettext_noop(message: str) -> str:
    """Mark a string for translation, as Django's own function does, without reading settings."""
    return message


@dataclass(frozen=True)
class Problem:
    """The problem type of one error class.

    `title` and `detail` are translated when the answer is written. `retryable` is whether the
    same request may be sent again. `members` are members of the problem beyond these.
    """

    status: int
    code: str
    title: str
    detail: str
    retryable: bool = True
    members: Mapping[str, object] = field(default_factory=dict)


def problem_type(error: BaseException) -> Problem | None:
    """Return the problem type of an error, or None for an error without an HTTP answer."""
    if isinstance(error, BadName):
        return None  # a bug of the site; a bad value of the client is another BadResource
    if isinstance(error, IdempotencyRefused):
        return cast("Problem", error.problem)  # one of `idempotency.refusals`
    return problem_type_of_class(type(error))


def problem_type_of_class(error_class: type[BaseException]) -> Problem | None:
    """Return the problem type of the errors of a class, or None if they have no HTTP answer."""
    known = (PROBLEMS[cls] for cls in error_class.__mro__ if cls in PROBLEMS)
    return next(known, None)


def has_problem(error: BaseException) -> TypeGuard[RedlockError]:
    """Return whether an error has an HTTP answer; any other error is a bug of the site."""
    return problem_type(error) is not None


def problem_of(error: RedlockError, *, status: int | None = None) -> dict[str, Any]:
    """Return the problem details of an error that has an HTTP answer.

    `status` is the HTTP status of the answer to a held lock, if it is not 423.
    """
    problem = _problem(error)
    is_locked = isinstance(error, ResourceLocked)
    detail = _NOT_SET_UP if error.remedy else problem.detail
    detail = gettext(_EFFECTS_UNKNOWN if _may_have_effects(error) else detail)
    if error.remedy and settings.DEBUG:
        detail = f"{detail} DEBUG: {error.remedy}"
    return {
        "type": PROBLEM_BASE + problem.code,
        "title": gettext(problem.title),
        "status": status if status is not None and is_locked else problem.status,
        "detail": detail,
        "code": problem.code,
        "retryable": _is_retryable(error),
        **problem.members,
    }


def retry_after(error: RedlockError) -> int | None:
    """Return the whole seconds, at least 1, until a retry; None where that is not known."""
    if not _is_retryable(error):
        return None
    seconds: float | None = getattr(error, "retry_after", None)
    if seconds is None:
        return None if isinstance(error, ResourceLocked) else 1
    return max(1, math.ceil(seconds))


def _is_retryable(error: RedlockError) -> bool:
    # With a remedy, every retry fails until an operator has acted.
    return _problem(error).retryable and not (_may_have_effects(error) or error.remedy)


def _may_have_effects(error: RedlockError) -> bool:
    # `judge_effects` has noted it, for the errors of locks.
    return getattr(error, "may_have_effects", False) is True


def _problem(error: RedlockError) -> Problem:
    problem = problem_type(error)
    if problem is None:
        raise LookupError(f"{type(error).__name__} has no problem type")
    return problem


_EFFECTS_UNKNOWN = gettext_noop(
    "A lock was not available while the request was being processed. It is not known whether "
    "anything was changed."
)
_NOT_SET_UP = gettext_noop(
    "This site is not set up completely. Its operators can find the reason in its log."
)

# The strings say nothing about the holder of the lock, nor about the masters that are down.
PROBLEMS: Mapping[type[RedlockError], Problem] = {
    ResourceLocked: Problem(
        423, "resource-locked", gettext_noop("Resource is locked"),
        gettext_noop("Another request is using this resource."),
    ),
    LimitReached: Problem(
        423, "limit-reached", gettext_noop("Limit is reached"),
        gettext_noop("As many requests as allowed are using this resource."),
    ),
    StoreUnavailable: Problem(
        503, "lock-unavailable", gettext_noop("Lock service is unavailable"),
        gettext_noop("The resource cannot be locked at the moment. Nothing was changed."),
    ),
    LockLost: Problem(
        503, "lock-lost", gettext_noop("Lock was lost"),
        gettext_noop("The lock on the resource was lost. Nothing was changed."),
    ),
    BadResource: Problem(
        400, "bad-resource", gettext_noop("Bad request"),
        gettext_noop("A value that identifies the resource is missing or invalid."),
        retryable=False,
    ),
    IncompleteBody: Problem(
        400, "incomplete-body", gettext_noop("Body is incomplete"),
        gettext_noop(
            "The body of the request is shorter than its Content-Length. Nothing was changed."
        ),
    ),
}  # fmt: skip
"""The answers to error classes, and to their subclasses."""


_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})


def judge_effects(error: BaseException, request: Any, *, undone: bool) -> None:
    """Note on a lock error whether its view may have changed something; the first note counts.

    `undone` is whether the view had not begun, or a transaction around it was rolled back. A name
    that the client's values do not make is logged: the client of a webhook shows its answer to
    nobody.
    """
    if isinstance(error, BadResource) and has_problem(error) and not hasattr(error, "logged"):
        vars(error)["logged"] = True
        place = printable(f"{request.method} {request.path}")
        logger.warning("%s was answered 400: %s", place, printable(str(error)))
    if isinstance(error, (LockLost, ResourceLocked, StoreUnavailable)):
        known = undone or request.method in _SAFE_METHODS
        vars(error).setdefault("may_have_effects", not known)


def was_rolled_back_by_django(request: Any, error: BaseException) -> bool:
    """Return whether Django rolled back ATOMIC_REQUESTS for an error that a view has raised."""
    match = request.resolver_match
    excluded = getattr(match.func, "_non_atomic_requests", ()) if match is not None else ()
    opened = any(
        database["ATOMIC_REQUESTS"] and alias not in excluded
        for alias, database in connections.settings.items()
    )
    return opened and not _is_of_commit_hook(error)


def _is_of_commit_hook(error: BaseException) -> bool:
    frame = error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_name == "run_and_clear_commit_hooks":
            return True  # raised after COMMIT
        frame = frame.tb_next
    return False


_PROBLEM = "application/problem+json"
_HTML = "text/html"


def answer(request: HttpRequest, error: RedlockError, *, status: int | None = None) -> HttpResponse:
    """Return the response to an error that has a problem type, for a browser as a page.

    `status` is the HTTP status for a held lock, 423 if left out. `Retry-After` is in whole
    seconds, at least 1.
    """
    problem, wait = problem_of(error, status=status), retry_after(error)
    response = _page(request, problem, wait) if _prefers_page(request) else None
    if response is None:
        response = JsonResponse(problem, content_type=_PROBLEM)
    response.status_code = problem["status"]
    forbid_storing(response)
    response["Vary"] = "Accept"
    if wait is not None:
        response["Retry-After"] = str(wait)
    return response


async def aanswer(
    request: HttpRequest, error: RedlockError, *, status: int | None = None
) -> HttpResponse:
    """Return the response as `answer` does, in an async view.

    The page is rendered in a thread, because a site's own template may query the database.
    """
    if _prefers_page(request):
        return await sync_to_async(answer)(request, error, status=status)
    return answer(request, error, status=status)


def forbid_storing(response: Any) -> None:
    """Make caches store no answer to an error, unless its site has said otherwise.

    What `on_locked` returns may have the status 200, and `@cache_page` would serve it for minutes.
    """
    if isinstance(response, HttpResponseBase):
        response.setdefault("Cache-Control", "no-store")


def _prefers_page(request: HttpRequest) -> bool:
    # A client that sends no Accept header, or */*, gets the first of these.
    return request.get_preferred_type([_PROBLEM, "application/json", _HTML]) == _HTML


def _page(
    request: HttpRequest, problem: Mapping[str, Any], wait: int | None
) -> HttpResponse | None:
    """Return the HTML page for a problem; None if the site does not load the templates of apps."""
    try:
        page = get_template("redlock_django/refused.html")
    except TemplateDoesNotExist:
        return None
    # Only a request without a body can be sent again by a link.
    is_get = request.method in ("GET", "HEAD") and problem["retryable"]
    context = {"problem": problem, "retry_after": wait, "retry_by_link": is_get}
    return HttpResponse(page.render(context, request))

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
    IdempotencyRefused,
    IdempotencyUnavailable,
    KeyExpired,
    KeyInFlight,
    KeyInvalid,
    KeyMissing,
    KeyReused,
    KeyUnscoped,
    LockLost,
    OutcomeUncertain,
    QuorumUnreachable,
    RedlockError,
    RequestTooLarge,
    ResourceLocked,
    ResultUnavailable,
)

ANSWERED = (ResourceLocked, QuorumUnreachable, LockLost, BadResource, IdempotencyRefused)
"""The errors that have an HTTP answer; any other is a fault of the site's own code."""


def gettext_noop(message: str) -> str:
    """Mark a text for translation, as Django's own does, but without asking for settings."""
    return message


_PROBLEM = "application/problem+json"
_JSON = "application/json"
_HTML = "text/html"


class _Kind(NamedTuple):
    """What is told of one error.

    `retryable` is whether to send the same again; `safe_new_key` whether to send it with another
    idempotency key, where there is one: it is not if the first request may have had its effect.
    """

    status: int
    code: str
    title: str
    detail: str
    retryable: bool = True
    safe_new_key: bool | None = None


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
        retryable=False,
    ),
    KeyMissing: _Kind(
        400,
        "idempotency-key-missing",
        gettext_noop("Idempotency-Key is missing"),
        gettext_noop("This operation needs an idempotency key. Nothing was changed."),
        retryable=False,
        safe_new_key=True,
    ),
    KeyInvalid: _Kind(
        400,
        "idempotency-key-invalid",
        gettext_noop("Idempotency-Key is invalid"),
        gettext_noop(
            "An idempotency key is one text of 1 to 255 printable characters, such as a UUID. "
            "Nothing was changed."
        ),
        retryable=False,
        safe_new_key=True,
    ),
    KeyUnscoped: _Kind(
        403,
        "idempotency-key-unscoped",
        gettext_noop("Not logged in"),
        gettext_noop("This operation is only for users who are logged in. Nothing was changed."),
        retryable=False,
        safe_new_key=True,
    ),
    KeyReused: _Kind(
        422,
        "idempotency-key-reused",
        gettext_noop("Idempotency-Key is already used"),
        gettext_noop("This idempotency key was used for a request that was not the same."),
        retryable=False,
        safe_new_key=False,
    ),
    KeyInFlight: _Kind(
        409,
        "idempotency-key-in-flight",
        gettext_noop("A request is outstanding for this Idempotency-Key"),
        gettext_noop("The first request with this idempotency key is still being worked on."),
        safe_new_key=False,
    ),
    OutcomeUncertain: _Kind(
        409,
        "idempotency-outcome-uncertain",
        gettext_noop("Outcome is uncertain"),
        gettext_noop(
            "The first request with this idempotency key was interrupted, and it is not known "
            "whether it had any effect."
        ),
        retryable=False,
        safe_new_key=False,
    ),
    ResultUnavailable: _Kind(
        409,
        "idempotency-result-unavailable",
        gettext_noop("Result is unavailable"),
        gettext_noop(
            "The first request with this idempotency key was completed, but its response was "
            "not kept."
        ),
        retryable=False,
        safe_new_key=False,
    ),
    KeyExpired: _Kind(
        409,
        "idempotency-key-expired",
        gettext_noop("Idempotency-Key has expired"),
        gettext_noop(
            "A request with this idempotency key was completed, so long ago that its response "
            "is gone."
        ),
        retryable=False,
        safe_new_key=False,
    ),
    RequestTooLarge: _Kind(
        413,
        "idempotency-body-too-large",
        gettext_noop("Request is too large"),
        gettext_noop(
            "The request is too large for one with an idempotency key. Nothing was changed."
        ),
        retryable=False,
        safe_new_key=True,
    ),
    IdempotencyUnavailable: _Kind(
        503,
        "idempotency-unavailable",
        gettext_noop("Idempotency is unavailable"),
        gettext_noop(
            "At the moment it cannot be found out whether this request has run before. "
            "Please try again with the same idempotency key."
        ),
        safe_new_key=False,
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
    kind = _kind(error)
    if status is not None and isinstance(error, ResourceLocked):
        kind = kind._replace(status=status)
    problem = {
        "type": getattr(error, "problem_base", IdempotencyRefused.problem_base) + kind.code,
        "title": gettext(kind.title),
        "status": kind.status,
        "detail": gettext(kind.detail),
        "code": kind.code,
        "retryable": kind.retryable,
    }
    if kind.safe_new_key is not None:
        problem["safe_new_key"] = kind.safe_new_key
    return problem


def retry_after(error: RedlockError) -> int | None:
    """Give the whole seconds, at least 1, after which to try again; None where nobody knows."""
    if not _kind(error).retryable:
        return None
    seconds: float | None = getattr(error, "retry_after", None)
    if seconds is None:
        return None if isinstance(error, ResourceLocked) else 1
    return max(1, math.ceil(seconds))


def _kind(error: RedlockError) -> _Kind:
    return next(kind for cls, kind in _KINDS.items() if isinstance(error, cls))


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

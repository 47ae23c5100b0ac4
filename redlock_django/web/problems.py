"""The problem types (RFC 9457) of the errors that have an HTTP answer.

An extension adds the problem types of its own errors with `register_problem`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from django.conf import settings
from django.utils.translation import gettext

from redlock_django.exceptions import (
    BadName,
    BadResource,
    IncompleteBody,
    LockLost,
    RedlockError,
    ResourceLocked,
    StoreUnavailable,
)

PROBLEM_BASE = "urn:redlock-django:"
"""The start of a problem's `type`; an error may have a `problem_base` of its own."""


def gettext_noop(message: str) -> str:
    """Mark a string for translation, as Django's own function does, without reading settings."""
    return message


@dataclass(frozen=True, kw_only=True)
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


_problems: dict[type[Exception], Problem] = {}


def register_problem(error_class: type[RedlockError], problem: Problem) -> None:
    """Make a problem the HTTP answer to an error class and to its subclasses."""
    _problems[error_class] = problem


def problem_type(error: BaseException) -> Problem | None:
    """Return the problem type of an error, or None for an error without an HTTP answer."""
    if isinstance(error, BadName):
        return None  # a bug of the site; a bad value of the client is another BadResource
    known = (_problems[cls] for cls in type(error).__mro__ if cls in _problems)
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
    unknown = _may_have_effects(error)
    detail = gettext(_EFFECTS_UNKNOWN if unknown else problem.detail)
    if error.remedy and settings.DEBUG:
        detail = f"{detail} DEBUG: {error.remedy}"
    return {
        "type": getattr(error, "problem_base", PROBLEM_BASE) + problem.code,
        "title": gettext(problem.title),
        "status": status if status is not None and is_locked else problem.status,
        "detail": detail,
        "code": problem.code,
        "retryable": problem.retryable and not unknown,
        **problem.members,
    }


def retry_after(error: RedlockError) -> int | None:
    """Return the whole seconds, at least 1, until a retry; None where that is not known."""
    if not _problem(error).retryable or _may_have_effects(error):
        return None
    seconds: float | None = getattr(error, "retry_after", None)
    if seconds is None:
        return None if isinstance(error, ResourceLocked) else 1
    return max(1, math.ceil(seconds))


def _may_have_effects(error: RedlockError) -> bool:
    # `web.effects` has noted it, for the errors of locks.
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

# The strings say nothing about the holder of the lock, nor about the masters that are down.
register_problem(
    ResourceLocked,
    Problem(
        status=423,
        code="resource-locked",
        title=gettext_noop("Resource is locked"),
        detail=gettext_noop("Another request is using this resource."),
    ),
)
register_problem(
    StoreUnavailable,
    Problem(
        status=503,
        code="lock-unavailable",
        title=gettext_noop("Lock service is unavailable"),
        detail=gettext_noop("The resource cannot be locked at the moment. Nothing was changed."),
    ),
)
register_problem(
    LockLost,
    Problem(
        status=503,
        code="lock-lost",
        title=gettext_noop("Lock was lost"),
        detail=gettext_noop("The lock on the resource was lost. Nothing was changed."),
    ),
)
register_problem(
    BadResource,
    Problem(
        status=400,
        code="bad-resource",
        title=gettext_noop("Bad request"),
        detail=gettext_noop("A value that identifies the resource is missing or invalid."),
        retryable=False,
    ),
)
register_problem(
    IncompleteBody,
    Problem(
        status=400,
        code="incomplete-body",
        title=gettext_noop("Body is incomplete"),
        detail=gettext_noop(
            "The body of the request is shorter than its Content-Length. Nothing was changed."
        ),
    ),
)

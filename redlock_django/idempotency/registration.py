"""Register the counters of idempotency, and the problem types of its errors, with the core.

Importing any module of this package imports this one first, so they are registered whenever
idempotency is used. `redlock_django/apps.py` registers what the core needs before that. All
extension points are listed in docs/explanation/architecture.md.
"""

from __future__ import annotations

from redlock_django.exceptions import (
    IdempotencyRefused,
    IdempotencyUnavailable,
    KeyExpired,
    KeyInFlight,
    KeyInvalid,
    KeyMissing,
    KeyReused,
    KeyUnscoped,
    OutcomeUncertain,
    RequestTooLarge,
    ResultUnavailable,
    TooManyRecords,
    TooManyWaiters,
)
from redlock_django.locking.counters import CounterType, register_counters
from redlock_django.web.problems import Problem, gettext_noop, register_problem

register_counters(
    {
        name: CounterType(description, unit="{request}")
        for name, description in {
            "replayed": "Requests answered from an idempotency record",
            "conflicted": "Requests refused because the first request with their key was running",
            "mismatched": "Requests refused because their key was used for a different request",
            "uncertain": "Requests refused because the outcome of the first request is not known",
        }.items()
    }
)


def _register(
    error_class: type[IdempotencyRefused],
    status: int,
    code: str,
    title: str,
    detail: str,
    *,
    safe_new_key: bool,
    retryable: bool = False,
) -> None:
    """Register the problem type of an error.

    `safe_new_key` is a member of the problem: whether the client may send the request with another
    key. It may not if the first request may have taken effect.
    """
    members = {"safe_new_key": safe_new_key}
    problem = Problem(
        status=status,
        code=f"idempotency-{code}",
        title=title,
        detail=detail,
        retryable=retryable,
        members=members,
    )
    register_problem(error_class, problem)


_register(
    KeyMissing,
    400,
    "key-missing",
    gettext_noop("Idempotency-Key is missing"),
    gettext_noop("This operation requires an idempotency key. Nothing was changed."),
    safe_new_key=True,
)
_register(
    KeyInvalid,
    400,
    "key-invalid",
    gettext_noop("Idempotency-Key is invalid"),
    gettext_noop(
        "An idempotency key must be one string of 1 to 255 printable characters, such as a UUID. "
        "Nothing was changed."
    ),
    safe_new_key=True,
)
_register(
    KeyUnscoped,
    400,
    "key-unscoped",
    gettext_noop("Idempotency-Key has no owner"),
    gettext_noop(
        "An idempotency key belongs to a user, and no user is logged in. Nothing was changed."
    ),
    safe_new_key=True,
)
_register(
    KeyReused,
    422,
    "key-reused",
    gettext_noop("Idempotency-Key is already used"),
    gettext_noop("This idempotency key was used for a different request."),
    safe_new_key=False,
)
_register(
    KeyInFlight,
    409,
    "key-in-flight",
    gettext_noop("A request is outstanding for this Idempotency-Key"),
    gettext_noop("The first request with this idempotency key is still running."),
    retryable=True,
    safe_new_key=False,
)
_register(
    TooManyWaiters,
    503,
    "too-many-waiters",
    gettext_noop("Too many requests are waiting"),
    gettext_noop(
        "The first request with this idempotency key is still running. "
        "Please try again with the same idempotency key."
    ),
    retryable=True,
    safe_new_key=False,
)
_register(
    TooManyRecords,
    429,
    "too-many-records",
    gettext_noop("Too many idempotency keys"),
    gettext_noop(
        "Too many new idempotency keys were used in a short time. Nothing was changed. "
        "Please try again later with the same idempotency key."
    ),
    retryable=True,
    safe_new_key=True,
)
_register(
    OutcomeUncertain,
    409,
    "outcome-uncertain",
    gettext_noop("Outcome is uncertain"),
    gettext_noop(
        "The first request with this idempotency key was interrupted, and it is not known "
        "whether it took effect."
    ),
    safe_new_key=False,
)
_register(
    ResultUnavailable,
    409,
    "result-unavailable",
    gettext_noop("Result is unavailable"),
    gettext_noop(
        "The first request with this idempotency key completed, but its response was not stored."
    ),
    safe_new_key=False,
)
_register(
    KeyExpired,
    409,
    "key-expired",
    gettext_noop("Idempotency-Key has expired"),
    gettext_noop(
        "A request with this idempotency key completed, and its response is no longer stored."
    ),
    safe_new_key=False,
)
_register(
    RequestTooLarge,
    413,
    "body-too-large",
    gettext_noop("Request is too large"),
    gettext_noop("A request with an idempotency key must not be this large. Nothing was changed."),
    safe_new_key=True,
)
_register(
    IdempotencyUnavailable,
    503,
    "unavailable",
    gettext_noop("Idempotency is unavailable"),
    gettext_noop(
        "It cannot be determined at the moment whether this request has run before. "
        "Please try again with the same idempotency key."
    ),
    retryable=True,
    safe_new_key=False,
)

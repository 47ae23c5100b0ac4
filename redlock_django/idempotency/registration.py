"""Register the counters of idempotency, and the problem types of its errors, with the core.

Importing any module of this package imports this one first, so they are registered whenever
idempotency is used. `redlock_django/apps.py` registers what the core needs before that. All
extension points are listed in docs/explanation/architecture.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

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
from redlock_django.web.answers import Problem, register_problem
from redlock_django.web.answers import gettext_noop as _

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


class _Answer(NamedTuple):
    """The answer to an error.

    `safe_new_key` is a member of the problem: whether the client may send the request with another
    key. It may not if the first request may have taken effect.
    """

    status: int
    code: str
    retryable: bool = False
    safe_new_key: bool = False


_PROBLEMS: Mapping[type[IdempotencyRefused], tuple[_Answer, str, str]] = {
    KeyMissing: (
        _Answer(400, "key-missing", safe_new_key=True),
        _("Idempotency-Key is missing"),
        _("This operation requires an idempotency key. Nothing was changed."),
    ),
    KeyInvalid: (
        _Answer(400, "key-invalid", safe_new_key=True),
        _("Idempotency-Key is invalid"),
        _(
            "An idempotency key must be one string of 1 to 255 printable characters, such as a "
            "UUID. Nothing was changed."
        ),
    ),
    KeyUnscoped: (
        _Answer(400, "key-unscoped", safe_new_key=True),
        _("Idempotency-Key has no owner"),
        _("An idempotency key belongs to a user, and no user is logged in. Nothing was changed."),
    ),
    KeyReused: (
        _Answer(422, "key-reused"),
        _("Idempotency-Key is already used"),
        _("This idempotency key was used for a different request."),
    ),
    KeyInFlight: (
        _Answer(409, "key-in-flight", retryable=True),
        _("A request is outstanding for this Idempotency-Key"),
        _("The first request with this idempotency key is still running."),
    ),
    TooManyWaiters: (
        _Answer(503, "too-many-waiters", retryable=True),
        _("Too many requests are waiting"),
        _(
            "The first request with this idempotency key is still running. "
            "Please try again with the same idempotency key."
        ),
    ),
    TooManyRecords: (
        _Answer(429, "too-many-records", retryable=True, safe_new_key=True),
        _("Too many idempotency keys"),
        _(
            "Too many new idempotency keys were used in a short time. Nothing was changed. "
            "Please try again later with the same idempotency key."
        ),
    ),
    OutcomeUncertain: (
        _Answer(409, "outcome-uncertain"),
        _("Outcome is uncertain"),
        _(
            "The first request with this idempotency key was interrupted, and it is not known "
            "whether it took effect."
        ),
    ),
    ResultUnavailable: (
        _Answer(409, "result-unavailable"),
        _("Result is unavailable"),
        _(
            "The first request with this idempotency key completed, but its response was not "
            "stored."
        ),
    ),
    KeyExpired: (
        _Answer(409, "key-expired"),
        _("Idempotency-Key has expired"),
        _("A request with this idempotency key completed, and its response is no longer stored."),
    ),
    RequestTooLarge: (
        _Answer(413, "body-too-large", safe_new_key=True),
        _("Request is too large"),
        _("A request with an idempotency key must not be this large. Nothing was changed."),
    ),
    IdempotencyUnavailable: (
        _Answer(503, "unavailable", retryable=True),
        _("Idempotency is unavailable"),
        _(
            "It cannot be determined at the moment whether this request has run before. "
            "Please try again with the same idempotency key."
        ),
    ),
}
"""The answer to each error, with the title and the detail of its problem type."""

for _error_class, (_answer, _title, _detail) in _PROBLEMS.items():
    _problem = Problem(
        status=_answer.status,
        code=f"idempotency-{_answer.code}",
        title=_title,
        detail=_detail,
        retryable=_answer.retryable,
        members={"safe_new_key": _answer.safe_new_key},
    )
    register_problem(_error_class, _problem)

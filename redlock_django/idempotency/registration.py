"""Register the problem types of the errors of idempotency with the core.

Importing any module of this package imports this one first, so they are registered whenever
idempotency is used. All extension points are listed in docs/explanation/architecture.md.
"""

from __future__ import annotations

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
    TooManyWaiters,
)
from redlock_django.web.answers import Problem, register_problem
from redlock_django.web.answers import gettext_noop as _


class _Refusal(NamedTuple):
    """The answer to an error.

    `retryable` is whether the client may send the request again with the same key, `new_key`
    whether it may with another one: not if the first request may have taken effect.
    """

    error: type[IdempotencyRefused]
    status: int
    code: str
    retryable: bool
    new_key: bool
    title: str
    detail: str


_REFUSALS = [
    _Refusal(
        KeyMissing, 400, "key-missing", False, True,
        _("Idempotency-Key is missing"),
        _("This operation requires an idempotency key. Nothing was changed."),
    ),
    _Refusal(
        KeyInvalid, 400, "key-invalid", False, True,
        _("Idempotency-Key is invalid"),
        _(
            "An idempotency key must be one string of 1 to 255 printable characters, such as a "
            "UUID. Nothing was changed."
        ),
    ),
    _Refusal(
        KeyUnscoped, 400, "key-unscoped", False, True,
        _("Idempotency-Key has no owner"),
        _("An idempotency key belongs to a user, and no user is logged in. Nothing was changed."),
    ),
    _Refusal(
        KeyReused, 422, "key-reused", False, False,
        _("Idempotency-Key is already used"),
        _("This idempotency key was used for a different request."),
    ),
    _Refusal(
        KeyInFlight, 409, "key-in-flight", True, False,
        _("A request is outstanding for this Idempotency-Key"),
        _("The first request with this idempotency key is still running."),
    ),
    _Refusal(
        TooManyWaiters, 503, "too-many-waiters", True, False,
        _("Too many requests are waiting"),
        _(
            "The first request with this idempotency key is still running. "
            "Please try again with the same idempotency key."
        ),
    ),
    _Refusal(
        OutcomeUncertain, 409, "outcome-uncertain", False, False,
        _("Outcome is uncertain"),
        _(
            "The first request with this idempotency key was interrupted, and it is not known "
            "whether it took effect."
        ),
    ),
    _Refusal(
        ResultUnavailable, 409, "result-unavailable", False, False,
        _("Result is unavailable"),
        _(
            "The first request with this idempotency key completed, but its response was not "
            "stored."
        ),
    ),
    _Refusal(
        KeyExpired, 409, "key-expired", False, False,
        _("Idempotency-Key has expired"),
        _("A request with this idempotency key completed, and its response is no longer stored."),
    ),
    _Refusal(
        RequestTooLarge, 413, "body-too-large", False, True,
        _("Request is too large"),
        _("A request with an idempotency key must not be this large. Nothing was changed."),
    ),
    _Refusal(
        IdempotencyUnavailable, 503, "unavailable", True, False,
        _("Idempotency is unavailable"),
        _(
            "It cannot be determined at the moment whether this request has run before. "
            "Please try again with the same idempotency key."
        ),
    ),
]  # fmt: skip

REFUSALS = tuple(refusal.error for refusal in _REFUSALS)
"""The errors with which idempotency refuses requests."""

for _error, _status, _code, _retryable, _new_key, _title, _detail in _REFUSALS:
    _problem = Problem(
        status=_status,
        code=f"idempotency-{_code}",
        title=_title,
        detail=_detail,
        retryable=_retryable,
        members={"safe_new_key": _new_key},
    )
    register_problem(_error, _problem)

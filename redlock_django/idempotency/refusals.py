"""Why a request with an idempotency key is refused: one table of status, code and text."""

from __future__ import annotations

from redlock_django.web.answers import Problem
from redlock_django.web.answers import gettext_noop as _


def _refusal(
    status: int,
    code: str,
    title: str,
    detail: str,
    *,
    retryable: bool = False,
    new_key: bool = False,
) -> Problem:
    """Return the answer to a refused request.

    `retryable` is whether the client may send the request again with the same key, `new_key`
    whether it may with another one: not if the first request may have taken effect.
    """
    return Problem(
        status=status,
        code=f"idempotency-{code}",
        title=title,
        detail=detail,
        retryable=retryable,
        members={"safe_new_key": new_key},
    )


KEY_MISSING = _refusal(
    400, "key-missing", _("Idempotency-Key is missing"),
    _("This operation requires an idempotency key. Nothing was changed."),
    new_key=True,
)  # fmt: skip
KEY_INVALID = _refusal(
    400, "key-invalid", _("Idempotency-Key is invalid"),
    _("An idempotency key must be one string of 1 to 255 printable characters, such as a UUID. "
      "Nothing was changed."),
    new_key=True,
)  # fmt: skip
KEY_UNSCOPED = _refusal(
    400, "key-unscoped", _("Idempotency-Key has no owner"),
    _("An idempotency key belongs to a user, and no user is logged in. Nothing was changed."),
    new_key=True,
)  # fmt: skip
KEY_REUSED = _refusal(
    422, "key-reused", _("Idempotency-Key is already used"),
    _("This idempotency key was used for a different request."),
)  # fmt: skip
KEY_IN_FLIGHT = _refusal(
    409, "key-in-flight", _("A request is outstanding for this Idempotency-Key"),
    _("The first request with this idempotency key is still running."),
    retryable=True,
)  # fmt: skip
TOO_MANY_WAITERS = _refusal(
    503, "too-many-waiters", _("Too many requests are waiting"),
    _("The first request with this idempotency key is still running. Please try again with the "
      "same idempotency key."),
    retryable=True,
)  # fmt: skip
OUTCOME_UNCERTAIN = _refusal(
    409, "outcome-uncertain", _("Outcome is uncertain"),
    _("The first request with this idempotency key was interrupted, and it is not known whether "
      "it took effect."),
)  # fmt: skip
RESULT_UNAVAILABLE = _refusal(
    409, "result-unavailable", _("Result is unavailable"),
    _("The first request with this idempotency key completed, but its response was not stored."),
)  # fmt: skip
KEY_EXPIRED = _refusal(
    409, "key-expired", _("Idempotency-Key has expired"),
    _("A request with this idempotency key completed, and its response is no longer stored."),
)  # fmt: skip
BODY_TOO_LARGE = _refusal(
    413, "body-too-large", _("Request is too large"),
    _("A request with an idempotency key must not be this large. Nothing was changed."),
    new_key=True,
)  # fmt: skip
UNAVAILABLE = _refusal(
    503, "unavailable", _("Idempotency is unavailable"),
    _("It cannot be determined at the moment whether this request has run before. Please try "
      "again with the same idempotency key."),
    retryable=True,
)  # fmt: skip

REFUSALS = tuple(one for one in [*globals().values()] if isinstance(one, Problem))
"""The reasons for which idempotency refuses requests."""

COUNTERS = {
    KEY_IN_FLIGHT.code: "conflicted",
    TOO_MANY_WAITERS.code: "conflicted",
    KEY_REUSED.code: "mismatched",
    OUTCOME_UNCERTAIN.code: "uncertain",
}
"""The counters of requests that are refused because of an earlier request with their key."""

"""The lock that a request with an idempotency key holds while it runs."""

from __future__ import annotations

from redlock_django.locking.lock import Lock


class InFlightLock(Lock):
    """The lock whose holder is the running request of a key; it is never skipped.

    `ON_UNAVAILABLE` does not apply: without this lock it is not known whether the first request is
    still running.
    """

    _strict = True

    # The first resource that is refused has a meaning, and every client has the same order.
    _sorted = tuple

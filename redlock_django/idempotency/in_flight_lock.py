"""The lock that a request with an idempotency key holds while it runs."""

from __future__ import annotations

from typing import Any

from redlock_django.locking.lock import Lock
from redlock_django.locking.parameters import LockParameters, has_parameters_of


class InFlightLock(Lock):
    """The lock whose holder is the running request of a key; it is never skipped.

    `ON_UNAVAILABLE` does not apply: without this lock it is not known whether the first request is
    still running.
    """

    _strict = True

    @has_parameters_of(LockParameters)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # The first resource that is refused has a meaning, and every client has the same order.
        self._parameters.keep_order()

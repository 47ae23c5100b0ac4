"""The app configuration. It connects idempotency to the core.

The core imports nothing of `redlock_django.idempotency`: a site that only locks does not load it.
What the core needs of it before its first use is registered here, as functions that import it.
"""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.core.checks import CheckMessage, register


class RedlockConfig(AppConfig):
    """The app `redlock_django`: one entry in INSTALLED_APPS installs all of it."""

    name = "redlock_django"
    label = "redlock_django"
    verbose_name = "Redlock"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system checks, and what the core needs of idempotency."""
        from redlock_django.checks import (  # noqa: F401 - each registers its checks
            TAG,
            databases,
            deployment,
            masters,
            middleware,
            settings,
            views,
        )
        from redlock_django.locking.counters import register_extension
        from redlock_django.web.request_state import register_attribute

        register(_check_idempotency, TAG)
        register_extension(_load_idempotency)
        register_attribute("idempotency_field", _idempotency_field)


def _check_idempotency(**_: Any) -> list[CheckMessage]:
    from redlock_django.checks.idempotency import check_idempotency

    return check_idempotency()


def _load_idempotency() -> None:
    import redlock_django.idempotency  # noqa: F401 - registers its counters and problem types


def _idempotency_field() -> object:
    """Return the value of `{{ request.idempotency_field }}`."""
    from redlock_django.idempotency.forms import HiddenKey

    return HiddenKey()

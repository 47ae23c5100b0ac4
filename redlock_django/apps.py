"""The app configuration. It connects idempotency to the core.

The core imports nothing of `redlock_django.idempotency`: a site that only locks does not load it.
"""

from __future__ import annotations

from django.apps import AppConfig
from django.conf import settings
from django.utils.functional import SimpleLazyObject


class RedlockConfig(AppConfig):
    """The app `redlock_django`: one entry in INSTALLED_APPS installs all of it."""

    name = "redlock_django"
    label = "redlock_django"
    verbose_name = "Redlock"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system checks, and import the stores that REDLOCK names."""
        from redlock_django.checks import register_checks
        from redlock_django.web import request_attributes

        register_checks()
        # All requests share it, and it is made when a template first uses it.
        request_attributes["idempotency_field"] = SimpleLazyObject(_idempotency_field)
        if getattr(settings, "REDLOCK", None):
            from redlock_django.conf.settings import import_stores

            # Not at the first lock, which may be one of an event loop: all its tasks would wait.
            import_stores()
        if settings.DEBUG:
            from redlock_django.locking.unused_locks import report_unused_locks

            report_unused_locks()


def _idempotency_field() -> object:
    """Return the value of `{{ request.idempotency_field }}`."""
    from redlock_django.idempotency.key import HiddenKey

    return HiddenKey()

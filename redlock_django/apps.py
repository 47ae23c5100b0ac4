"""The app configuration."""

from __future__ import annotations

from django.apps import AppConfig
from django.conf import settings


class RedlockConfig(AppConfig):
    """The app `redlock_django`: one entry in INSTALLED_APPS installs all of it."""

    name = "redlock_django"
    label = "redlock_django"
    verbose_name = "Redlock"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system checks, and import the stores that REDLOCK names."""
        from redlock_django.checks import register_checks

        register_checks()
        if getattr(settings, "REDLOCK", None):
            from redlock_django.conf.settings import import_stores

            # Not at the first lock, which may be one of an event loop: all its tasks would wait.
            import_stores()
        if settings.DEBUG:
            from redlock_django.locking.unused_locks import report_unused_locks

            report_unused_locks()

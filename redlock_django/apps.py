"""The app configuration."""

from __future__ import annotations

from django.apps import AppConfig


class RedlockConfig(AppConfig):
    """The app `redlock_django`: one entry in INSTALLED_APPS installs all of it."""

    name = "redlock_django"
    label = "redlock_django"
    verbose_name = "Redlock"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system checks."""
        from redlock_django import checks  # noqa: F401

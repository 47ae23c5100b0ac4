"""Middleware that changes template responses before they are rendered."""

from __future__ import annotations

from functools import cache
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.utils.module_loading import import_string


@cache
def changes_templates() -> bool:
    """Return whether a middleware of the site has `process_template_response`.

    Django calls it after the view, so a response that was rendered in the view ignores it.
    """
    for path in settings.MIDDLEWARE:
        try:
            middleware = import_string(path)
        except (ImportError, ImproperlyConfigured):
            continue
        if hasattr(middleware, "process_template_response"):
            return True
    return False


def _settings_changed(*, setting: str, **_: Any) -> None:
    if setting == "MIDDLEWARE":
        changes_templates.cache_clear()


setting_changed.connect(_settings_changed, dispatch_uid="redlock_django.web.rendering")

"""Checks of the place of LockMiddleware in `MIDDLEWARE`."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core import checks
from django.core.checks import CheckMessage

from redlock_django.conf.settings import lock_middlewares

_AUTHENTICATION = ".AuthenticationMiddleware"


def check_middleware(**_: Any) -> list[CheckMessage]:
    """Return W006 (LockMiddleware before AuthenticationMiddleware) and W007 (listed twice)."""
    indexes = lock_middlewares()
    if not indexes:
        return []
    messages: list[CheckMessage] = []
    # Compared by name: AuthenticationMiddleware cannot be imported without its app.
    users = [n for n, path in enumerate(settings.MIDDLEWARE) if path.endswith(_AUTHENTICATION)]
    if users and indexes[0] < users[0]:
        messages.append(
            checks.Warning(
                "MIDDLEWARE: LockMiddleware is listed before AuthenticationMiddleware.",
                hint="Move it after AuthenticationMiddleware, so that locks are not held until "
                "sessions are saved.",
                id="redlock_django.W006",
            )
        )
    if len(indexes) > 1:
        messages.append(
            checks.Warning(
                f"MIDDLEWARE: LockMiddleware is listed {len(indexes)} times.",
                hint="Keep only the entry after AuthenticationMiddleware.",
                id="redlock_django.W007",
            )
        )
    return messages

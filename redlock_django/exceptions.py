"""Every exception a user of the app may want to catch, in one place."""

from __future__ import annotations

from django.core.exceptions import ImproperlyConfigured

from redlock_django.engine.errors import (
    AlreadyHeld,
    BadResource,
    LockLost,
    NotAcquired,
    NotHeld,
    QuorumUnreachable,
    RedlockError,
    ResourceLocked,
)


class InvalidRedlock(ImproperlyConfigured):
    """`settings.REDLOCK` cannot work as it is; the message names the alias and the key."""


__all__ = [
    "AlreadyHeld",
    "BadResource",
    "InvalidRedlock",
    "LockLost",
    "NotAcquired",
    "NotHeld",
    "QuorumUnreachable",
    "RedlockError",
    "ResourceLocked",
]

"""Redlock for Django: one request at a time, over N independent Redis masters.

The engine decides, the wire carries, the app asks. Public names are fetched on first use,
so that importing the package in a settings module is safe.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from redlock_django.decorators import lock_resource
    from redlock_django.exceptions import (
        AlreadyHeld,
        BadResource,
        IdempotencyRefused,
        InvalidRedlock,
        LockLost,
        NotAcquired,
        NotHeld,
        QuorumUnreachable,
        RedlockError,
        ResourceLocked,
    )
    from redlock_django.handler import locks
    from redlock_django.holding import hold
    from redlock_django.idempotency.decorators import idempotent
    from redlock_django.idempotency.forms import IdempotentFormMixin
    from redlock_django.idempotency.views import IdempotentMixin
    from redlock_django.locking import Lock, lock
    from redlock_django.resources import resource
    from redlock_django.views import LockResourceMixin

__all__ = [
    "AlreadyHeld",
    "BadResource",
    "IdempotencyRefused",
    "IdempotentFormMixin",
    "IdempotentMixin",
    "InvalidRedlock",
    "Lock",
    "LockLost",
    "LockResourceMixin",
    "NotAcquired",
    "NotHeld",
    "QuorumUnreachable",
    "RedlockError",
    "ResourceLocked",
    "hold",
    "idempotent",
    "lock",
    "lock_resource",
    "locks",
    "resource",
]

_HOMES = {
    "IdempotentFormMixin": "idempotency.forms",
    "IdempotentMixin": "idempotency.views",
    "Lock": "locking",
    "LockResourceMixin": "views",
    "hold": "holding",
    "idempotent": "idempotency.decorators",
    "lock": "locking",
    "lock_resource": "decorators",
    "locks": "handler",
    "resource": "resources",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES.get(name, 'exceptions')}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""Redlock for Django: locks over N independent Redis masters.

Public names are imported when they are first used, so that importing the package in a settings
module is safe.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from redlock_django.exceptions import (
        AlreadyHeld,
        BadName,
        BadResource,
        BadTicket,
        IdempotencyRefused,
        IncompleteBody,
        InvalidRedlock,
        LimitReached,
        LockLost,
        NotAcquired,
        NotHeld,
        QuorumUnreachable,
        RedlockError,
        ResourceLocked,
        StoreUnavailable,
        TicketUsed,
    )
    from redlock_django.idempotency.decorators import IdempotentMixin, idempotent
    from redlock_django.locking.leader import leader
    from redlock_django.locking.lock import Lock, lock
    from redlock_django.locking.reports import counters
    from redlock_django.locking.resume_lock import resume_lock
    from redlock_django.locking.services import locks
    from redlock_django.locking.transaction_lock import transaction_lock
    from redlock_django.web.hold import hold
    from redlock_django.web.lock_resource import lock_resource
    from redlock_django.web.mixins import LockResourceMixin
    from redlock_django.web.name_templates import resource

__all__ = [
    "AlreadyHeld",
    "BadName",
    "BadResource",
    "BadTicket",
    "IdempotencyRefused",
    "IdempotentMixin",
    "IncompleteBody",
    "InvalidRedlock",
    "LimitReached",
    "Lock",
    "LockLost",
    "LockResourceMixin",
    "NotAcquired",
    "NotHeld",
    "QuorumUnreachable",
    "RedlockError",
    "ResourceLocked",
    "StoreUnavailable",
    "TicketUsed",
    "counters",
    "hold",
    "idempotent",
    "leader",
    "lock",
    "lock_resource",
    "locks",
    "resource",
    "resume_lock",
    "transaction_lock",
]

_MODULES = {
    "IdempotentMixin": "idempotency.decorators",
    "Lock": "locking.lock",
    "LockResourceMixin": "web.mixins",
    "counters": "locking.reports",
    "hold": "web.hold",
    "idempotent": "idempotency.decorators",
    "leader": "locking.leader",
    "lock": "locking.lock",
    "lock_resource": "web.lock_resource",
    "locks": "locking.services",
    "resource": "web.name_templates",
    "resume_lock": "locking.resume_lock",
    "transaction_lock": "locking.transaction_lock",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'exceptions')}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

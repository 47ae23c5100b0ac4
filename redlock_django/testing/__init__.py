"""Helpers for testing applications that use locks. Production code imports nothing from here.

Importing this package imports neither Django nor redis: each name is imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from redlock_django.testing.lock_states import (
        assert_locked,
        assert_not_locked,
        held_elsewhere,
        lose_lock,
    )
    from redlock_django.testing.masters import LocalMaster, local_masters
    from redlock_django.testing.override import memory_masters, real_masters

__all__ = [
    "LocalMaster",
    "assert_locked",
    "assert_not_locked",
    "held_elsewhere",
    "local_masters",
    "lose_lock",
    "memory_masters",
    "real_masters",
]

_MODULES = {
    "LocalMaster": "redlock_django.testing.masters",
    "assert_locked": "redlock_django.testing.lock_states",
    "assert_not_locked": "redlock_django.testing.lock_states",
    "held_elsewhere": "redlock_django.testing.lock_states",
    "local_masters": "redlock_django.testing.masters",
    "lose_lock": "redlock_django.testing.lock_states",
    "memory_masters": "redlock_django.testing.override",
    "real_masters": "redlock_django.testing.override",
}


def __getattr__(name: str) -> object:
    try:
        module = _MODULES[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

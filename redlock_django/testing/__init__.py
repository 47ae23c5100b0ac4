"""What tests of an application that uses locks need; nothing here is imported in production.

Importing this package imports neither Django nor redis: each name is fetched on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from redlock_django.testing.masters import LocalMaster, local_masters

__all__ = ["LocalMaster", "local_masters"]

_HOMES = {
    "LocalMaster": "redlock_django.testing.masters",
    "local_masters": "redlock_django.testing.masters",
}


def __getattr__(name: str) -> object:
    try:
        home = _HOMES[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""Ask a store once what it holds and how its servers are; an inspection asks several questions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from redlock_django.backends.base import BaseBackend
    from redlock_django.backends.inspection.results import HeldLocks, ServerHealth


def page(backend: BaseBackend, **options: Any) -> HeldLocks:
    """Return a page of the held locks."""
    with backend.inspect() as inspection:
        return inspection.page(**options)


def health(backend: BaseBackend) -> list[ServerHealth]:
    """Return the health of every server."""
    with backend.inspect() as inspection:
        return inspection.health()

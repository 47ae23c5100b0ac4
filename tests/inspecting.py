"""Ask a store once what it holds and how its servers are; an inspection asks several questions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redlock_django.backends.memory.backend import MemoryBackend
from redlock_django.locking.services import locks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redlock_django.backends.base import BaseBackend
    from redlock_django.backends.inspection.results import Freed, HeldLocks, ServerHealth


def held(backend: BaseBackend, **options: Any) -> HeldLocks:
    """Return the held locks."""
    with backend.inspect() as inspection:
        return inspection.held(**options)


def look(backend: BaseBackend, resources: Sequence[str]) -> HeldLocks:
    """Return what is known of these resources."""
    with backend.inspect() as inspection:
        return inspection.look(resources)


def free(backend: BaseBackend, resource: str, fingerprint: str | None = None) -> Freed:
    """Free a lock that another client holds: the one with this fingerprint, None for any."""
    with backend.inspect() as inspection:
        return inspection.free(resource, fingerprint)


def is_free(resource: str) -> bool:
    """Return whether no client holds a lock in the memory of this process."""
    backend = locks["default"].backend
    assert isinstance(backend, MemoryBackend)
    return backend.masters[0].keyspace.get(backend.deployment.lock(resource)) is None


def health(backend: BaseBackend) -> list[ServerHealth]:
    """Return the health of every server."""
    with backend.inspect() as inspection:
        return inspection.health()

"""The registry of all leases that this process holds, by backend, resource and owner.

The owner is the task or thread that acquired the lease. References are weak: a lease whose
`Lock` objects have been garbage-collected is not in the registry, and is not renewed.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING

from redlock_django.locking.handler import locks

if TYPE_CHECKING:
    from redlock_django.backends.base import BaseBackend
    from redlock_django.locking.held_lease import HeldLease, RegistryKey

_held_leases: weakref.WeakValueDictionary[RegistryKey, HeldLease] = weakref.WeakValueDictionary()


def register(held_lease: HeldLease, resources: Iterable[str]) -> None:
    """Add a lease that the running task or thread has acquired for these resources."""
    owner = _current_owner()
    held_lease.registry_keys = [(held_lease.backend, resource, owner) for resource in resources]
    for key in held_lease.registry_keys:
        _held_leases[key] = held_lease


def unregister(held_lease: HeldLease) -> None:
    """Remove a lease; does nothing if it has been removed before."""
    for key in held_lease.registry_keys:
        _held_leases.pop(key, None)


def leases_of_caller(backend: BaseBackend, resources: Iterable[str]) -> dict[str, HeldLease]:
    """Return those of the resources that the running task or thread holds, with their leases.

    The key has the backend and not the alias: locks under other settings do not count.
    """
    owner = _current_owner()
    found = {resource: _held_leases.get((backend, resource, owner)) for resource in resources}
    return {
        resource: held_lease
        for resource, held_lease in found.items()
        if held_lease is not None and held_lease.remaining()
    }


def held_leases(resource: str, using: str = "default") -> list[HeldLease]:
    """Return the leases of a resource that this process holds, in any thread or task."""
    backend = locks[using].backend
    return [
        held_lease
        for key, held_lease in list(_held_leases.items())
        if key[:2] == (backend, resource) and held_lease.remaining()
    ]


def _current_owner() -> object:
    try:
        return asyncio.current_task() or threading.current_thread()
    except RuntimeError:
        return threading.current_thread()

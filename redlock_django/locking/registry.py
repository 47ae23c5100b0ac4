"""The registry of all leases that this process holds, by backend, resource and owner.

The owner is the task or thread that acquired the lease. References are weak: a lease whose
`Lock` objects have been garbage-collected is not in the registry, and is not renewed.

A thread may serve many tasks, one call after the other: asgiref runs the sync code of all of them
in one thread. So a lease that a thread acquired belongs to the caller only if it was acquired in
the caller's context (`contextvars`), and in a call of `sync_to_async` that is still running. The
context alone does not suffice, because a new task begins with a copy of its parent's.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import weakref
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from types import FrameType
from typing import TYPE_CHECKING

from asgiref.sync import SyncToAsync

from redlock_django.locking.handler import locks

if TYPE_CHECKING:
    from redlock_django.backends.base import BaseBackend
    from redlock_django.locking.held_lease import HeldLease, RegistryKey

_held_leases: weakref.WeakValueDictionary[RegistryKey, HeldLease] = weakref.WeakValueDictionary()

_acquired_here: ContextVar[tuple[weakref.ref[HeldLease], ...]] = ContextVar(
    "redlock_acquired_here", default=()
)
"""The leases that were acquired in this context and have not ended."""


def register(held_lease: HeldLease, resources: Iterable[str]) -> None:
    """Add a lease that the running task or thread has acquired for these resources."""
    owner = _current_owner()
    held_lease.call = next(_running_calls(), None)
    held_lease.registry_keys = [(held_lease.backend, resource, owner) for resource in resources]
    for key in held_lease.registry_keys:
        _held_leases[key] = held_lease
    _acquired_here.set((*_unended(), weakref.ref(held_lease)))


def unregister(held_lease: HeldLease) -> None:
    """Remove a lease; does nothing if it has been removed before."""
    for key in held_lease.registry_keys:
        if _held_leases.get(key) is held_lease:  # not another one that the owner acquired since
            _held_leases.pop(key, None)
    _acquired_here.set(tuple(ref for ref in _unended() if ref() is not held_lease))


def disown(held_lease: HeldLease) -> None:
    """Stop finding a lease for the task or thread that acquired it; it stays registered."""
    keys, owner = held_lease.registry_keys, object()
    unregister(held_lease)
    held_lease.registry_keys = [(backend, resource, owner) for backend, resource, _ in keys]
    for key in held_lease.registry_keys:
        _held_leases[key] = held_lease


def leases_of_caller(backend: BaseBackend, resources: Iterable[str]) -> dict[str, HeldLease]:
    """Return those of the resources that the running task or thread holds, with their leases.

    The key has the backend and not the alias: locks under other settings do not count.
    """
    owner = _current_owner()
    found = {resource: _held_leases.get((backend, resource, owner)) for resource in resources}
    return {
        resource: held_lease
        for resource, held_lease in found.items()
        if held_lease is not None
        and _belongs_to_caller(held_lease, owner)
        and held_lease.remaining()
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


def _unended() -> Iterator[weakref.ref[HeldLease]]:
    for reference in _acquired_here.get():
        held_lease = reference()
        if held_lease is not None and not held_lease.ended:
            yield reference


def _belongs_to_caller(held_lease: HeldLease, owner: object) -> bool:
    """Return whether the caller, of which `owner` is the task or thread, acquired a lease."""
    if isinstance(owner, asyncio.Task):
        return True
    if all(reference() is not held_lease for reference in _acquired_here.get()):
        return False
    return held_lease.call is None or any(held_lease.call is call for call in _running_calls())


def _running_calls() -> Iterator[object]:
    """Yield what identifies each unfinished call of `sync_to_async` in this thread, latest first.

    There are several if sync code waits in `async_to_sync` for more sync code. asgiref itself
    remembers only the call that began last, which may be over.
    """
    if not hasattr(SyncToAsync.threadlocal, "task_context"):
        return
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code is SyncToAsync.thread_handler.__code__:
            yield frame.f_locals["task_context"]
        frame = frame.f_back

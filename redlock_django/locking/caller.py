"""The caller: which leases a task or thread holds, and which transactions are open around it.

All leases that this process holds are found by backend and resource. The owner is the task or
thread that acquired the lease. References are weak: a lease whose `Lock` objects have been
garbage-collected is not found, and is not renewed.

A thread may serve many tasks, one call after the other: asgiref runs the sync code of all of them
in one thread. So a lease that a thread acquired belongs to the caller only if it was acquired in
the caller's context (`contextvars`), and in a call of `sync_to_async` that still waits for it.
The context alone does not suffice, because a new task begins with a copy of its parent's.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from types import FrameType, MappingProxyType
from typing import TYPE_CHECKING, Any

from asgiref.sync import AsyncToSync, SyncToAsync
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from redlock_django.engine.protocol.slots import name_and_slot, name_of
from redlock_django.locking.event_loops import (
    finish_despite_cancellation,
    first_caller,
    has_left_open,
    has_sync_caller,
    running_loop,
)

if TYPE_CHECKING:
    from redlock_django.backends.base import BaseBackend
    from redlock_django.locking.lease import HeldLease

Key = tuple["BaseBackend", str]
"""The key of a held lease: its backend and a resource."""


class Entry(weakref.ref["HeldLease"]):
    """A weak reference to a held lease, with the keys under which it is found.

    It has no keys any more once the lease was released.
    """

    __slots__ = ("keys",)
    keys: tuple[Key, ...]


_held_leases: dict[Key, Entry] = {}
"""The last lease of each resource that this process has acquired and not released."""

_acquired_here: ContextVar[Mapping[Key, Entry]] = ContextVar(
    "redlock_acquired_here", default=MappingProxyType({})
)
"""The leases that were acquired in this context, and some that have been released since.

A copy of the context shares the value, so the value is replaced and never changed.
"""

_storage = getattr(getattr(connections, "_connections", None), "_storage", None)
_of_threads = _storage if isinstance(_storage, threading.local) else None
"""Where asgiref keeps the connections of the running thread if it runs no loop."""

_threads_of_async_code = SyncToAsync.threadlocal
"""Has a `task_context` in each thread in which `sync_to_async` has ever run sync code."""


def register(held_lease: HeldLease, resources: Iterable[str]) -> None:
    """Add a lease that the running task or thread has acquired for these resources."""
    if "task_context" in _threads_of_async_code.__dict__:
        held_lease.call = next(_running_calls(), None)
    held_lease.owner = _current_owner()
    backend = held_lease.backend
    if (lease := held_lease.lease).limit > 1:
        resources = (*resources, _slot_key(*name_and_slot(lease.resources[0])))
    entry = Entry(held_lease, _forget)
    entry.keys = tuple([(backend, resource) for resource in resources])
    # An interrupt may strike between any two lines, and is followed by `unregister`.
    held_lease.entry = entry
    added = dict.fromkeys(entry.keys, entry)
    _held_leases.update(added)
    here = _acquired_here.get()
    if len(here) > 2 * len(_held_leases):  # released in other contexts
        here = {key: known for key, known in here.items() if known.keys}
    _acquired_here.set({**here, **added} if here else added)


def unregister(held_lease: HeldLease) -> None:
    """Remove a lease; does nothing if it has been removed before."""
    entry: Entry | None = held_lease.entry
    if entry is None:
        return
    keys, here = entry.keys, _acquired_here.get()
    _forget(entry)
    held_lease.entry = None  # which would be called when the lease is garbage-collected
    if here:
        left = dict(here)
        for key in keys:
            if left.get(key) is entry:
                del left[key]
        _acquired_here.set(left)


def _forget(entry: Entry) -> None:
    """Remove a lease that was released or garbage-collected."""
    for key in entry.keys:
        # Not another one that the owner acquired since.
        if _held_leases.get(key) is entry:
            _held_leases.pop(key, None)
    entry.keys = ()


def disown(held_lease: HeldLease) -> None:
    """Stop finding a lease for the task or thread that acquired it; it stays registered."""
    held_lease.owner = object()


def leases_of_caller(backend: BaseBackend, resources: Iterable[str]) -> dict[str, HeldLease]:
    """Return the leases that the running task or thread has not released, by resource.

    A lease that was lost is one of them until it is released, although another client, also in this
    process, may hold the resource now. The key has the backend and not the alias: locks under other
    settings do not count.
    """
    here = _acquired_here.get()
    if not (here or (_held_leases and running_loop() is not None)):
        return {}  # the lease of a thread belongs to a caller in the same context only
    found: dict[str, HeldLease] = {}
    owner: object = None
    for resource in resources:
        key = (backend, resource)
        entries = [entry for entry in (here.get(key), _held_leases.get(key)) if entry is not None]
        for entry in entries:
            owner = owner or _current_owner()
            held_lease = entry()
            if held_lease is not None and _belongs_to_caller(held_lease, owner, here):
                found[resource] = held_lease
                break
    return found


def held_leases(backend: BaseBackend, resource: str) -> list[HeldLease]:
    """Return the leases of a resource that this process holds, in any thread or task.

    Those of a name with a limit are its slots.
    """
    # A copy, made in one step: other threads acquire and release meanwhile.
    entries = [
        entry
        for (store, key), entry in list(_held_leases.items())
        if store is backend and name_of(key) == resource
    ]
    found = dict.fromkeys(entry() for entry in entries)  # the last slot of a name has two keys
    return [held_lease for held_lease in found if held_lease and held_lease.seconds_left()]


def _slot_key(name: str, slot: int) -> str:
    """Return the key of a slot: the name itself is the key of the last of them to be acquired."""
    return f"{name}[{slot}]"


def _current_owner() -> object:
    loop = running_loop()
    task = None if loop is None else asyncio.current_task(loop)
    return threading.current_thread() if task is None else first_caller(task)


def _belongs_to_caller(held_lease: HeldLease, owner: object, here: Mapping[Key, Entry]) -> bool:
    """Return whether the caller, a task or thread `owner`, acquired a lease.

    A thread has acquired it in the caller's context, where it is one of those `here`.
    """
    if held_lease.owner is not owner or held_lease.entry is None or held_lease.inherited:
        return False
    if isinstance(owner, asyncio.Task):
        return True
    is_here = any(here.get(key) is held_lease.entry for key in held_lease.entry.keys)
    return is_here and any(held_lease.call is call for call in _running_calls())


def _running_calls() -> Iterator[object]:
    """Yield each unfinished call that waits for the caller, latest first.

    A call of `sync_to_async` is identified by a list of asgiref's, and sync code outside of any by
    None. Several calls wait for the caller if sync code waits in `async_to_sync` for more sync
    code. They do not wait for a child task that is created there, so the calls of a child task end
    with its own. asgiref itself remembers only the call that began last, which may be over.
    """
    call: object = None
    if "task_context" in _threads_of_async_code.__dict__:
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            if frame.f_code is SyncToAsync.thread_handler.__code__:
                call = frame.f_locals["task_context"]
                yield call
            elif frame.f_code is AsyncToSync.__call__.__code__ and call is not None:
                if not _awaits(frame.f_locals.get("awaitable"), call):
                    return
                call = None
            frame = frame.f_back
    if call is None:
        yield None


def _awaits(awaited: object, call: object) -> bool:
    """Return whether a coroutine waits for a call of `sync_to_async` itself, not in another task.

    False if that is not certain: what an iterator or a future waits for cannot be seen.
    """
    while awaited is not None:
        frame: FrameType | None = getattr(awaited, "cr_frame", None)
        if frame is not None and frame.f_code is SyncToAsync.__call__.__code__:
            return frame.f_locals.get("task_context") is call
        if frame is not None and frame.f_code is finish_despite_cancellation.__code__:
            awaited = frame.f_locals["task"].get_coro()
        else:
            awaited = getattr(awaited, "cr_await", None)
    return False


def _is_of_test(block: Any) -> bool:
    return bool(block._from_testcase)


def is_open(connection: BaseDatabaseWrapper) -> bool:
    """Return whether a transaction is open; that of a test does not count."""
    if connection.connection is None or connection.closed_in_transaction:
        return False
    if connection.in_atomic_block:
        return not any(map(_is_of_test, connection.atomic_blocks[:1]))
    return not connection.autocommit and _has_begun(connection.connection)


def _has_begun(driver: Any) -> bool:
    """Return whether a connection without autocommit has begun a transaction.

    sqlite3 and psycopg know that; with another driver, the answer is yes.
    """
    status = getattr(getattr(driver, "info", None), "transaction_status", True)
    return bool(getattr(driver, "in_transaction", status))


def _is_in_block(connection: BaseDatabaseWrapper) -> bool:
    return not all(map(_is_of_test, connection.atomic_blocks))


def open_transactions(
    counts: Callable[[BaseDatabaseWrapper], bool] = is_open,
) -> list[BaseDatabaseWrapper]:
    """Return the connections whose transaction is open, by an atomic block or without autocommit.

    The transaction of a test does not count: it is never committed.
    """
    connected: list[object]
    if _of_threads is None or running_loop() is not None:
        connected = [*connections.all(initialized_only=True)]
    else:  # every lock asks twice, and this takes a tenth of the time
        connected = [*_of_threads.__dict__.values()]
    found = []
    for connection in connected:
        if (
            isinstance(connection, BaseDatabaseWrapper)  # there may be an object of asgiref's
            and (connection.in_atomic_block or not connection.autocommit)
            and counts(connection)
        ):
            found.append(connection)  # noqa: PERF401 - for one, a comprehension is slower
    return found


def open_blocks() -> list[BaseDatabaseWrapper]:
    """Return the connections inside an atomic block; the blocks around a test do not count."""
    return open_transactions(_is_in_block)


def may_be_open() -> bool:
    """Return whether a transaction may be open around a coroutine, in the thread of its sync code.

    Asking that thread in any case would make every async lock wait for the sync code of other
    tasks.
    """
    return has_sync_caller() or has_left_open(is_open)

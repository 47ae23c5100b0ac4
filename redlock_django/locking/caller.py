"""The caller: which leases a task or thread holds, and which of them its next lock may share.

All leases that this process holds are found by backend and resource. The owner is the task or
thread that acquired the lease. References are weak: a lease whose `Lock` objects have been
garbage-collected is not found, and is not renewed.

A thread may serve many tasks, one call after the other: asgiref runs the sync code of all of them
in one thread. So a lease that a thread acquired belongs to the caller only if it was acquired in
the caller's context (`contextvars`), and in a call of `sync_to_async` that still waits for it.
The context alone does not suffice, because a new task begins with a copy of its parent's.

A lock that is acquired inside an outer lock of its owner shares the lease of that lock, or is
refused (`lease_to_share`).
"""

from __future__ import annotations

import asyncio
import math
import sys
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from types import FrameType, MappingProxyType
from typing import TYPE_CHECKING

from asgiref.sync import AsyncToSync, SyncToAsync

from redlock_django.engine.protocol.slots import name_and_slot, name_of
from redlock_django.exceptions import AlreadyHeld, LockLost, ResourceLocked
from redlock_django.locking.arguments import LockArguments
from redlock_django.locking.event_loops import (
    finish_despite_cancellation,
    first_caller,
    running_loop,
)
from redlock_django.locking.lease import HeldLease
from redlock_django.locking.services import locks

if TYPE_CHECKING:
    from redlock_django.backends.base import BaseBackend
    from redlock_django.engine.validity import Lease

Key = tuple["BaseBackend", str]
"""The key of a held lease: its backend and a resource."""


class Entry(weakref.ref[HeldLease]):
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


def refuse_held(backend: BaseBackend, resources: Iterable[str]) -> None:
    """Raise ResourceLocked if this process holds one of the resources, and surely still does.

    This asks no server. Only for callers that do not wait: a waiter joins the queue. A store inside
    this process is as quick itself. Not for permits: a process seldom holds all slots of a name,
    and one that it does not hold may be free.
    """
    if not (_held_leases and backend.is_shared):
        return
    for resource in resources:
        held_lease = _find(backend, resource)
        if held_lease is None or resource not in held_lease.lease.resources:
            continue  # another slot than the first, which is the lock of that name
        if held_lease.is_confirmed(now := backend.clock()):
            raise ResourceLocked(
                f"{resource}: held by another client",
                resource=resource,
                retry_after=held_lease.lease.started + held_lease.lease.ttl - now,
            )


def confirm(backend: BaseBackend, resources: Iterable[str]) -> None:
    """Note that the servers have just refused these resources: leases of this process are held."""
    for resource in resources:
        if (held_lease := _find(backend, resource)) is not None:
            held_lease.confirmed_at = backend.clock()


def doubt(backend: BaseBackend, resource: str) -> None:
    """Note that a resource was freed by force: ask the servers about it from now on."""
    if (held_lease := _find(backend, name_of(resource))) is not None:
        held_lease.confirmed_at = -math.inf


def held_leases(resource: str, using: str = "default") -> list[HeldLease]:
    """Return the leases of a resource that this process holds, in any thread or task.

    Those of a name with a limit are its slots.
    """
    backend = locks[using].backend
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


def _find(backend: BaseBackend, resource: str) -> HeldLease | None:
    """Return the last lease of a resource that any thread or task has acquired and not released."""
    reference = _held_leases.get((backend, resource))
    return None if reference is None else reference()


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


def refuse_to_retake(held_lease: HeldLease, parameters: LockArguments) -> None:
    """Raise LockLost or AlreadyHeld if what a transaction keeps may not be acquired again."""
    _refuse_lost(held_lease, parameters.names)
    if not held_lease.inherited:
        _refuse_in_min_hold(held_lease, parameters, parameters.names)


def refuse_own(held_lease: HeldLease, parameters: LockArguments) -> None:
    """Raise AlreadyHeld if the Lock object that is to be acquired holds its lease already."""
    if held_lease.seconds_left():
        raise AlreadyHeld(
            f"{parameters.names}: this Lock object holds it already; make another one, with "
            "reentrant=True if it is meant to be nested",
            resource=parameters.names,
        )


def lease_to_share(backend: BaseBackend, parameters: LockArguments) -> HeldLease | None:
    """Return the lease of the caller that its next lock shares; None if it holds none.

    Raises AlreadyHeld if sharing is not allowed or one lease does not have all resources, and
    LockLost if the lease to share was lost.
    """
    found = leases_of_caller(backend, parameters.resources)
    if not found or not (outer := _unlost(found, parameters)):
        return None
    names = ", ".join(outer)
    held_lease, *others = set(outer.values())
    _refuse_in_min_hold(held_lease, parameters, names)
    _refuse_other_limit(held_lease, parameters, names)
    is_kept = held_lease.is_kept
    shares = parameters.reentrant or is_kept
    if not shares or others or set(parameters.resources) - {*held_lease.lease.names}:
        raise AlreadyHeld(
            f"{names}: this task or thread holds it already"
            f"{', until the open transaction has ended' if is_kept else ''}; "
            "lock(..., reentrant=True) nests in one outer lock that holds all the same "
            "resources",
            resource=names,
        )
    return held_lease


def refuse_other_slot(backend: BaseBackend, handed: Lease) -> None:
    """Raise AlreadyHeld if the caller holds another slot of the name of a slot that it takes."""
    for name, held_lease in leases_of_caller(backend, handed.names).items():
        if held_lease.lease.slot != handed.slot and held_lease.seconds_left():
            raise AlreadyHeld(
                f"{name}: this task or thread holds another slot of it, and one at most. Release "
                "that slot first: the ticket is still good",
                resource=name,
            )


def _refuse_other_limit(held_lease: HeldLease, parameters: LockArguments, names: str) -> None:
    """Raise AlreadyHeld if a slot is held where a lock is wanted, or the other way round."""
    outer, inner = held_lease.lease.limit, parameters.limit
    if outer != inner:
        raise AlreadyHeld(
            f"{names}: this task or thread holds it already, with limit={outer}; it holds one slot "
            f"of a name at most, and cannot acquire it with limit={inner}. "
            f"lock(..., limit={outer}, reentrant=True) nests in the outer lock",
            resource=names,
        )


def _unlost(found: dict[str, HeldLease], parameters: LockArguments) -> dict[str, HeldLease]:
    """Return the leases that are held; raise LockLost if one was lost that was to be shared."""
    outer = {}
    for resource, held_lease in found.items():
        if held_lease.seconds_left():
            outer[resource] = held_lease
        elif held_lease.lock_objects() and (parameters.reentrant or held_lease.is_kept):
            _refuse_lost(held_lease, resource)
    return outer


def _refuse_lost(held_lease: HeldLease, names: str) -> None:
    """Raise LockLost if a lease was lost that the caller has not released.

    A lock instead of it would not protect what was done under the lost one.
    """
    held_lease.seconds_left()  # notices that the lease has expired
    if held_lease.loss_reason:
        why = f"the lock was lost: {held_lease.loss_reason}"
        raise LockLost(f"{names}: {why}", resource=names)


def _refuse_in_min_hold(held_lease: HeldLease, parameters: LockArguments, names: str) -> None:
    """Raise AlreadyHeld if sharing this lease would break a promise of `min_hold`."""
    lease = held_lease.lease
    if parameters.min_hold:
        why = "pass min_hold to the outer lock: an inner lock does not prolong it"
    elif held_lease.is_kept and (left := lease.held_for(held_lease.backend.clock)):
        why = f"it was released, and min_hold is over in {left:.3g} s"
    else:
        return
    raise AlreadyHeld(
        f"{names}: this task or thread holds it already; {why}", resource=parameters.names
    )

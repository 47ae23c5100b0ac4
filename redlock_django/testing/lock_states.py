"""Create and assert lock states in tests: `held_elsewhere`, `assert_locked`, `lose_lock`."""

from __future__ import annotations

import json
from collections import defaultdict
from contextlib import AsyncExitStack, ExitStack
from typing import Any

from redlock_django.backends.values import permits
from redlock_django.engine.inspection.holders import Holding
from redlock_django.engine.protocol.slots import name_of
from redlock_django.locking.caller import held_leases
from redlock_django.locking.names import check_resource
from redlock_django.locking.services import locks


class held_elsewhere:  # noqa: N801 - a context manager, used as a function
    """Make another client hold these resources during a `with` or `async with` block.

    With the `limit` of a name, other clients hold all its slots, or so many as `slots` says. The
    locks are not renewed and expire after MAX_TTL. Raises ResourceLocked if a resource is
    already held, QuorumUnreachable, BadResource, InvalidRedlock.
    """

    def __init__(
        self, *resources: str, using: str = "default", limit: int = 1, slots: int | None = None
    ) -> None:
        self.resources = tuple(check_resource(resource) for resource in resources)
        self.using = using
        self.limit = permits(limit, "limit")
        self.slots = limit if slots is None else permits(slots, "slots")
        if self.slots > limit:
            raise ValueError(f"held_elsewhere(): a name with limit={limit} has no {slots} slots")
        if limit > 1 and len(resources) > 1:
            raise ValueError(
                f"held_elsewhere(): limit={limit} needs one name, got {len(resources)}: use one "
                "held_elsewhere() for each"
            )

    def __enter__(self) -> None:
        # Not with a Lock: a lock that this task or thread holds itself is not refused to it.
        backend = locks[self.using].backend
        with ExitStack() as held:
            for _ in range(self.slots):
                held.callback(backend.release, backend.acquire(*self._arguments()))
            self._held = held.pop_all()

    def __exit__(self, *error: object) -> None:
        self._held.close()

    async def __aenter__(self) -> None:
        backend = locks[self.using].backend
        async with AsyncExitStack() as held:
            for _ in range(self.slots):
                lease = await backend.aacquire(*self._arguments())
                held.push_async_callback(backend.arelease, lease)
            self._aheld = held.pop_all()

    async def __aexit__(self, *error: object) -> None:
        await self._aheld.aclose()

    def _arguments(self) -> tuple[Any, ...]:
        """Return what the store is asked for."""
        longest = locks[self.using].settings.max_ttl
        holder: dict[str, Any] = {"host": "elsewhere", "app": "held_elsewhere"}
        if self.limit == 1:
            return self.resources, longest, 0, json.dumps(holder)
        return self.resources, longest, 0, json.dumps(holder | {"limit": self.limit}), self.limit


def assert_locked(*resources: str, using: str = "default", slots: int | None = None) -> None:
    """Fail unless each of these resources is held, by any client, on a majority of the masters.

    A name with a limit is held if one of its slots is; `slots` is how many of them must be.
    """
    held = _held(resources, using)
    missing = [resource for resource in resources if resource not in held]
    assert not missing, f"not locked: {', '.join(missing)}"
    for resource, holdings in held.items():
        many = len(holdings)
        assert slots in (None, many), f"{resource}: {many} slots are held, not {slots}"


def assert_not_locked(*resources: str, using: str = "default") -> None:
    """Fail if one of these resources, or a slot of it, is held on a majority of the masters."""
    held = _held(resources, using)
    assert not held, "locked: " + "; ".join(
        f"{holding.label} by {dict(holding.holder) or 'another client'}"
        for holdings in held.values()
        for holding in holdings
    )


def lose_lock(*resources: str, using: str = "default") -> None:
    """Make the holders of these resources in this process lose their locks.

    It has the effects of any lost lock, immediately: `ensure_held()` raises, the signal is sent,
    the commit guard rolls back. Of a name with a limit, all slots of this process are lost. Fails
    if a resource is not held in this process.
    """
    for resource in resources:
        found = held_leases(locks[using].backend, resource)
        assert found, f"{resource} is not held in this process"
        for held_lease in found:
            held_lease.mark_lost("lose_lock() was called")


def _held(resources: tuple[str, ...], using: str) -> dict[str, list[Holding]]:
    """Return the locks on each of these names that is held."""
    # Not by `who_holds`, which refuses to hold up a loop: a test's own loop may wait.
    backend = locks[using].backend
    names = [check_resource(resource) for resource in resources]
    slots: list[str] = []
    with backend.inspect() as inspection:
        for name in names if backend.has_permits else ():
            listed = inspection.listing().names
            slots += sorted(slot for slot in listed if slot != name and name_of(slot) == name)
        found = inspection.look([*names, *slots])
    many = len(found.servers)
    assert found.complete, f"only {many - len(found.silent)} of {many} masters answered"
    held: dict[str, list[Holding]] = defaultdict(list)
    for one in found.locks:
        if one.has_quorum:
            held[one.name].append(one)
    return held

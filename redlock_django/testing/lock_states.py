"""Create and assert lock states in tests: `held_elsewhere`, `assert_locked`, `lose_lock`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from redlock_django.backends.inspection.contract import Inspection
from redlock_django.engine.inspection.holders import Holding
from redlock_django.engine.protocol.slots import MOST_SLOTS, name_of
from redlock_django.engine.validity import Lease
from redlock_django.locking.names import check_resource
from redlock_django.locking.registry import held_leases
from redlock_django.locking.services import locks

_OTHER_HOLDER = '{"host":"elsewhere","app":"held_elsewhere"}'


class held_elsewhere:  # noqa: N801 - a context manager, used as a function
    """Make another client hold these resources during a `with` or `async with` block.

    With a `limit`, so many other clients hold the name, which is all that may. The lock is not
    renewed and expires after MAX_TTL. Raises ResourceLocked if a resource is already held,
    QuorumUnreachable, BadResource, InvalidRedlock.
    """

    def __init__(self, *resources: str, using: str = "default", limit: int = 1) -> None:
        self.resources = tuple(check_resource(resource) for resource in resources)
        self.using = using
        self.limit = limit

    # Not with a Lock: a lock that this task or thread holds itself is not refused to it.

    def __enter__(self) -> None:
        self._backend = backend = locks[self.using].backend
        self._leases: list[Lease] = []
        try:
            for _ in range(self.limit):
                self._leases.append(backend.acquire(*self._arguments()))
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *error: object) -> None:
        for lease in self._leases:
            self._backend.release(lease)

    async def __aenter__(self) -> None:
        self._backend = backend = locks[self.using].backend
        self._leases = []
        try:
            for _ in range(self.limit):
                self._leases.append(await backend.aacquire(*self._arguments()))
        except BaseException:
            await self.__aexit__()
            raise

    async def __aexit__(self, *error: object) -> None:
        for lease in self._leases:
            await self._backend.arelease(lease)

    def _arguments(self) -> tuple[Any, ...]:
        longest = locks[self.using].settings.max_ttl
        arguments = self.resources, longest, 0, _OTHER_HOLDER
        return arguments if self.limit == 1 else (*arguments, self.limit)


def assert_locked(*resources: str, using: str = "default") -> None:
    """Fail unless each of these resources is held, by any client, on a majority of the masters.

    A name with a limit is held if one of its slots is.
    """
    held = _held(resources, using)
    missing = [resource for resource in resources if resource not in held]
    assert not missing, f"not locked: {', '.join(missing)}"


def assert_not_locked(*resources: str, using: str = "default") -> None:
    """Fail if one of these resources is held on a majority of the masters."""
    held = _held(resources, using)
    assert not held, "locked: " + "; ".join(
        f"{holding.resource} by {dict(holding.holder) or 'another client'}"
        for holding in held.values()
    )


def lose_lock(*resources: str, using: str = "default") -> None:
    """Make the holders of these resources in this process lose their locks.

    It has the effects of any lost lock, immediately: `ensure_held()` raises, the signal is sent,
    the commit guard rolls back. Fails if a resource is not held in this process. Of the slots of
    a name with a limit, the one is lost that this process acquired last.
    """
    for resource in resources:
        found = held_leases(resource, using)
        assert found, f"{resource} is not held in this process"
        for held_lease in found:
            held_lease.mark_lost("lose_lock() was called")


def _held(resources: tuple[str, ...], using: str) -> dict[str, Holding]:
    backend = locks[using].backend
    names = [check_resource(name) for name in resources]
    # Not by `who_holds`, which refuses to hold up a loop: a test's own loop may wait.
    with backend.inspect() as inspection:
        slots = list(_slots(inspection, names)) if backend.has_permits else []
        found = inspection.look([*names, *slots])
    many = len(found.servers)
    assert found.complete, f"only {many - len(found.silent)} of {many} masters answered"
    return {name_of(one.resource): one for one in found.locks if one.has_quorum}


def _slots(inspection: Inspection, names: list[str]) -> Iterator[str]:
    """Yield the slots of these names that are held, apart from each first, which is the name."""
    for name in names:
        listed = inspection.listing(search=f"{name}[", most=MOST_SLOTS)
        yield from (resource for resource in listed.left if name_of(resource) == name)

"""Create and assert lock states in tests: `held_elsewhere`, `assert_locked`, `lose_lock`."""

from __future__ import annotations

from redlock_django.engine.inspection.holders import Holding
from redlock_django.engine.validity import Lease
from redlock_django.locking.names import check_resource
from redlock_django.locking.registry import held_leases
from redlock_django.locking.services import locks

_OTHER_HOLDER = '{"host":"elsewhere","app":"held_elsewhere"}'


class held_elsewhere:  # noqa: N801 - a context manager, used as a function
    """Make another client hold these resources during a `with` or `async with` block.

    The lock is not renewed and expires after MAX_TTL. Raises ResourceLocked if a resource is
    already held, QuorumUnreachable, BadResource, InvalidRedlock.
    """

    def __init__(self, *resources: str, using: str = "default") -> None:
        self.resources = tuple(check_resource(resource) for resource in resources)
        self.using = using

    def __enter__(self) -> None:
        # Not with a Lock: a lock that this task or thread holds itself is not refused to it.
        self._backend = locks[self.using].backend
        longest = locks[self.using].settings.max_ttl
        self._lease: Lease = self._backend.acquire(self.resources, longest, 0, _OTHER_HOLDER)

    def __exit__(self, *error: object) -> None:
        self._backend.release(self._lease)

    async def __aenter__(self) -> None:
        self._backend = locks[self.using].backend
        longest = locks[self.using].settings.max_ttl
        self._lease = await self._backend.aacquire(self.resources, longest, 0, _OTHER_HOLDER)

    async def __aexit__(self, *error: object) -> None:
        await self._backend.arelease(self._lease)


def assert_locked(*resources: str, using: str = "default") -> None:
    """Fail unless each of these resources is held, by any client, on a majority of the masters."""
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
    the commit guard rolls back. Fails if a resource is not held in this process.
    """
    for resource in resources:
        found = held_leases(resource, using)
        assert found, f"{resource} is not held in this process"
        for held_lease in found:
            held_lease.mark_lost("lose_lock() was called")


def _held(resources: tuple[str, ...], using: str) -> dict[str, Holding]:
    backend = locks[using].backend
    # Not by `who_holds`, which refuses to hold up a loop: a test's own loop may wait.
    found = backend.look([check_resource(name) for name in resources])
    many = len(found.servers)
    assert found.complete, f"only {many - len(found.silent)} of {many} masters answered"
    return {one.resource: one for one in found.locks if one.has_quorum}

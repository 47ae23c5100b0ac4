"""Who holds what, made and told on purpose: `held_elsewhere`, `assert_locked`, `lose_lock`."""

from __future__ import annotations

from types import TracebackType

from redlock_django.engine.holders import Holding
from redlock_django.engine.validity import Lease
from redlock_django.locking.handler import locks
from redlock_django.locking.names import check_resource
from redlock_django.locking.registry import held_leases

_SOMEBODY = '{"host":"elsewhere","app":"held_elsewhere"}'


class held_elsewhere:  # noqa: N801 - a context manager, used as a function
    """Let somebody else hold these resources while the block runs; `with` and `async with`.

    Not renewed: it runs out after MAX_TTL. Raises ResourceLocked if they are held already,
    QuorumUnreachable, BadResource, InvalidRedlock.
    """

    def __init__(self, *resources: str, using: str = "default") -> None:
        self.resources = tuple(check_resource(resource) for resource in resources)
        self.using = using

    def __enter__(self) -> None:
        # Not by a Lock: what this very task or thread holds cannot be refused to it.
        self._backend = locks[self.using].backend
        longest = locks[self.using].settings.max_ttl
        self._lease: Lease = self._backend.acquire(self.resources, longest, 0, _SOMEBODY)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._backend.release(self._lease)

    async def __aenter__(self) -> None:
        self._backend = locks[self.using].backend
        longest = locks[self.using].settings.max_ttl
        self._lease = await self._backend.aacquire(self.resources, longest, 0, _SOMEBODY)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._backend.arelease(self._lease)


def assert_locked(*resources: str, using: str = "default") -> None:
    """Fail unless each of these resources is held, by whomever, on a majority of the masters."""
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
    """Take these resources away from whoever holds them in this process.

    The holder learns of it as of any lost lock, at once: `ensure_held()` raises, the signal
    is sent, the commit guard rolls back. Fails if nobody in this process holds one of them.
    """
    for resource in resources:
        found = held_leases(resource, using)
        assert found, f"nobody in this process holds {resource}"
        for held_lease in found:
            held_lease.mark_lost("a test took it away")


def _held(resources: tuple[str, ...], using: str) -> dict[str, Holding]:
    backend = locks[using].backend
    # Not by `who_holds`, which refuses to hold up a loop: a test's own loop may wait.
    found = backend.look([check_resource(name) for name in resources])
    many = len(found.servers)
    assert found.complete, f"only {many - len(found.silent)} of {many} masters answered"
    return {one.resource: one for one in found.locks if one.has_quorum}

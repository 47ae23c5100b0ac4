"""The hand-on of a held lock: what is checked before, what is sent, what ends with it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from redlock_django.engine.validity import Lease, with_drift
from redlock_django.exceptions import AlreadyHeld, InvalidRedlock, LockLost
from redlock_django.locking import reports
from redlock_django.locking.arguments import LockArguments
from redlock_django.locking.services import locks
from redlock_django.locking.tickets import Passage

if TYPE_CHECKING:
    from redlock_django.locking.lease import HeldLease


class LeaseSource(Protocol):
    """The source of the lease of a lock: the store, or a ticket."""

    def acquire(
        self, resources: tuple[str, ...], ttl: float, wait: float, holder: str, limit: int = 1
    ) -> Lease:
        """Return the lease; raise the error of a lock that was not acquired."""

    async def aacquire(
        self, resources: tuple[str, ...], ttl: float, wait: float, holder: str, limit: int = 1
    ) -> Lease:
        """Return as `acquire` does, on the running loop."""


class Handing:
    """The hand-on of one lease, which is held, by a lock: what `hand_on` is called with.

    `handed` is the lease that it returned.
    Raises AlreadyHeld if other locks share the lease: their code would go on without it. That of a
    decorator does not count, since it does no more than release it. Raises InvalidRedlock where
    a lock cannot be handed on, and ValueError for a bad `ttl`.
    """

    def __init__(
        self,
        lock: object,
        held_lease: HeldLease,
        parameters: LockArguments,
        ttl: float | timedelta | None,
    ) -> None:
        self._service = service = locks[parameters.using]
        self.backend = held_lease.backend
        self.held_lease = held_lease
        names = parameters.names
        if not self.backend.hands_on:
            raise InvalidRedlock(
                f"REDLOCK[{parameters.using!r}]: its BACKEND cannot hand a lock on. Leave out "
                "transfer() and acquire the lock in the task, or use another alias"
            )
        others = [one for one in held_lease.lock_objects() if one is not lock]
        if any(not one.is_of_call for one in others):
            raise AlreadyHeld(
                f"{names}: another lock() of this task or thread shares this lock, and would go on "
                "without it. Call transfer() on the outer one, after the inner one was released",
                resource=names,
            )
        settings = service.settings
        seconds = settings.store.max_ttl if ttl is None else settings.check_ttl(ttl)
        left = held_lease.lease.held_for(self.backend.clock)
        self._passage = Passage()
        self.lease = held_lease.lease
        self.token = self._passage.token
        self.ttl = max(seconds, with_drift(left))
        self.holder = parameters.giver_json(left)
        self.handed: Lease | None = None

    def __repr__(self) -> str:
        return f"<Handing of {', '.join(self.lease.names)!r}>"

    def hand_on(self) -> None:
        """Hand the lease on in the store. Raises LockLost, StoreUnavailable."""
        while True:
            try:
                self.handed = self.backend.hand_on(self.lease, self.token, self.ttl, self.holder)
                return
            except LockLost:
                if not self._was_extended():
                    raise

    async def ahand_on(self) -> None:
        """Hand the lease on as `hand_on` does, on the running loop."""
        while True:
            try:
                self.handed = await self.backend.ahand_on(
                    self.lease, self.token, self.ttl, self.holder
                )
                return
            except LockLost:
                if not self._was_extended():
                    raise

    def _was_extended(self) -> bool:
        """Return whether another caller has extended the lease meanwhile: it is not over yet."""
        before, self.lease = self.lease, self.held_lease.lease
        return self.lease.until > before.until and self.held_lease.seconds_left() > 0

    def ticket(self) -> str:
        """End the hold, since the lease was handed on; return the ticket."""
        held_lease, handed = self.held_lease, self.handed
        assert handed is not None
        held_lease.mark_handed_on(handed)
        if held_lease.lease is not self.lease:
            # It was extended meanwhile, and perhaps set again where it had been forgotten.
            self.backend.post_release(held_lease.lease)
        givers = (*self.lease.givers, self.lease.fingerprint)
        return self._passage.ticket(self._service, replace(handed, givers=givers))

    def discard(self) -> None:
        """Release the lease if it was handed on: its ticket was lost by an interrupt.

        Otherwise the store has not handed it on, or has undone that: the lock is what it was.
        """
        if self.handed is None:
            return
        held_lease = self.held_lease
        is_reported = held_lease.handed is not None
        # First: from here on, nothing renews the lease, whatever happens.
        held_lease.mark_released(self.backend.clock())
        held_lease.handed = None
        self.backend.post_release(self.handed)
        self.backend.post_release(held_lease.lease)
        if not is_reported:
            reports.released(held_lease, None)

"""`LockState`: which lease a `Lock` object holds, and what it reports about it."""

from __future__ import annotations

import logging
from dataclasses import replace

from django.utils.asyncio import async_unsafe

from redlock_django.engine.validity import Lease, LeaseState
from redlock_django.exceptions import (
    AlreadyHeld,
    LockLost,
    NotAcquired,
    NotHeld,
    StoreUnavailable,
)
from redlock_django.locking import events, registry
from redlock_django.locking.handler import LockService, locks
from redlock_django.locking.held_lease import HeldLease
from redlock_django.locking.open_transactions import KeptLocks
from redlock_django.locking.parameters import LockParameters

logger = logging.getLogger("redlock_django")


USE_ASYNC = (
    "A running event loop would be blocked while a lock is acquired, extended or verified: use "
    "'async with lock(...)', aacquire(), aextend() or averify()."
)


class LockState(LockParameters):
    """The lease that a lock holds, and every change of it: register, share, leave."""

    _held_lease: HeldLease | None = None
    _unlocked = False  # acquire() returned without a lock (ON_UNAVAILABLE = "proceed")
    _strict = False  # True: never continue without a quorum, whatever ON_UNAVAILABLE says
    is_repeated = False
    """True for an attempt that the caller repeats if it fails: it is not reported as refused."""
    kept_by: KeptLocks | None = None
    """The set of locks that releases this one after COMMIT; None if no transaction keeps it."""

    def __repr__(self) -> str:
        state = "held" if self.locked else "not held"
        return f"<Lock {self._names!r} using {self.using!r}, {state}>"

    @property
    def locked(self) -> bool:
        """True if the lock is held now. False if ON_UNAVAILABLE let the caller continue without."""
        return self._held_lease is not None and self._held_lease.remaining() > 0

    def remaining(self) -> float:
        """Return the seconds for which the lock is surely held, 0.0 if it is not."""
        return 0.0 if self._held_lease is None else self._held_lease.remaining()

    def ensure_held(self) -> None:
        """Raise LockLost if the lock is not surely held, NotHeld if it was never acquired.

        Sends nothing: it relies on the local clock and the last renewal, which is up to a third of
        the TTL ago; `Lock.verify` asks the masters. If ON_UNAVAILABLE = "proceed" let the caller
        continue without a lock, it raises nothing.
        """
        if self._unlocked:
            return
        held_lease = self._require_lease()
        if not held_lease.remaining():
            why = f"the lock was lost: {held_lease.loss_reason}"
            if held_lease.inherited:
                why = "the lock was lost: it belongs to the parent process"
            elif not held_lease.ended:
                why = "it is unknown whether the lock is held: the servers do not answer"
            raise LockLost(f"{self._names}: {why}", resource=self._names)

    # An extension to the deadline that the lease has already changes nothing on a master that has
    # the lock: so the store is asked without another command.

    @async_unsafe(USE_ASYNC)
    def verify(self) -> None:
        """Ask the masters whether the lock is held; raise LockLost if a majority says no.

        `ensure_held()` notices a forced release at the next renewal, this method at once, for one
        round trip. Raises StoreUnavailable if too few masters answer, NotHeld as `ensure_held`.
        """
        if (held_lease := self._to_verify()) is not None:
            lease = held_lease.lease
            self._verified(held_lease, *held_lease.backend.extend(lease, held_lease.remaining()))

    async def averify(self) -> None:
        """Ask as `verify` does, on the running loop."""
        if (held_lease := self._to_verify()) is not None:
            lease = held_lease.lease
            answer = await held_lease.backend.aextend(lease, held_lease.remaining())
            self._verified(held_lease, *answer)

    def guard(self) -> None:
        """Raise LockLost unless the lock is held: the last check before COMMIT.

        With VERIFY_BEFORE_COMMIT, ask the masters, of which a majority must agree.
        """
        if not locks[self.using].settings.verify_before_commit:
            self.ensure_held()
            return
        try:
            self.verify()
        except StoreUnavailable as error:
            raise LockLost(str(error), resource=error.resource) from error

    def _to_verify(self) -> HeldLease | None:
        self.ensure_held()
        return None if self._unlocked else self._require_lease()

    def _verified(self, held_lease: HeldLease, state: LeaseState, lease: Lease) -> None:
        held_lease.apply_extension(state, lease)
        self.ensure_held()
        if state is not LeaseState.RENEWED:
            raise StoreUnavailable(
                f"{self._names}: too few servers answered to verify that the lock is held",
                resource=self._names,
            )

    @property
    def fences(self) -> dict[str, int]:
        """The fencing token of each resource. Raises NotHeld if the lock was not acquired."""
        lease = self._require_lease().lease
        fences = dict(zip(lease.resources, lease.fences, strict=True))
        return {resource: fences[resource] for resource in self.resources}

    @property
    def fence(self) -> int:
        """The fencing token. It only grows from one holder of the resource to the next.

        Raises NotHeld if the lock was not acquired, ValueError if it has several resources.
        """
        if len(self.resources) > 1:
            raise ValueError(f"{self._names}: several resources, use fences[resource]")
        return self.fences[self.resources[0]]

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the token, 8 hex digits. Raises NotHeld if not acquired."""
        return self._require_lease().lease.fingerprint

    def _require_lease(self) -> HeldLease:
        if self._held_lease is None:
            raise NotHeld(f"{self._names}: this lock is not held", resource=self._names)
        return self._held_lease

    def _share_outer_lease(self, service: LockService) -> bool:
        """Share the lease that this task or thread holds; return False if it holds none.

        Raises AlreadyHeld if sharing is not allowed or one lease does not have all resources, and
        LockLost if the lease to share was lost.
        """
        if self.kept_by is not None:
            if self._held_lease is not None:
                self._refuse_lost(self._held_lease, self._names)
                if not self._held_lease.inherited:
                    self._refuse_in_min_hold(self._held_lease, self._names)
            self.kept_by.remove(self)
            if self.locked:
                return True
        if self._held_lease is not None:
            if self._held_lease.seconds_left():
                raise AlreadyHeld(
                    f"{self._names}: this Lock object holds it already; make another one, with "
                    "reentrant=True if it is meant to be nested",
                    resource=self._names,
                )
            self._held_lease.remove_lock(self)
            self._held_lease = None
        self._unlocked = False
        outer = registry.leases_of_caller(service.backend, self.resources)
        if not outer:
            return False
        for resource, held_lease in [*outer.items()]:
            if not held_lease.seconds_left():
                if held_lease.lock_objects() and (self._reentrant or held_lease.is_kept):
                    self._refuse_lost(held_lease, resource)
                del outer[resource]
        if not outer:
            return False
        held_lease, *others = set(outer.values())
        is_kept = held_lease.is_kept
        self._refuse_in_min_hold(held_lease, ", ".join(outer))
        shares = self._reentrant or is_kept
        if not shares or others or set(self.resources) - {*held_lease.lease.resources}:
            names = ", ".join(outer)
            raise AlreadyHeld(
                f"{names}: this task or thread holds it already"
                f"{', until the open transaction has ended' if is_kept else ''}; "
                "lock(..., reentrant=True) nests in one outer lock that holds all the same "
                "resources",
                resource=names,
            )
        held_lease.add_lock(self)
        self._held_lease = held_lease
        return True

    @staticmethod
    def _refuse_lost(held_lease: HeldLease, names: str) -> None:
        """Raise LockLost if a lease was lost that the caller has not released.

        A lock instead of it would not protect what was done under the lost one.
        """
        held_lease.seconds_left()  # notices that the lease has expired
        if held_lease.loss_reason:
            why = f"the lock was lost: {held_lease.loss_reason}"
            raise LockLost(f"{names}: {why}", resource=names)

    def _refuse_in_min_hold(self, held_lease: HeldLease, names: str) -> None:
        """Raise AlreadyHeld if sharing this lease would break a promise of `min_hold`."""
        lease = held_lease.lease
        if self._min_hold:
            why = "pass min_hold to the outer lock: an inner lock does not prolong it"
        elif held_lease.is_kept and (left := lease.held_for(held_lease.backend.clock)):
            why = f"it was released, and min_hold is over in {left:.3g} s"
        else:
            return
        raise AlreadyHeld(
            f"{names}: this task or thread holds it already; {why}", resource=self._names
        )

    def _proceeds_without(self, service: LockService, error: NotAcquired) -> bool:
        """Report a refusal; return True to continue without a lock, if ON_UNAVAILABLE allows it."""
        if self.is_repeated:
            return False
        error.resource = error.resource or self._names  # a store that failed may not name it
        if isinstance(error, StoreUnavailable):
            self._unlocked = service.settings.on_unavailable == "proceed" and not self._strict
        elif error.asked:
            registry.confirm(service.backend, self.resources)
        events.refused(error, type(self), self.using, self.resources, self._holder, self._unlocked)
        return self._unlocked

    def disown(self) -> None:
        """Stop counting as held by the task or thread that acquired the lock.

        There, `lock()` on the same resource is refused or waits, as anywhere else.
        """
        if self._held_lease is not None:
            registry.disown(self._held_lease)

    def _register(self, service: LockService, lease: Lease, in_block: bool) -> HeldLease:
        if self._min_hold:
            lease = replace(lease, earliest_end=lease.started + self._min_hold)
        renew = in_block and service.settings.renew if self._renew is None else self._renew
        hold_until = lease.started + service.settings.max_hold
        held_lease = HeldLease(service.backend, lease, self, hold_until, renew, self._holder)
        self._held_lease = held_lease
        registry.register(held_lease, self.resources)
        return held_lease

    def _leave(self, held_lease: HeldLease) -> bool:
        """Stop sharing a lease; return whether to release it now. May be called repeatedly."""
        self._held_lease = None
        if held_lease.is_shared and held_lease.remove_lock(self):
            return False
        registry.unregister(held_lease)
        left = held_lease.seconds_left()  # reports the loss if it has expired
        if left:
            held_lease.mark_released(left)
            return True
        if held_lease.inherited:
            logger.debug("redlock %s: held by the parent process, not released", self._names)
            return False
        if held_lease.loss_reason and not held_lease.released:
            events.released_late(held_lease)
        held_lease.mark_released(0.0)
        return False

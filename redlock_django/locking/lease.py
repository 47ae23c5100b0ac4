"""`HeldLease`: a lease that this process holds, until it is released or lost."""

from __future__ import annotations

import logging
import math
import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from redlock_django.engine.renewal import next_extension
from redlock_django.engine.validity import Lease, LeaseState
from redlock_django.exceptions import LockLost, NotHeld, StoreUnavailable
from redlock_django.locking import reports
from redlock_django.locking.services import LockService, locks

if TYPE_CHECKING:
    from redlock_django.locking.arguments import LockArguments

logger = logging.getLogger("redlock_django")

HANDING_ON = 0.05
"""Seconds until a lease is looked at again that is being handed on."""


class HeldLease:
    """A lease that this process holds: its current validity, its next extension, its loss.

    `ttl` is the TTL that the caller asked for, and `hold_until` the latest moment, by the
    backend's clock, to which the lease may be extended. `entry` has the keys under which `caller`
    finds it, `owner` is the task or thread that acquired it, and `call` identifies the call of
    `sync_to_async` in which it did. `is_shared` is True once a second lock has shared it. The
    renewal service looks at it at `check_at`. `hand_ons` is how many hand-ons of it have ended.
    `holder` is shown of the holder in addition to host, process and time. `loss_reason` is "" until
    the lease is lost. `released_at` is the moment at which its release began. `handed` is the lease
    that its holder has handed on to the client with a ticket. `is_released_again` is True if an
    extension ended after the release had begun: it was followed by another release, which may have
    come first.

    Attributes that most leases never need are in the class, or made when they are needed.
    """

    state = LeaseState.RENEWED
    is_shared = False
    released = False
    released_at = 0.0
    loss_reason = ""
    entry: Any = None
    owner: object = None
    call: object = None
    check_at = math.inf
    handed: Lease | None = None
    is_handing_on = False
    hand_ons = 0
    is_released_again = False

    def __init__(
        self,
        service: LockService,
        lease: Lease,
        lock: object,
        parameters: LockArguments,
        in_block: bool,
    ) -> None:
        if parameters.min_hold and not lease.earliest_end:
            lease = replace(lease, earliest_end=lease.started + parameters.min_hold)
        renew = in_block if parameters.renew is None else parameters.renew
        self.backend = service.backend
        self.lease = lease
        self.acquired_at = lease.started
        self.ttl = lease.ttl
        limit = math.inf if parameters.is_leader else service.settings.max_hold
        self.hold_until = lease.started + limit
        self.renew = renew
        self.sender = type(lock)
        self.holder = parameters.holder
        self._locks: list[weakref.ref[Any]] = [weakref.ref(lock)]
        self.forks = locks.forks

    def add_lock(self, lock: object) -> None:
        """Note that a lock shares the lease: several do if it was acquired again (`reentrant`)."""
        self._locks.append(weakref.ref(lock))
        self.is_shared = True

    def remove_lock(self, lock: object) -> bool:
        """Note that a lock does not share the lease any more; return whether others do."""
        self._locks = [r for r in self._locks if (one := r()) is not None and one is not lock]
        return bool(self._locks)

    def lock_objects(self) -> list[Any]:
        """Return the locks that share the lease."""
        return [lock for reference in self._locks if (lock := reference()) is not None]

    @property
    def inherited(self) -> bool:
        """True if this is a child process's copy of a lease that its parent holds."""
        return self.forks != locks.forks

    @property
    def is_kept(self) -> bool:
        """True if all its locks were released, and an open transaction keeps them."""
        return all(lock.kept_by for lock in self.lock_objects())

    @property
    def ended(self) -> bool:
        """True if the lease has been released or lost."""
        return self.released or bool(self.loss_reason)

    def remaining(self) -> float:
        """Return the seconds for which the lease is surely held, 0 while that is unknown."""
        left = self.seconds_left()
        return 0.0 if left and self.backend.is_uncertain(self.lease) else left

    def fences_of(self, resources: Iterable[str]) -> dict[str, int]:
        """Return the fencing token of each of these resources."""
        lease = self.lease
        fences = dict(zip(lease.names, lease.fences, strict=True))
        return {resource: fences[resource] for resource in resources}

    def ensure_held(self, resources: Iterable[str]) -> None:
        """Raise LockLost if the lease is not surely held, NotHeld if it was released.

        `resources` are those of the lock that asks.
        """
        if self.remaining():
            return
        names = ", ".join(resources)
        why = f"the lock was lost: {self.loss_reason}"
        if self.inherited:
            why = "the lock was lost: it belongs to the parent process"
        elif self.released:
            why = "this lock is not held"
            if self.handed is not None:
                why = "transfer() has handed this lock on: the client that resumes it holds it"
            raise NotHeld(f"{names}: {why}", resource=names)
        elif not self.loss_reason:
            why = "it is unknown whether the lock is held: the servers do not answer"
        raise LockLost(f"{names}: {why}", resource=names)

    def refuse_lost(self, resources: Iterable[str]) -> None:
        """Raise LockLost if the lease was lost before the block ended that has just released it."""
        self.seconds_left()  # of a lock that a transaction keeps: reports the loss if it expired
        if self.loss_reason and not self.inherited:
            names = ", ".join(resources)
            why = f"the lock was lost before its block ended: {self.loss_reason}"
            raise LockLost(f"{names}: {why}", resource=names)

    def seconds_left(self) -> float:
        """Return the seconds until the lease expires; at 0, report it as lost."""
        if self.released or self.loss_reason or self.forks != locks.forks:
            return 0.0
        # The clock first: a lease that another thread extends from here on is held. Everywhere in
        # this file, a moment is read before the deadline that it is compared with.
        now = self.backend.clock()
        lease = self.lease
        if self.backend.voided(lease):
            self.mark_lost(self.backend.void_reason)
            return 0.0
        left = lease.until - now
        if left <= 0:
            at_max_hold = lease.until >= self.hold_until - self.ttl * 0.02 - 0.01
            self.mark_lost(
                "MAX_HOLD was reached" if at_max_hold and self.renew else "its lease expired"
            )
            return 0.0
        return left

    def held_seconds(self) -> float:
        """Return the seconds since the lease was acquired."""
        held = self.backend.clock() - self.acquired_at
        return held if held > 0 else 0.0

    def mark_lost(self, reason: str) -> None:
        """Report the loss of the lease, once, and release what is left of it on the masters."""
        if self.loss_reason or self.inherited:
            return
        self.loss_reason = reason
        report = object()
        if vars(self).setdefault("_loss_report", report) is not report:
            return  # the holder and the renewal service noticed the loss at the same moment
        try:
            # First, so that the loss is reported before the release lets the next holder in.
            reports.lost(self, reason)
        finally:
            self.backend.post_release(self.lease)

    def mark_forgotten(self) -> None:
        """Report that the store no longer has the lease, or has one of another holder instead."""
        masters = self.backend.servers_are_masters
        self.mark_lost("a majority of the masters lost it" if masters else "the store lost it")

    def mark_released(self, moment: float = 0.0) -> None:
        """Note that the holder releases the lease; stop renewing. `moment` is 0 if it was lost."""
        self.released = True
        if moment:
            self.released_at = moment

    def begin_release(self, resources: Iterable[str]) -> bool:
        """Stop renewing; return whether a release is to be sent. May be called repeatedly."""
        now = self.backend.clock()
        if self.seconds_left():  # reports the loss if it has expired
            self.mark_released(now)
            return True
        if self.inherited:
            names = ", ".join(resources)
            logger.debug("redlock %s: held by the parent process, not released", names)
            return False
        if self.loss_reason and not self.released:
            reports.released_late(self)
        self.mark_released()
        return False

    def repeat_release(self, error: BaseException, resources: Iterable[str]) -> None:
        """Post the release again after an error; raise an error that is meant to end the caller."""
        if self.released:
            with suppress(Exception):  # `error`, which came first, is the one to report
                self.backend.post_release(self.lease)
        if isinstance(error, Exception):
            # A failing release must not hide an exception of the `with` block.
            logger.error("redlock %s: the release failed", ", ".join(resources), exc_info=error)
            return
        if self.released and not self.loss_reason:
            reports.released(self, None)
        raise error

    def was_forgotten(self, freed: bool | None) -> bool:
        """Report it if the store had lost the lease when the release arrived; return whether.

        `freed` is the answer of the store to the release. It proves nothing if the lease, which was
        held when its release began, may have expired before that arrived.
        """
        if freed is not False or self.is_released_again:
            return False
        if self.backend.clock() >= self.lease.until:
            return False
        self.mark_forgotten()
        reports.released_late(self)
        return True

    @contextmanager
    def handing_on(self) -> Iterator[None]:
        """Extend nothing in this block, in which the lease is handed on; report if it was lost.

        The store would refuse the old token, and the lease would seem lost.
        """
        self.is_handing_on = True
        try:
            yield
        except LockLost:
            if self.seconds_left():
                self.mark_forgotten()
            raise
        finally:
            self.hand_ons += 1
            self.is_handing_on = False

    def mark_handed_on(self, handed: Lease) -> None:
        """Note that another client may take the lease: this process does not hold it any more."""
        self.handed = handed
        self.mark_released(self.backend.clock())
        reports.released(self, None)

    def guard_handed(self, resources: Iterable[str]) -> None:
        """Raise LockLost if the lease that was handed on may be over before it is taken."""
        handed, names = self.handed, ", ".join(resources)
        assert handed is not None
        if self.backend.clock() >= handed.until:
            why = "the lock was handed on, and its time was over before COMMIT"
            raise LockLost(f"{names}: {why}", resource=names)

    def next_check(self) -> float:
        """Return when to extend the lease or to look whether it expired, by the backend's clock."""
        now = self.backend.clock()
        if self.is_handing_on:
            return now + HANDING_ON
        lease = self.lease
        plan = self._next_extension(lease, now)
        return lease.until if plan is None else plan[0]

    def check_extension(self, ttl: float, resources: Iterable[str]) -> float:
        """Return the TTL to extend by, up to MAX_HOLD; raise LockLost if that was reached."""
        left = self.hold_until - self.backend.clock()
        if left <= 0:
            self.mark_lost("MAX_HOLD was reached")
            self.ensure_held(resources)
        return min(ttl, left)

    # An extension that says nothing is repeated.

    def extend(self, ttl: float) -> LeaseState:
        """Extend the lease, and return the verdict of the store."""
        while True:
            hand_ons = self.hand_ons
            state, lease = self.backend.extend(self.lease, ttl)
            if self.apply_extension(state, lease, hand_ons):
                return state

    async def aextend(self, ttl: float) -> LeaseState:
        """Extend as `extend` does, on the running loop."""
        while True:
            hand_ons = self.hand_ons
            state, lease = await self.backend.aextend(self.lease, ttl)
            if self.apply_extension(state, lease, hand_ons):
                return state

    # To ask the store, the lease is extended to the deadline that it has. On a master that has the
    # lock this changes nothing, and the store needs no other command.

    def verify(self, resources: Iterable[str]) -> None:
        """Ask the store; raise LockLost if it lost the lease, StoreUnavailable if it is unknown."""
        self.ensure_held(resources)
        self._check_verified(self.extend(self.remaining()), resources)

    async def averify(self, resources: Iterable[str]) -> None:
        """Ask as `verify` does, on the running loop."""
        self.ensure_held(resources)
        self._check_verified(await self.aextend(self.remaining()), resources)

    def _check_verified(self, state: LeaseState, resources: Iterable[str]) -> None:
        self.ensure_held(resources)
        if state is not LeaseState.RENEWED:
            names = ", ".join(resources)
            raise StoreUnavailable(
                f"{names}: too few servers answered to verify that the lock is held",
                resource=names,
            )

    def apply_extension(self, state: LeaseState, lease: Lease, hand_ons: int = 0) -> bool:
        """Take over the result of an extension, which may have overlapped with others.

        Returns False if it says nothing: it came too late, and another one did not, or a hand-on
        that has failed overlapped with it. `hand_ons` is that of the moment before it was sent.
        """
        now = self.backend.clock()
        merging: threading.Lock = vars(self).setdefault("_merging", threading.Lock())
        with merging:
            self.lease = merged = self.backend.merged(self.lease, lease)
        if self.ended:
            # The extension may have been sent after the release, and have set the lock again.
            self.is_released_again = True
            self.backend.post_release(merged)
            return True
        if self.is_handing_on:
            return True
        expired = now >= lease.until
        says_nothing = hand_ons != self.hand_ons or (expired and now < merged.until)
        if state is LeaseState.LOST and says_nothing:
            self.state = LeaseState.UNKNOWN
            return False
        self.state = state
        if state is LeaseState.LOST:
            if expired:
                self.mark_lost("its lease expired")
            else:
                self.mark_forgotten()
        return True

    def _next_extension(self, lease: Lease, now: float) -> tuple[float, float] | None:
        if not self.renew:
            return None
        return next_extension(
            lease, now, ttl=self.ttl, hold_until=self.hold_until, state=self.state
        )

    def due_ttl(self) -> float | None:
        """Return the TTL to extend by now; None if it is too early or the lease has ended."""
        if self.is_handing_on or not self.seconds_left():
            return None
        now = self.backend.clock()
        plan = self._next_extension(self.lease, now)
        # After an extension without a result the plan counts from now: no need to wait again.
        if plan is None or (self.state is LeaseState.RENEWED and plan[0] > now + 0.001):
            return None
        return plan[1]

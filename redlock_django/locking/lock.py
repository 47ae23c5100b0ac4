"""`lock()` and `Lock`: locks for `with`, `async with`, and explicit calls, sync and async.

The order of many lines ensures that a signal leaves no lock: see docs/explanation/interrupts.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import suppress
from datetime import timedelta
from typing import Any, Self

from asgiref.sync import sync_to_async
from django.utils.asyncio import async_unsafe

from redlock_django.conf.arguments import refuse_unknown
from redlock_django.engine.validity import Lease
from redlock_django.exceptions import NotAcquired
from redlock_django.locking import events, registry
from redlock_django.locking.cancellation import call_after_threads
from redlock_django.locking.handler import LockService, locks
from redlock_django.locking.held_lease import HeldLease
from redlock_django.locking.holder import holder_json
from redlock_django.locking.lock_state import USE_ASYNC, LockState
from redlock_django.locking.open_transactions import check, keep, may_be_open, open_transactions
from redlock_django.locking.parameters import parameters_of
from redlock_django.locking.renewal_service import renewal_service
from redlock_django.locking.running_loop import running_loop

logger = logging.getLogger("redlock_django")


class Lock(LockState):
    """A lock on one or several resources. It can be acquired again after its release.

    Not to be shared between threads or tasks.
    """

    def acquire(self) -> Self:
        """Acquire the lock and return it.

        Raises ResourceLocked, QuorumUnreachable, AlreadyHeld, LockLost for a lock inside one that
        was lost, or Django's SynchronousOnlyOperation inside a running event loop.
        """
        return self._acquire()

    async def aacquire(self) -> Self:
        """Acquire as `acquire` does; the lock then belongs to the running task and its loop."""
        return await self._aacquire()

    def _acquire(self, in_block: bool = False) -> Self:
        if running_loop() is not None:
            self._refuse_in_loop()
        service, ttl, wait = self._resolve()
        if self._share_outer_lease(service):
            return self
        if self._until_commit and open_transactions():
            check(self.resources)
        try:
            if not wait:
                registry.refuse_held(service.backend, self.resources)
            holder = holder_json(self._holder, self._min_hold)
            lease = service.backend.acquire(self._in_order, ttl, wait, holder)
        except NotAcquired as error:
            if not self._proceeds_without(service, error):
                raise
            return self
        try:
            held_lease = self._register(service, lease, in_block)
            renewal_service.watch_in_thread(held_lease)
            events.acquired(held_lease)  # last: its receivers may take long
        except BaseException:  # an interrupt: the caller does not get the lock
            self._discard(service, lease)
            raise
        return self

    async def _aacquire(self, in_block: bool = False) -> Self:
        service, ttl, wait = self._resolve()
        if self._share_outer_lease(service):
            return self
        if self._until_commit and may_be_open():
            await sync_to_async(check)(self.resources)
        try:
            if not wait:
                registry.refuse_held(service.backend, self.resources)
            holder = holder_json(self._holder, self._min_hold)
            lease = await service.backend.aacquire(self._in_order, ttl, wait, holder)
        except NotAcquired as error:
            if not self._proceeds_without(service, error):
                raise
            return self
        try:
            held_lease = self._register(service, lease, in_block)
            renewal_service.watch_in_loop(held_lease)
            events.acquired(held_lease)  # last: its receivers may take long
        except BaseException:
            self._discard(service, lease)
            raise
        return self

    @async_unsafe(USE_ASYNC)
    def _refuse_in_loop(self) -> None:
        # Not a wrapper around `_acquire`: a signal that is handled when a wrapper returns would
        # lose an acquired lock.
        pass

    def _discard(self, service: LockService, lease: Lease) -> None:
        service.backend.post_release(lease)
        if (held_lease := self._held_lease) is not None:
            self._leave(held_lease)
            if held_lease.lease is not lease:  # renewed meanwhile, perhaps on more masters
                service.backend.post_release(held_lease.lease)

    # Extend.

    @async_unsafe(USE_ASYNC)
    def extend(self, ttl: float | timedelta | None = None) -> float:
        """Extend the lock to `ttl` seconds from now (None: its own TTL); return the seconds left.

        Never shortens the lock, and never extends it beyond MAX_HOLD. Raises LockLost, NotHeld,
        ValueError.
        """
        held_lease, seconds = self._to_extend(ttl)
        held_lease.apply_extension(*held_lease.backend.extend(held_lease.lease, seconds))
        self.ensure_held()
        return held_lease.remaining()

    async def aextend(self, ttl: float | timedelta | None = None) -> float:
        """Extend as `extend` does, on the running loop."""
        held_lease, seconds = self._to_extend(ttl)
        held_lease.apply_extension(*await held_lease.backend.aextend(held_lease.lease, seconds))
        self.ensure_held()
        return held_lease.remaining()

    def _to_extend(self, ttl: float | timedelta | None) -> tuple[HeldLease, float]:
        renewal_service.ensure_running()
        held_lease = self._require_lease()
        self.ensure_held()
        seconds = held_lease.ttl if ttl is None else locks[self.using].settings.check_ttl(ttl)
        left = held_lease.hold_until - held_lease.backend.clock()
        if left <= 0:
            held_lease.mark_lost("MAX_HOLD was reached")
            self.ensure_held()
        return held_lease, min(seconds, left)

    # Release.

    def release(self) -> bool:
        """Release the lock; return True if a majority of the masters released it just now.

        Before `min_hold` is over, they shorten its TTL instead. False if it was not held, was lost
        before, is kept by an outer lock or an open transaction, or if too few servers answered in
        time: these get the release when they are back. Never blocks a running event loop.
        """
        held_lease, self._unlocked = self._held_lease, False
        if held_lease is None:
            return False
        freed: bool | None = None
        try:
            if self._until_commit and open_transactions() and keep(self):
                return False
            if not self._leave(held_lease):
                return False
            if running_loop() is not None:
                held_lease.backend.post_release(held_lease.lease)
            else:
                freed = held_lease.backend.release(held_lease.lease)
        except BaseException as error:  # noqa: BLE001 - raised again there
            self._repeat_release(held_lease, error)
        if freed is False:
            return self._report_late(held_lease)
        events.released(held_lease, freed)
        return bool(freed)

    async def arelease(self) -> bool:
        """Release as `release` does, on the running loop; wait for all receivers of the signal."""
        held_lease, self._unlocked = self._held_lease, False
        if held_lease is None:
            return False
        freed: bool | None = None
        try:
            if self._until_commit and may_be_open() and await sync_to_async(keep)(self):
                self.detach()  # the transaction may outlive the task and its loop
                return False
            if not self._leave(held_lease):
                return False
            freed = await held_lease.backend.arelease(held_lease.lease)
        except BaseException as error:  # noqa: BLE001 - raised again there
            self._repeat_release(held_lease, error)
        if freed is False:
            return self._report_late(held_lease)
        await events.areleased(held_lease, freed)
        return bool(freed)

    def _repeat_release(self, held_lease: HeldLease, error: BaseException) -> None:
        """Post a release that failed again; raise the error if it is meant to end the caller."""
        self._leave(held_lease)
        if held_lease.released:
            with suppress(Exception):  # `error`, which came first, is the one to report
                held_lease.backend.post_release(held_lease.lease)
        if isinstance(error, Exception):
            # A failing release must not hide an exception of the `with` block.
            logger.error("redlock %s: the release failed", self._names, exc_info=error)
            return
        if held_lease.released and not held_lease.loss_reason:
            events.released(held_lease, None)
        raise error

    def _report_late(self, held_lease: HeldLease) -> bool:
        held_lease.mark_forgotten()
        events.released_late(held_lease)
        return False

    def detach(self) -> None:
        """Renew the lock from a thread from now on, so that it can outlive its task and loop."""
        if self._held_lease is not None:
            renewal_service.move_to_thread(self._held_lease)

    # Context managers.

    def __enter__(self) -> Self:
        return self._acquire(in_block=True)

    def __exit__(self, *exception: object) -> None:
        self.release()

    def __aenter__(self) -> Coroutine[Any, Any, Self]:
        return self._aacquire(in_block=True)

    async def __aexit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        is_cancelled = kind is not None and issubclass(kind, asyncio.CancelledError)
        if is_cancelled and self._held_lease is not None:
            # A disconnect or a timeout cannot stop a thread: it may be about to COMMIT.
            await call_after_threads(self.arelease)
        else:
            await self.arelease()


@parameters_of(Lock)
def lock(*args: Any, **kwargs: Any) -> Lock:
    """Return a lock on all `resources`, all of which or none are acquired; acquire nothing yet.

    `using` is the alias. `ttl` and `wait` are seconds (None: as the alias says). Waiters are served
    in order; a caller that does not wait (0) is refused in a waiter's turn: for at most 0.1 s after
    a release. `renew` None renews the lock in `with` blocks if the alias says so, and not after an
    explicit `acquire()`. With `reentrant`, a task or thread that holds the resources shares the
    lease of its outer lock, which is released with the last of the locks; inside a lock that was
    lost, acquiring raises LockLost. Sync code that `sync_to_async` runs shares only while the call
    that acquired the outer lock runs. With `until_commit`, a release inside a transaction takes
    effect at its end, and a transaction that may read older data is refused; False ignores
    transactions. Whenever it is released, the lock stays held for `min_hold` seconds at least.
    Operators see `holder`.

    Raises BadResource, ValueError for a bad value, InvalidRedlock for wrong settings.
    """
    try:
        return Lock(*args, **kwargs)
    except TypeError:
        refuse_unknown(lock, kwargs)
        raise

"""`lock()` and `Lock`: locks for `with`, `async with`, and explicit calls, sync and async.

The order of many lines ensures that a signal leaves no lock: see docs/contributing/interrupts.md.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, ExitStack
from datetime import timedelta
from typing import Any, NoReturn, ParamSpec, Self, cast

from asgiref.sync import sync_to_async
from django.utils.asyncio import async_unsafe

from redlock_django.engine.validity import Lease
from redlock_django.exceptions import LockLost, NotAcquired, NotHeld, StoreUnavailable
from redlock_django.locking import caller, nesting, reports
from redlock_django.locking.arguments import LockArguments
from redlock_django.locking.caller import may_be_open, open_transactions
from redlock_django.locking.event_loops import (
    USE_ASYNC,
    call_after_threads,
    refuse_in_loop,
    running_loop,
)
from redlock_django.locking.handing import Handing
from redlock_django.locking.lease import HeldLease
from redlock_django.locking.renewal import renewal_service
from redlock_django.locking.services import LockService, locks
from redlock_django.locking.transactions import KeptLocks, check, keep


class Lock:
    """A lock on one or several resources. It can be acquired again after its release.

    Not to be shared between threads or tasks.
    """

    _held_lease: HeldLease | None = None
    _unlocked = False  # acquire() returned without a lock (ON_UNAVAILABLE = "proceed")
    _given: Lease | None = None  # the lease of a ticket, which is taken
    _strict = False  # True: never continue without a quorum, whatever ON_UNAVAILABLE says
    is_of_call = False
    """True if a decorator holds it around a call, which may hand its lock on."""
    keeps_response = False
    """True for a lock of a view, whose finished response stays although the lock was lost."""
    is_repeated = False
    """True for an attempt that the caller repeats if it fails: it is not reported as refused."""
    lost_at_commit: LockLost | None = None
    """The error that `guard` has raised, which rolled a transaction back."""
    has_committed = False
    """True if a transaction under this lock was committed; others may be open around it."""
    kept_by: KeptLocks | None = None
    """The set of locks that releases this one after COMMIT; None if no transaction keeps it."""

    def __init__(
        self,
        *resources: str,
        using: str = "default",
        ttl: float | timedelta | None = None,
        wait: float | timedelta | None = None,
        renew: bool | None = None,
        reentrant: bool = False,
        until_commit: bool = True,
        min_hold: float | timedelta | None = None,
        holder: Mapping[str, str] | None = None,
        limit: int | None = None,
    ) -> None:
        self._arguments = arguments = LockArguments(
            resources, using, ttl, wait, renew, reentrant, until_commit, min_hold, holder, limit
        )
        self.using = using
        self.resources = arguments.resources

    def set_wait(self, seconds: float) -> None:
        """Wait for `seconds` from the next acquisition on. Raises ValueError for a bad duration."""
        self._arguments.set_wait(seconds)

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
            refuse_in_loop()
        service, ttl, wait = (arguments := self._arguments).resolve()
        if self._shares_lease(service):
            return self
        if arguments.until_commit and open_transactions():
            check(self.resources)
        lease: Lease | None = None
        try:
            self._refuse_other_slot(service)
            lease = service.backend.acquire(
                arguments.in_order, ttl, wait, arguments.holder_json(), arguments.limit, self._given
            )
            held_lease = self._hold(service, lease, in_block)
            renewal_service.watch(held_lease)
            reports.acquired(held_lease)  # last: its receivers may take long
        except NotAcquired as error:
            if not self._continues_without(service, error):
                raise
        except BaseException:  # an interrupt: the caller does not get the lock
            self._discard(service, lease)
            raise
        return self

    async def _aacquire(self, in_block: bool = False) -> Self:
        service, ttl, wait = (arguments := self._arguments).resolve()
        if self._shares_lease(service):
            return self
        if arguments.until_commit and may_be_open():
            await sync_to_async(check)(self.resources)
        lease: Lease | None = None
        try:
            self._refuse_other_slot(service)
            lease = await service.backend.aacquire(
                arguments.in_order, ttl, wait, arguments.holder_json(), arguments.limit, self._given
            )
            held_lease = self._hold(service, lease, in_block)
            renewal_service.watch(held_lease)
            reports.acquired(held_lease)
        except NotAcquired as error:
            if not self._continues_without(service, error):
                raise
        except BaseException:
            self._discard(service, lease)
            raise
        return self

    def _refuse_other_slot(self, service: LockService) -> None:
        """Raise AlreadyHeld if the caller holds another slot of the name of its ticket."""
        if (given := self._given) is not None:
            nesting.refuse_other_slot(caller.leases_of_caller(service.backend, given.names), given)

    def _hold(self, service: LockService, lease: Lease, in_block: bool) -> HeldLease:
        held_lease = HeldLease(service, lease, self, self._arguments, in_block)
        self._held_lease = held_lease
        caller.register(held_lease, self.resources)
        return held_lease

    def _discard(self, service: LockService, lease: Lease | None) -> None:
        if lease is None:
            return
        service.backend.post_release(lease)
        if (held_lease := self._held_lease) is not None:
            self._leave(held_lease)
            if held_lease.lease is not lease:  # renewed meanwhile, perhaps on more masters
                service.backend.post_release(held_lease.lease)

    def _shares_lease(self, service: LockService) -> bool:
        """Hold a lease that this task or thread has already; return False if it has none to share.

        Raises AlreadyHeld if sharing is not allowed or one lease does not have all resources, and
        LockLost if the lease to share was lost.
        """
        if self.kept_by is not None:  # taken back from the transaction that keeps it
            if self._held_lease is not None:
                nesting.refuse_to_retake(self._held_lease, self._arguments)
            self.kept_by.remove(self)
            if self.locked:
                return True
        if self._held_lease is not None:
            nesting.refuse_own(self._held_lease, self._arguments)
            self._held_lease.remove_lock(self)  # it has ended
            self._held_lease = None
        self._unlocked = False
        if self._given is not None:
            return False
        found = caller.leases_of_caller(service.backend, self.resources)
        if not found or (outer := nesting.lease_to_share(found, self._arguments)) is None:
            return False
        outer.add_lock(self)
        self._held_lease = outer
        return True

    def _continues_without(self, service: LockService, error: NotAcquired) -> bool:
        """Report a refusal; return whether ON_UNAVAILABLE lets the caller continue."""
        # It is not raised here: that would make a reference cycle of the error and this frame.
        if self.is_repeated:
            return False
        error.resource = error.resource or self._arguments.names  # a failed store names none
        if isinstance(error, StoreUnavailable):
            self._unlocked = service.settings.on_unavailable == "proceed" and not self._strict
        holder = self._arguments.holder
        reports.refused(error, type(self), self.using, self.resources, holder, self._unlocked)
        return self._unlocked

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{self._arguments.names}: a Lock belongs to one task or thread. It cannot be copied, "
            "pickled or sent to another process. Make another one there with lock(), or hand the "
            "lock on: held.transfer() returns a ticket, which resume_lock() takes"
        )

    def __repr__(self) -> str:
        state = "held" if self.locked else "handed on" if self.handed_on else "not held"
        return f"<Lock {self._arguments.names!r} using {self.using!r}, {state}>"

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
        if not self._unlocked:
            self._require_lease().ensure_held(self.resources)

    @property
    def fences(self) -> dict[str, int]:
        """The fencing token of each resource. Raises NotHeld if the lock was not acquired."""
        return self._require_lease().fences_of(self.resources)

    @property
    def fence(self) -> int:
        """The fencing token. It only grows from one holder of the resource to the next.

        Raises NotHeld if the lock was not acquired, ValueError if it has several resources.
        """
        if len(self.resources) > 1:
            raise ValueError(f"{self._arguments.names}: several resources, use fences[resource]")
        return self.fences[self.resources[0]]

    @property
    def slot(self) -> int:
        """The number of the slot that is held, from 0 to `limit` - 1.

        Raises NotHeld if the lock was not acquired.
        """
        return self._require_lease().lease.slot

    @property
    def limit(self) -> int:
        """How many clients may hold the name at once."""
        return self._arguments.limit

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the token, 8 hex digits. Raises NotHeld if not acquired."""
        return self._require_lease().lease.fingerprint

    def _require_lease(self) -> HeldLease:
        if self._held_lease is None:
            names = self._arguments.names
            raise NotHeld(f"{names}: this lock is not held", resource=names)
        return self._held_lease

    @async_unsafe(USE_ASYNC)
    def verify(self) -> None:
        """Ask the masters whether the lock is held; raise LockLost if a majority says no.

        `ensure_held()` notices a forced release at the next renewal, this method at once, for one
        round trip. Raises StoreUnavailable if too few masters answer, NotHeld as `ensure_held`.
        """
        if not self._unlocked:
            self._require_lease().verify(self.resources)

    async def averify(self) -> None:
        """Ask as `verify` does, on the running loop."""
        if not self._unlocked:
            await self._require_lease().averify(self.resources)

    def guard(self) -> None:
        """Raise LockLost unless the lock is held: the last check before COMMIT.

        A lock that was handed on must still be held for the client that resumes it.
        """
        try:
            if self.handed_on:
                self._require_lease().guard_handed(self.resources)
            else:
                self.ensure_held()
        except LockLost as error:
            self.lost_at_commit = error
            if self.has_committed:
                vars(error)["may_have_effects"] = True  # the first note counts
            raise

    @async_unsafe(USE_ASYNC)
    def extend(self, ttl: float | timedelta | None = None) -> float:
        """Extend the lock to `ttl` seconds from now (None: its own TTL); return the seconds left.

        Never shortens the lock, and never extends it beyond MAX_HOLD. Raises LockLost, NotHeld,
        ValueError.
        """
        held_lease, seconds = self._to_extend(ttl)
        held_lease.extend(seconds)
        self.ensure_held()
        return held_lease.remaining()

    async def aextend(self, ttl: float | timedelta | None = None) -> float:
        """Extend as `extend` does, on the running loop."""
        held_lease, seconds = self._to_extend(ttl)
        await held_lease.aextend(seconds)
        self.ensure_held()
        return held_lease.remaining()

    def _to_extend(self, ttl: float | timedelta | None) -> tuple[HeldLease, float]:
        renewal_service.ensure_running()
        held_lease = self._require_lease()
        held_lease.ensure_held(self.resources)
        seconds = held_lease.ttl if ttl is None else locks[self.using].settings.check_ttl(ttl)
        return held_lease, held_lease.check_extension(seconds, self.resources)

    @property
    def handed_on(self) -> bool:
        """True if `transfer` has handed the lock on, until it is released or acquired again."""
        return self._held_lease is not None and self._held_lease.handed is not None

    @property
    def givers(self) -> tuple[str, ...]:
        """The fingerprints of the holders that have handed the lock on, the first one first."""
        return self._require_lease().lease.givers

    def transfer(self, ttl: float | timedelta | None = None) -> str:
        """Hand the lock on; return a ticket, with which `resume_lock()` takes it, once.

        From then on this process does not hold it, and its release leaves it alone. No other client
        gets it for at least `ttl` seconds (None: MAX_TTL), also if the transaction is rolled back.
        Raises StoreUnavailable (it is still held), LockLost, NotHeld, AlreadyHeld if another lock()
        shares it, InvalidRedlock where it cannot be handed on, ValueError for a bad `ttl`.
        """
        if running_loop() is not None:
            refuse_in_loop()
        giving = Handing(self, self._handable(), self._arguments, ttl)
        try:
            with giving.held_lease.handing_on():
                giving.hand_on()
                caller.unregister(giving.held_lease)
                return giving.ticket()
        except BaseException:
            giving.discard()
            raise

    async def atransfer(self, ttl: float | timedelta | None = None) -> str:
        """Hand the lock on as `transfer` does, on the running loop."""
        giving = Handing(self, self._handable(), self._arguments, ttl)
        try:
            with giving.held_lease.handing_on():
                await giving.ahand_on()
                caller.unregister(giving.held_lease)
                return giving.ticket()
        except BaseException:
            giving.discard()
            raise

    def _handable(self) -> HeldLease:
        if self._unlocked:
            why = "ON_UNAVAILABLE let the caller continue without a lock: there is none to hand on"
            raise NotHeld(f"{self._arguments.names}: {why}", resource=self._arguments.names)
        held_lease = self._require_lease()
        held_lease.ensure_held(self.resources)
        return held_lease

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
            if self._arguments.until_commit and open_transactions() and keep(self):
                return False
            if not self._leave(held_lease):
                return False
            if running_loop() is not None:
                held_lease.backend.post_release(held_lease.lease)
            else:
                freed = held_lease.backend.release(held_lease.lease)
        except BaseException as error:  # noqa: BLE001 - raised by `repeat_release`
            self._leave(held_lease)
            held_lease.repeat_release(error, self.resources)
        if not held_lease.was_forgotten(freed):
            reports.released(held_lease, freed or None)
        return bool(freed)

    async def arelease(self) -> bool:
        """Release as `release` does, on the running loop; wait for all receivers of the signal."""
        held_lease, self._unlocked = self._held_lease, False
        if held_lease is None:
            return False
        freed: bool | None = None
        try:
            if self._arguments.until_commit and may_be_open() and await sync_to_async(keep)(self):
                return False
            if not self._leave(held_lease):
                return False
            freed = await held_lease.backend.arelease(held_lease.lease)
        except BaseException as error:  # noqa: BLE001 - raised by `repeat_release`
            self._leave(held_lease)
            held_lease.repeat_release(error, self.resources)
        if not held_lease.was_forgotten(freed):
            await reports.areleased(held_lease, freed or None)
        return bool(freed)

    def _leave(self, held_lease: HeldLease) -> bool:
        """Stop sharing a lease; return whether to release it now. May be called repeatedly."""
        self._held_lease = None
        if held_lease.is_shared and held_lease.remove_lock(self):
            return False
        caller.unregister(held_lease)
        return held_lease.begin_release(self.resources)

    def disown(self) -> None:
        """Stop counting as held by this task or thread: it is refused or waits, as any other."""
        if self._held_lease is not None:
            caller.disown(self._held_lease)

    def __enter__(self) -> Self:
        return self._acquire(in_block=True)

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        held_lease = self._held_lease
        self.release()
        if kind is None and held_lease is not None and not self.keeps_response:
            held_lease.refuse_lost(self.resources)

    def enter_in(self, stack: ExitStack) -> Self:
        """Acquire the lock as a `with` block does; `stack` releases it."""
        stack.push(self)  # first, unlike enter_context(): see docs/contributing/interrupts.md
        return self.__enter__()

    async def aenter_in(self, stack: AsyncExitStack) -> Self:
        """Acquire the lock as an `async with` block does; `stack` releases it."""
        stack.push_async_exit(self)
        return await self.__aenter__()

    def __aenter__(self) -> Coroutine[Any, Any, Self]:
        return self._aacquire(in_block=True)

    async def __aexit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        held_lease = self._held_lease
        is_cancelled = kind is not None and issubclass(kind, asyncio.CancelledError)
        if is_cancelled and held_lease is not None:
            # A disconnect or a timeout cannot stop a thread: it may be about to COMMIT.
            await call_after_threads(self.arelease)
        else:
            await self.arelease()
        if kind is None and held_lease is not None and not self.keeps_response:
            held_lease.refuse_lost(self.resources)


_P = ParamSpec("_P")


def _has_parameters_of(cls: Callable[_P, Lock]) -> Callable[[Any], Callable[_P, Lock]]:
    """Declare a function to have the parameters of `Lock`, at run time and for type checkers."""

    def declare(function: Any) -> Callable[_P, Lock]:
        function.__signature__ = inspect.signature(cls).replace(return_annotation=Lock)
        return cast("Callable[_P, Lock]", function)

    return declare


@_has_parameters_of(Lock)
def lock(*args: Any, **kwargs: Any) -> Lock:
    """Return a lock on all `resources`, all of which or none are acquired; acquire nothing yet.

    - `using`: the alias. `ttl` and `wait` are seconds; None is the setting of the alias.
    - `renew`: None renews the lock in `with` blocks, and not after an explicit `acquire()`.
    - `reentrant`: a task or thread that holds the resources shares the lease of its outer lock,
      which is released with the last of the locks. Inside a lock that was lost, acquiring raises
      LockLost. Sync code that `sync_to_async` runs shares only while the call that acquired the
      outer lock runs.
    - `until_commit`: a release inside a transaction takes effect at its end, and a transaction that
      may read older data is refused; False ignores transactions.
    - `min_hold`: for how many seconds the lock stays held at least, whenever it is released.
    - `holder`: what operators see.
    - `limit`: how many clients may hold the name at once, each one slot of it (`Lock.slot`).

    Raises BadResource, ValueError for a bad value, InvalidRedlock for wrong settings.
    """
    return Lock(*args, **kwargs)

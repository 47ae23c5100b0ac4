"""`Lock`: the object a user holds. `with`, `async with`, or explicit calls in both colours."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import sys
import threading
import weakref
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from django.utils.asyncio import async_unsafe

from redlock_django.exceptions import (
    AlreadyHeld,
    BadResource,
    LockLost,
    NotAcquired,
    NotHeld,
    QuorumUnreachable,
)
from redlock_django.locking import events
from redlock_django.locking.cancellation import behind_threads
from redlock_django.locking.handler import LockService, locks
from redlock_django.locking.names import check_resource
from redlock_django.locking.renewal_service import HeldAs, HeldLease, renewal_service
from redlock_django.wire.clock import wall_ns

logger = logging.getLogger("redlock_django")

MOST_RESOURCES = 100  # one script carries them all, and a script stops its master meanwhile
_HOST = socket.gethostname()[:64]
_APP = os.path.basename(sys.argv[0] if sys.argv else "")[:64]
_IN_A_LOOP = (
    "A running event loop would stand still while a lock is taken or extended: use "
    "'async with lock(...)', aacquire() or aextend()."
)

# By backend, resource, and task or thread. Weak: a lock that its user forgot is not renewed.
_held: weakref.WeakValueDictionary[HeldAs, HeldLease] = weakref.WeakValueDictionary()


def lock(
    *resources: str,
    using: str = "default",
    ttl: float | timedelta | None = None,
    wait: float | timedelta | None = None,
    renew: bool | None = None,
    reentrant: bool = False,
    holder: Mapping[str, str] | None = None,
) -> Lock:
    """A lock on all `resources` or on none, not taken yet.

    `ttl` and `wait` in seconds (None: the alias's own). Who waits is served in the order of
    coming, and one that does not wait (0) is refused while somebody who does has the turn:
    0.1 s at most after a release. `renew` None renews in `with` blocks, as the alias says,
    and not after an explicit `acquire()`. With `reentrant`, taking again what the same task
    or thread holds gives the outer lease, counted. `holder` is shown to whoever looks who
    holds it, beside host, process and time.

    Raises BadResource, ValueError for a bad number, InvalidRedlock for wrong settings.
    """
    return Lock(
        *resources,
        using=using,
        ttl=ttl,
        wait=wait,
        renew=renew,
        reentrant=reentrant,
        holder=holder,
    )


class Lock:
    """A lock on one or several resources, to be taken once at a time.

    Not to be shared between threads or tasks: each makes its own, for the same resource.
    """

    _strict = False  # whether to refuse without a quorum, whatever ON_UNAVAILABLE says

    def __init__(
        self,
        *resources: str,
        using: str = "default",
        ttl: float | timedelta | None = None,
        wait: float | timedelta | None = None,
        renew: bool | None = None,
        reentrant: bool = False,
        holder: Mapping[str, str] | None = None,
    ) -> None:
        self.resources = tuple(check_resource(resource) for resource in resources)
        if not 1 <= len(self.resources) <= MOST_RESOURCES:
            raise BadResource(f"a lock takes 1 to {MOST_RESOURCES} resources, got {len(resources)}")
        if len(set(self.resources)) < len(self.resources):
            raise BadResource("the same resource is named twice", resource=self._names)
        self.using = using
        self._ttl = ttl
        self._wait = wait
        self._renew = renew
        self._reentrant = reentrant
        self._holder = dict(holder or {})
        self._hold: HeldLease | None = None
        self._unlocked = False
        self._times()  # a bad number is an error here, not at the first request

    def __repr__(self) -> str:
        state = "held" if self.locked else "not held"
        return f"<Lock {self._names!r} using {self.using!r}, {state}>"

    # Taking.

    def acquire(self) -> Self:
        """Take the lock and return it.

        Raises ResourceLocked, QuorumUnreachable, AlreadyHeld, or Django's
        SynchronousOnlyOperation inside a running loop.
        """
        return self._acquire(renew=bool(self._renew))

    @async_unsafe(_IN_A_LOOP)
    def _refuse_in_a_loop(self) -> None:
        # Not a wrapper around the taking: a signal that is handled at the end of a wrapper
        # would lose a lock that is taken.
        pass

    def _acquire(self, *, renew: bool) -> Self:
        self._refuse_in_a_loop()
        if self._nest():
            return self
        service, ttl, wait = self._times()
        try:
            lease = service.backend.acquire(self._in_order(), ttl, wait, self._who())
        except NotAcquired as error:
            self._refused(service, error)
            return self
        try:
            renewal_service.watch(self._new_hold(service, lease, renew))
        except BaseException:  # an interrupt: nobody would give the lock back
            service.backend.post_release(lease)
            if self._hold is not None:
                self._leave(self._hold)
            raise
        return self

    async def aacquire(self) -> Self:
        """As `acquire`, for coroutines; the lock belongs to the running task and loop."""
        return await self._aacquire(renew=bool(self._renew))

    async def _aacquire(self, *, renew: bool) -> Self:
        if self._nest():
            return self
        service, ttl, wait = self._times()
        try:
            lease = await service.backend.aacquire(self._in_order(), ttl, wait, self._who())
        except NotAcquired as error:
            self._refused(service, error)
            return self
        try:
            renewal_service.awatch(self._new_hold(service, lease, renew))
        except BaseException:
            service.backend.post_release(lease)
            if self._hold is not None:
                self._leave(self._hold)
            raise
        return self

    def _in_order(self) -> tuple[str, ...]:
        # The same for everybody: see `rounds.acquire`.
        return tuple(sorted(self.resources))

    def _new_hold(self, service: LockService, lease: Any, renew: bool) -> HeldLease:
        hold = HeldLease(
            service.backend,
            lease,
            hold_until=lease.started + service.settings.max_hold,
            renew=renew,
            sender=type(self),
            holder=self._holder,
        )
        hold.takers.add(self)
        self._hold = hold
        hold.keys = self._keys()
        for key in hold.keys:
            _held[key] = hold
        events.acquired(hold)
        return hold

    def _nest(self) -> bool:
        """Join the hold of the outer lock, or refuse to; False where there is none."""
        if self._hold is not None and self._hold.remaining():
            raise AlreadyHeld(
                f"{self._names}: this Lock object holds it already; make another one, with "
                "reentrant=True if it is meant to be nested",
                resource=self._names,
            )
        self._hold, self._unlocked = None, False
        outer = {id(hold): hold for key in self._keys() if (hold := _live(key))}
        if not outer:
            return False
        hold = next(iter(outer.values()))
        if not self._reentrant or len(outer) > 1 or set(self.resources) - {*hold.lease.resources}:
            mine = ", ".join(
                r for r, key in zip(self.resources, self._keys(), strict=True) if _live(key)
            )
            raise AlreadyHeld(
                f"{mine}: this task or thread holds it already; lock(..., reentrant=True) "
                "nests in one outer lock that holds all the same resources",
                resource=mine,
            )
        hold.takers.add(self)
        self._hold = hold
        return True

    def _refused(self, service: LockService, error: NotAcquired) -> None:
        """Raise, or go on without a lock where the settings say so."""
        unavailable = isinstance(error, QuorumUnreachable)
        proceed = unavailable and service.settings.on_unavailable == "proceed" and not self._strict
        events.refused(
            error,
            sender=type(self),
            using=self.using,
            resources=self.resources,
            holder=self._holder,
            proceed=proceed,
        )
        if not proceed:
            raise error
        self._unlocked = True

    # Holding.

    @property
    def locked(self) -> bool:
        """Whether the lock is ours now; False too where ON_UNAVAILABLE let us go on without."""
        return self._hold is not None and self._hold.remaining() > 0

    def remaining(self) -> float:
        """Seconds this lock is still surely ours, 0.0 if it is not."""
        return 0.0 if self._hold is None else self._hold.remaining()

    def ensure_held(self) -> None:
        """Raise LockLost if the lock is not ours any more, NotHeld if it never was.

        Asks nobody: it is the local clock's word, and the last renewal's. Where
        ON_UNAVAILABLE = "proceed" let us go on without a lock there is nothing to lose.
        """
        if self._unlocked:
            return
        hold = self._taken()
        if not hold.remaining():
            why = hold.lost or ("it belongs to the parent process" if hold.inherited else "")
            raise LockLost(f"{self._names}: the lock was lost: {why}", resource=self._names)

    @property
    def fences(self) -> dict[str, int]:
        """The fencing token of each resource; raises NotHeld if the lock was not taken."""
        hold = self._taken()
        every = dict(zip(hold.lease.resources, hold.lease.fences, strict=True))
        return {resource: every[resource] for resource in self.resources}

    @property
    def fence(self) -> int:
        """The fencing token: it only grows from one holder of the resource to the next.

        Raises NotHeld if the lock was not taken, ValueError for several resources.
        """
        if len(self.resources) > 1:
            raise ValueError(f"{self._names}: several resources, use fences[resource]")
        return self.fences[self.resources[0]]

    @property
    def fingerprint(self) -> str:
        """Which holder this is, in 8 hex digits, without the token; NotHeld if not taken."""
        return self._taken().lease.fingerprint

    @async_unsafe(_IN_A_LOOP)
    def extend(self, ttl: float | timedelta | None = None) -> float:
        """Let the lock live `ttl` seconds from now (None: its own TTL); return those left.

        Never shortens what is left, and never reaches beyond MAX_HOLD. Raises LockLost,
        NotHeld, ValueError.
        """
        hold, seconds = self._to_extend(ttl)
        hold.found(*hold.backend.extend(hold.lease, seconds))
        self.ensure_held()
        return hold.remaining()

    async def aextend(self, ttl: float | timedelta | None = None) -> float:
        """As `extend`, for coroutines."""
        hold, seconds = self._to_extend(ttl)
        hold.found(*await hold.backend.aextend(hold.lease, seconds))
        self.ensure_held()
        return hold.remaining()

    def _to_extend(self, ttl: float | timedelta | None) -> tuple[HeldLease, float]:
        hold = self._taken()
        self.ensure_held()
        seconds = hold.ttl if ttl is None else locks[self.using].settings.check_ttl(ttl)
        left = hold.hold_until - hold.backend.clock()
        if left <= 0:
            hold.lose("MAX_HOLD was reached")
            self.ensure_held()
        return hold, min(seconds, left)

    # Giving back.

    def release(self) -> bool:
        """Give the lock back; True if a majority of the masters freed it just now.

        False if it was lost before, was not held, is still held by an outer lock, or if
        too few masters answered in time: these are told again as soon as they are back.
        Never raises for a lost lock, and never waits inside a running loop.
        """
        hold, self._unlocked = self._hold, False
        if hold is None:
            return False
        freed: bool | None = None
        try:
            if not self._leave(hold):
                return False
            if _in_a_loop():
                hold.backend.post_release(hold.lease)
            else:
                freed = hold.backend.release(hold.lease)
        except BaseException as error:  # noqa: BLE001 - raised again there
            self._see_through(hold, error)
        return self._released(hold, freed)

    async def arelease(self) -> bool:
        """As `release`, for coroutines."""
        hold, self._unlocked = self._hold, False
        if hold is None:
            return False
        freed: bool | None = None
        try:
            if not self._leave(hold):
                return False
            freed = await hold.backend.arelease(hold.lease)
        except BaseException as error:  # noqa: BLE001 - raised again there
            self._see_through(hold, error)
        if freed is False:
            return self._released(hold, freed)
        await events.areleased(hold, freed)
        return bool(freed)

    def _leave(self, hold: HeldLease) -> bool:
        """Let go of the hold; whether it is ours to release now. Harmless if said again."""
        self._hold = None
        if hold.inherited:
            logger.debug("redlock %s: held by the parent process, not released", self._names)
            return False
        hold.takers.discard(self)
        if hold.takers:
            return False
        for key in hold.keys:
            _held.pop(key, None)
        left = hold.remaining()  # tells, if it has run out
        if hold.lost and not hold.over:
            events.released_late(hold)
        hold.end()
        return left > 0

    def _see_through(self, hold: HeldLease, error: BaseException) -> None:
        """A release broke off: say it again, and raise only what is meant to end the caller."""
        self._leave(hold)
        if hold.over:
            with suppress(Exception):  # the first failure is the one to tell
                hold.backend.post_release(hold.lease)
        if isinstance(error, Exception):
            # The body's own exception must not be hidden by a defect of ours.
            logger.error("redlock %s: the release failed", self._names, exc_info=error)
            return
        if hold.over and not hold.lost:
            self._released(hold, None)
        raise error

    def _released(self, hold: HeldLease, freed: bool | None) -> bool:
        if freed is False:
            hold.lose("a majority of the masters had given it to somebody else or forgotten it")
            events.released_late(hold)
            return False
        events.released(hold, freed)
        return bool(freed)

    def __enter__(self) -> Self:
        return self._acquire(renew=self._renews())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    async def __aenter__(self) -> Self:
        return await self._aacquire(renew=self._renews())

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None and issubclass(kind, asyncio.CancelledError):
            # A disconnect or a timeout cannot stop a thread: it may be about to COMMIT.
            await behind_threads(self.arelease)
        else:
            await self.arelease()

    def detach(self) -> None:
        """Let the lock outlive the task that took it: from here on the process renews it."""
        if self._hold is not None:
            renewal_service.adopt(self._hold)

    # What it is made of.

    @property
    def _names(self) -> str:
        return ", ".join(self.resources)

    def _renews(self) -> bool:
        return locks[self.using].settings.renew if self._renew is None else self._renew

    def _times(self) -> tuple[LockService, float, float]:
        service = locks[self.using]
        options = service.settings
        ttl = options.ttl if self._ttl is None else options.check_ttl(self._ttl)
        wait = options.wait if self._wait is None else options.check_wait(self._wait)
        if ttl > options.max_hold:
            raise ValueError(
                f"ttl is {ttl:g} s and MAX_HOLD is {options.max_hold:g} s: "
                "lower ttl or raise MAX_HOLD"
            )
        return service, ttl, wait

    def _taken(self) -> HeldLease:
        if self._hold is None:
            raise NotHeld(f"{self._names}: this lock is not held", resource=self._names)
        return self._hold

    def _keys(self) -> list[HeldAs]:
        # By backend, not by alias: what was held under other settings does not count.
        backend, owner = locks[self.using].backend, _owner()
        return [(backend, resource, owner) for resource in self.resources]

    def _who(self) -> str:
        about = {
            "host": _HOST,
            "pid": os.getpid(),
            "app": _APP,
            "at": round(wall_ns() / 1e9, 3),
            **{key: str(value)[:200] for key, value in self._holder.items()},
        }
        return json.dumps(about, separators=(",", ":"))


def holds(resource: str, using: str = "default") -> list[HeldLease]:
    """What this process holds of a resource now, in whatever thread or task."""
    backend = locks[using].backend
    every = list(_held.items())
    return [hold for key, hold in every if key[:2] == (backend, resource) and hold.remaining()]


def _live(key: HeldAs) -> HeldLease | None:
    hold = _held.get(key)
    return hold if hold is not None and hold.remaining() else None


def _owner() -> object:
    try:
        return asyncio.current_task() or threading.current_thread()
    except RuntimeError:
        return threading.current_thread()


def _in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True

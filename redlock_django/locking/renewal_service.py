"""Renewal: leases that are held are extended in time, and a lost one is told.

One thread for the locks that threads hold, timers of the loop for those that tasks hold.
What is due, and when, the engine decides (`engine.renewal`); here it is only carried out.
A lost lease is noticed by the local clock too, so also when the network is dead.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import math
import os
import threading
import weakref
from collections.abc import Mapping
from itertools import count
from operator import itemgetter
from typing import NamedTuple

from redlock_django.backends.base import BaseBackend
from redlock_django.engine.renewal import next_extension
from redlock_django.engine.validity import Lease, LeaseState
from redlock_django.locking import events
from redlock_django.locking.handler import locks
from redlock_django.wire.bell import Bell
from redlock_django.wire.clock import clock

logger = logging.getLogger("redlock_django")

HeldAs = tuple[BaseBackend, str, object]
"""Where a hold stands among all of this process: backend, resource, and task or thread."""


class Due(NamedTuple):
    """When to look after a hold, by its backend's clock."""

    when: float
    order: int
    hold: weakref.ref[HeldLease]


class HeldLease:
    """A lease somebody holds, and everything that may happen to it until it is over.

    `ttl` is what the holder asked for and `hold_until` the last moment of the backend's
    clock it may be held. `takers` are the locks that stand on it: several, where it was taken
    again (reentrancy). `keys` is where it stands among all that this process holds, `holder`
    what is to be shown of the holder beside host, process and time.
    """

    __slots__ = (
        "__weakref__", "backend", "forks", "hold_until", "holder", "keys", "lease", "lost",
        "once", "over", "renew", "sender", "since", "state", "takers", "timer", "ttl",
    )  # fmt: skip

    def __init__(
        self,
        backend: BaseBackend,
        lease: Lease,
        *,
        hold_until: float,
        renew: bool,
        sender: type,
        holder: Mapping[str, str],
    ) -> None:
        self.backend = backend
        self.lease = lease
        self.since = lease.started
        self.ttl = lease.ttl
        self.hold_until = hold_until
        self.renew = renew
        self.sender = sender
        self.holder = holder
        self.state = LeaseState.RENEWED
        self.lost = ""
        self.once = threading.Lock()
        self.over = False
        self.takers: weakref.WeakSet[object] = weakref.WeakSet()
        self.keys: list[HeldAs] = []
        self.forks = locks.forks
        self.timer: asyncio.TimerHandle | None = None

    @property
    def inherited(self) -> bool:
        """Whether this is a child process's copy of what its parent holds."""
        return self.forks != locks.forks

    def remaining(self) -> float:
        """Seconds the lease is still surely ours; 0 where it is lost, and then it is told."""
        if self.inherited or self.over or self.lost:
            return 0.0
        if self.backend.voided(self.lease):
            self.lose("the clock of this process stepped")
            return 0.0
        left = self.lease.until - self.backend.clock()
        if left <= 0:
            held_long = self.lease.until >= self.hold_until - self.ttl * 0.02 - 0.01
            self.lose("MAX_HOLD was reached" if held_long and self.renew else "its time ran out")
            return 0.0
        return left

    def held(self) -> float:
        """Seconds since it was taken."""
        return max(0.0, self.backend.clock() - self.since)

    def lose(self, reason: str) -> None:
        """Note, once, that the lease is lost, tell everybody, and free what is left of it."""
        if self.lost or self.inherited:
            return
        self.lost = reason
        if not self.once.acquire(blocking=False):
            return  # the holder and the renewal service found out at the same moment
        self.backend.post_release(self.lease)
        events.lost(self, reason)

    def due(self) -> float:
        """When to look after this lease next, by the backend's clock."""
        plan = self._plan()
        return self.lease.until if plan is None else plan[0]

    def _plan(self) -> tuple[float, float] | None:
        if not self.renew:
            return None
        return next_extension(
            self.lease,
            self.backend.clock(),
            ttl=self.ttl,
            hold_until=self.hold_until,
            state=self.state,
        )

    def asked(self) -> float | None:
        """The TTL to extend by now; None where it is too early, or where nothing can be done."""
        if not self.remaining():
            return None
        plan = self._plan()
        # An unknown outcome plans from now on, so its turn has come when the timer has.
        if plan is None or (
            self.state is LeaseState.RENEWED and plan[0] > self.backend.clock() + 0.001
        ):
            return None
        return plan[1]

    def found(self, state: LeaseState, lease: Lease) -> None:
        """Take in what an extension found out, unless the lease is over meanwhile."""
        if self.over or self.lost:
            # The extension may have left after the release, and healed a master with it.
            self.backend.post_release(lease)
            return
        self.state = state
        if state is LeaseState.LOST:
            expired = self.backend.clock() >= lease.until
            self.lose("its time ran out" if expired else "a majority of the masters lost it")
        elif lease.until >= self.lease.until:
            self.lease = lease

    def tick(self) -> None:
        """Extend if it is time; for a lease that a thread took."""
        if (ttl := self.asked()) is not None:
            self.found(*self.backend.extend(self.lease, ttl))

    async def atick(self) -> None:
        """Extend if it is time; for a lease that a task took, on its loop."""
        if (ttl := self.asked()) is not None:
            self.found(*await self.backend.aextend(self.lease, ttl))

    def end(self) -> None:
        """The lease is given back: no renewal from here on."""
        self.over = True
        if self.timer is not None:
            self.timer.cancel()


class RenewalService:
    """Looks after the holds of one process."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._due: dict[BaseBackend, list[Due]] = {}  # not in one: clocks of backends differ
        self._tasks: set[asyncio.Task[None]] = set()
        self._until = math.inf  # when the thread wakes by itself
        self._order = count()
        self._mutex = threading.Lock()
        self._bell = Bell()
        self._thread: threading.Thread | None = None

    def watch(self, hold: HeldLease) -> None:
        """Look after a hold of a thread until it is over, lost, or forgotten."""
        backend, when = hold.backend, hold.due()
        with self._mutex:
            due = Due(when, next(self._order), weakref.ref(hold))
            heapq.heappush(self._due.setdefault(backend, []), due)
            if self._thread is None:
                thread = threading.Thread(target=self._keep, name="redlock-renewal", daemon=True)
                thread.start()
                self._thread = thread  # not before: a start that failed is tried again
            elif clock() + max(0.0, when - backend.clock()) < self._until:
                self._bell.ring()

    def _keep(self) -> None:
        while True:
            hold = self._next()
            try:
                hold.tick()
            except Exception:
                # Nothing may end this thread: others rely on it.
                logger.exception("redlock: an extension failed")
                hold.state = LeaseState.UNKNOWN
            if not (hold.over or hold.lost):
                self.watch(hold)
            del hold

    def _next(self) -> HeldLease:
        while True:
            with self._mutex:
                firsts = {backend: self._first(backend) for backend in self._due}
                left = min(firsts.values(), default=None)
                # With nothing left it sleeps until then all the same: who takes locks for a
                # short time, one after the other, need not wake it for each.
                self._due = dict(filter(itemgetter(1), self._due.items()))
                self._until = math.inf if left is None else clock() + max(0.0, left)
                if left is not None and left <= 0:
                    due = self._due.get(min(firsts, key=firsts.__getitem__))
                    hold = heapq.heappop(due).hold() if due else None
                    if hold is not None:
                        return hold
                    continue
            self._bell.wait(left)

    def _first(self, backend: BaseBackend) -> float:
        """Seconds until the first hold of a backend that is not over, or the last that is."""
        due, left = self._due[backend], 0.0
        while due:
            hold, left = due[0].hold(), due[0].when - backend.clock()
            if not (hold is None or hold.over or hold.lost):
                break
            heapq.heappop(due)
        return left

    def adopt(self, hold: HeldLease) -> None:
        """Look after a hold that a task took and leaves behind; its loop may end before it does."""
        if hold.timer is not None:
            hold.timer.cancel()
            hold.timer = None
            self.watch(hold)

    def awatch(self, hold: HeldLease) -> None:
        """Look after a hold of a task, on the running loop, until it is over, lost or forgotten."""
        left = max(0.0, hold.due() - hold.backend.clock())
        loop = asyncio.get_running_loop()
        hold.timer = loop.call_later(left, self._fire, weakref.ref(hold))

    def _fire(self, reference: weakref.ref[HeldLease]) -> None:
        hold = reference()
        if hold is None or hold.over or hold.lost:
            return
        task = asyncio.get_running_loop().create_task(self._akeep(hold))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _akeep(self, hold: HeldLease) -> None:
        try:
            await hold.atick()
        except Exception:
            logger.exception("redlock: an extension failed")
            hold.state = LeaseState.UNKNOWN
        if not (hold.over or hold.lost):
            self.awatch(hold)


renewal_service = RenewalService()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=renewal_service._reset)

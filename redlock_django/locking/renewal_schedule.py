"""The schedule of the renewal service: which held leases to check next, and when."""

from __future__ import annotations

import heapq
import math
import weakref
from collections import deque
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from redlock_django.wire.clock import clock

if TYPE_CHECKING:
    from redlock_django.backends.base import BaseBackend
    from redlock_django.locking.held_lease import HeldLease

MOST_NEW = 1000  # leases added until they are sorted in, so that those that ended are dropped
LONG_OVERDUE = 1.0  # seconds after which a thread that should have looked may have died
MIN_SCHEDULED = 128  # checks sorted in until those of ended leases are removed, at least


class Check(NamedTuple):
    """When to check a held lease next, by its backend's clock; `order` breaks ties."""

    when: float
    order: int
    held_lease: weakref.ref[HeldLease]


class Schedule:
    """The leases that one thread or loop checks. Any thread may add one; that one does the rest.

    Most locks are released long before their first check. So a lease is only noted when it is
    added, and sorted in when the thread or loop looks: nearly all have ended by then.
    """

    def __init__(self) -> None:
        self.wakes_at = math.inf
        """When the thread or loop looks again by itself, by the clock of this process."""
        self._new: deque[tuple[float, weakref.ref[HeldLease]]] = deque()
        # One heap for each backend, because the clocks of backends differ.
        self._checks: dict[BaseBackend, list[Check]] = {}
        self._until_cleanup = MIN_SCHEDULED
        self._order = count()

    def add(self, held_lease: HeldLease, now: float) -> bool:
        """Note a lease, which no other schedule checks from `now` on, by the process's clock.

        Returns whether the thread or loop must look earlier than it would by itself.
        """
        held_lease.schedule = self
        lease = held_lease.lease
        # Not after the moment of its first check, which takes longer to find.
        when = lease.started + lease.ttl / 3 if held_lease.renew else lease.until
        if held_lease.backend.clock is not clock:
            when += now - held_lease.backend.clock()
        self._new.append((when, weakref.ref(held_lease)))
        return when < self.wakes_at or len(self._new) > MOST_NEW

    def sort(self, held_lease: HeldLease) -> None:
        """Sort a lease in by its next check."""
        check = Check(held_lease.next_check(), next(self._order), weakref.ref(held_lease))
        heapq.heappush(self._checks.setdefault(held_lease.backend, []), check)
        self._until_cleanup -= 1
        if self._until_cleanup <= 0:
            for checks in self._checks.values():
                checks[:] = sorted(filter(self._is_needed, checks))  # a sorted list is a heap
            self._until_cleanup = max(MIN_SCHEDULED, sum(map(len, self._checks.values())))

    def next_delay(self) -> float | None:
        """Sort new leases in; return the seconds until the next check, None if there is none.

        A lease that has ended still counts at first: then the thread need not be woken for every
        one of many short locks, acquired one after the other.
        """
        while True:
            ended = self._sort_new()
            now = clock()
            delays = [ended - now] if ended > now else []
            for backend in list(self._checks):
                if checks := self._needed(backend):
                    delays.append(checks[0].when - backend.clock())
                else:
                    del self._checks[backend]
            delay = min(delays, default=None)
            self.wakes_at = math.inf if delay is None else now + max(0.0, delay)
            if not self._new:  # a lease that is added from here on is compared with `wakes_at`
                return delay

    def pop_due(self, most: int) -> list[HeldLease]:
        """Remove the checks that are due, `most` at most, and return their leases."""
        late = {backend: c[0].when - backend.clock() for backend, c in self._checks.items() if c}
        due: dict[HeldLease, None] = {}
        for backend in sorted(late, key=late.__getitem__):
            now = backend.clock()
            while (checks := self._needed(backend)) and checks[0].when <= now and len(due) < most:
                if (held_lease := heapq.heappop(checks).held_lease()) is not None:
                    due[held_lease] = None
        return list(due)

    def _sort_new(self) -> float:
        """Sort new leases in; return when the last one of those that have ended was due, or 0."""
        ended = 0.0
        while self._new:
            when, reference = self._new[0]
            held_lease = reference()
            if held_lease is None or held_lease.ended:
                ended = when
            elif held_lease.schedule is self:
                self.sort(held_lease)
            self._new.popleft()  # last: an interrupt may have a lease sorted in twice, never lost
        return ended

    def _needed(self, backend: BaseBackend) -> list[Check]:
        """Return the checks of a backend; the first is that of a lease that must be checked."""
        checks = self._checks[backend]
        while checks and not self._is_needed(checks[0]):
            heapq.heappop(checks)
        return checks

    def _is_needed(self, check: Check) -> bool:
        held_lease = check.held_lease()
        return held_lease is not None and not held_lease.ended and held_lease.schedule is self

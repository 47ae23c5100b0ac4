"""What goes wrong in a soak, one thing every two seconds, and how it ends again."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count

from redlock_django.testing.masters import LocalMaster
from redlock_django.wire.clock import clock
from tests.live.soak.crew import Crew
from tests.live.soak.worker import TTL


class Faults:
    """Faults drawn by chance and their ends; `counts` says how many there were of each kind.

    Nothing keeps a majority of the masters up: without one nobody is granted, which is right.
    `forgetful`: masters are restarted at once, and nothing else.
    """

    def __init__(
        self,
        crew: Crew,
        masters: Sequence[LocalMaster],
        chance: random.Random,
        every: float,
        forgetful: bool,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._crew = crew
        self._masters = masters
        self._chance = chance
        self._every = every
        self._kinds: list[Callable[[], None]] = [
            self._kill_master,
            self._restart_master,
            self._stop_master,
            self._pause_worker,
            self._pause_worker,
            self._kill_worker,
        ]
        if forgetful:
            self._kinds = [self._restart_master]
        self._order = count()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._in(every, self._next)

    def left(self) -> float:
        """Seconds until something is to be done."""
        return max(0.0, self._due[0][0] - clock())

    def step(self) -> None:
        """Do what is due."""
        while self._due and not self.left():
            heapq.heappop(self._due)[2]()

    def end(self) -> None:
        """Mend everything."""
        for _, _, end in sorted(self._due):
            if end != self._next:
                end()
        self._due.clear()

    def _in(self, seconds: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._due, (clock() + seconds, next(self._order), what))

    def _next(self) -> None:
        self._chance.choice(self._kinds)()
        self._in(self._every * self._chance.uniform(0.75, 1.25), self._next)

    def _a_master(self) -> LocalMaster | None:
        up = [master for master in self._masters if master.alive and not master.paused]
        return self._chance.choice(up) if up else None

    def _kill_master(self) -> None:
        if master := self._a_master():
            self.counts["masters killed, started again later"] += 1
            master.kill()
            self._in(self._chance.uniform(0.5, 3), master.start)

    def _restart_master(self) -> None:
        if master := self._a_master():
            self.counts["masters killed, started again at once"] += 1
            master.restart()

    def _stop_master(self) -> None:
        if master := self._a_master():
            self.counts["masters stopped (SIGSTOP)"] += 1
            master.pause()
            self._in(self._chance.uniform(0.2, 3), master.resume)

    def _pause_worker(self) -> None:
        if awake := [member for member in self._crew.working if not member.stopped]:
            self.counts["workers stopped for twice the TTL (SIGSTOP)"] += 1
            # One that has read and not written yet, as far as it has said.
            reading = [m for m in awake if m.said and m.said[-1].what in ("granted", "renewed")]
            member = self._chance.choice(reading or awake)
            member.stop()
            self._in(2 * TTL, member.resume)

    def _kill_worker(self) -> None:
        if awake := [member for member in self._crew.working if not member.stopped]:
            self.counts["workers killed (SIGKILL)"] += 1
            self._crew.kill(self._chance.choice(awake))
            self._crew.hire()

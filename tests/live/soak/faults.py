"""The faults of a soak: every two seconds one begins, and most end later."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count

from redlock_django.testing.masters import LocalMaster
from redlock_django.wire.clock import clock
from tests.live.soak.processes import Workers
from tests.live.soak.worker import TTL


class Faults:
    """Random faults and their ends; `counts` counts them by kind.

    A majority of the masters may be down: then no lock is granted, which is correct. `forgetful`:
    the only fault is that masters are restarted at once.
    """

    def __init__(
        self,
        workers: Workers,
        masters: Sequence[LocalMaster],
        rng: random.Random,
        every: float,
        forgetful: bool,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._workers = workers
        self._masters = masters
        self._rng = rng
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

    def delay(self) -> float:
        """Return the seconds until the next fault begins or ends."""
        return max(0.0, self._due[0][0] - clock())

    def step(self) -> None:
        """Begin and end the faults that are due."""
        while self._due and not self.delay():
            heapq.heappop(self._due)[2]()

    def end(self) -> None:
        """End all faults."""
        for _, _, end in sorted(self._due):
            if end != self._next:
                end()
        self._due.clear()

    def _in(self, seconds: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._due, (clock() + seconds, next(self._order), what))

    def _next(self) -> None:
        self._rng.choice(self._kinds)()
        self._in(self._every * self._rng.uniform(0.75, 1.25), self._next)

    def _pick_master(self) -> LocalMaster | None:
        up = [master for master in self._masters if master.alive and not master.paused]
        return self._rng.choice(up) if up else None

    def _kill_master(self) -> None:
        if master := self._pick_master():
            self.counts["masters killed, started again later"] += 1
            master.kill()
            self._in(self._rng.uniform(0.5, 3), master.start)

    def _restart_master(self) -> None:
        if master := self._pick_master():
            self.counts["masters killed, started again at once"] += 1
            master.restart()

    def _stop_master(self) -> None:
        if master := self._pick_master():
            self.counts["masters stopped (SIGSTOP)"] += 1
            master.pause()
            self._in(self._rng.uniform(0.2, 3), master.resume)

    def _pause_worker(self) -> None:
        if awake := [worker for worker in self._workers.running if not worker.stopped]:
            self.counts["workers stopped for twice the TTL (SIGSTOP)"] += 1
            # Prefer a worker that, by its last event, may have read and not written yet.
            reading = [w for w in awake if w.events and w.events[-1].what in ("granted", "renewed")]
            worker = self._rng.choice(reading or awake)
            worker.stop()
            self._in(2 * TTL, worker.resume)

    def _kill_worker(self) -> None:
        if awake := [worker for worker in self._workers.running if not worker.stopped]:
            self.counts["workers killed (SIGKILL)"] += 1
            self._workers.kill(self._rng.choice(awake))
            self._workers.start()

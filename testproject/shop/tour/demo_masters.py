"""The masters of the demo, which the tour stops and starts again."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

from redlock_django import LockLost, NotAcquired, QuorumUnreachable, lock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from redlock_django.testing import LocalMaster

OUTAGE = 60.0
"""Seconds after which masters run again, also if the visitor has left the page."""

PATIENCE = 10.0
"""Seconds to wait for what happens at once, unless the machine is busy."""


class DemoMasters:
    """Five local masters that fail on request, and are repaired after `OUTAGE` seconds at most."""

    def __init__(self, masters: list[LocalMaster], outage: float = OUTAGE) -> None:
        self.masters = masters
        self.outage = outage
        self._mutex = threading.Lock()
        self._timer: threading.Timer | None = None
        self._job: threading.Thread | None = None
        self._job_ends = threading.Event()

    @contextlib.contextmanager
    def step(self, *, lasts: bool = False) -> Iterator[None]:
        """Use the masters alone during the block. All of them run when it begins.

        They are repaired at its end, or with `lasts` after `outage` seconds, so that the visitor
        can look around, and may also leave.
        """
        with self._mutex:
            self._repair_and_wait()
            try:
                yield
            except BaseException:
                self.repair()
                raise
            if lasts:
                self._repair_later()
            else:
                self.repair()

    def kill_one(self) -> None:
        """Kill the first master, which forgets everything."""
        self.masters[0].kill()

    def hang_three(self) -> None:
        """Stop three masters with SIGSTOP: they remember everything, and do not answer."""
        for master in self.masters[1:4]:
            master.pause()

    def hold(self, resource: str) -> None:
        """Hold a lock as a job that hangs, until the masters are repaired."""
        held = threading.Event()

        def job() -> None:
            holding = lock(resource, wait=PATIENCE, holder={"job": "report"})
            # The visitor releases it by force.
            with contextlib.suppress(NotAcquired, LockLost), holding:
                held.set()
                self._job_ends.wait()

        self._job_ends.clear()
        self._job = threading.Thread(target=job, name="report", daemon=True)
        self._job.start()
        held.wait(PATIENCE)

    def repair(self) -> None:
        """Start or resume every master that does not run, and end the job that holds a lock."""
        self._job_ends.set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for master in self.masters:
            if master.paused:
                master.resume()
            master.start()
        if self._job is not None:
            self._job.join()
            self._job = None

    def _repair_and_wait(self) -> None:
        """Repair, and wait until enough masters are counted again."""
        self.repair()
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            with contextlib.suppress(QuorumUnreachable), lock("tour"):
                return
            time.sleep(0.05)

    def _repair_later(self) -> None:
        self._timer = threading.Timer(self.outage, self._repair_if_due)
        self._timer.daemon = True
        self._timer.start()

    def _repair_if_due(self) -> None:
        with self._mutex:
            # Another step may have begun meanwhile, and have repaired the masters itself.
            if self._timer is threading.current_thread():
                self.repair()


_running: list[DemoMasters] = []


@contextlib.contextmanager
def demo_masters(masters: list[LocalMaster], outage: float = OUTAGE) -> Iterator[DemoMasters]:
    """Make the tour of this process use these masters during the block."""
    demo = DemoMasters(masters, outage)
    _running.append(demo)
    try:
        yield demo
    finally:
        _running.remove(demo)
        demo.repair()


def running_demo() -> DemoMasters | None:
    """Return the masters of `manage.py demo`, None in any other process."""
    return _running[-1] if _running else None

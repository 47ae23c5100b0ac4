"""How busy this host is: stalls of this process, measured with a thread that only sleeps."""

from __future__ import annotations

import os
import threading
from types import TracebackType
from typing import Self

from redlock_django.wire.clock import clock

PAUSE = 0.01  # seconds that the thread sleeps each time
SHORT = 0.005  # seconds without a poll, or beyond its end, in which the process did not stall


class StallWatch:
    """A context manager that measures for how long this process was stalled in its block.

    After the block, `seconds` is how long it measured, and `stalled` for how much of that time the
    thread slept longer than it had asked to.
    """

    seconds = 0.0
    stalled = 0.0

    def __enter__(self) -> Self:
        self._ended = threading.Event()
        self._began = clock()
        self._thread = threading.Thread(target=self._run, name="redlock-stalls", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()
        self.seconds = clock() - self._began

    def _run(self) -> None:
        while not self._ended.is_set():
            began = clock()
            self._ended.wait(PAUSE)
            over = clock() - began - PAUSE
            if over > SHORT:
                self.stalled += over

    @property
    def busy(self) -> bool:
        """True if this process was stalled for a tenth of the time, or the load is too high."""
        load, processors = load_average()
        return self.stalled > self.seconds / 10 or load > processors


def load_average() -> tuple[float, int]:
    """Return this host's load average of the last minute, and the number of its processors."""
    processors = os.cpu_count() or 1
    try:
        return os.getloadavg()[0], processors
    except OSError:
        return 0.0, processors

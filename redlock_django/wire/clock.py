"""The clock that validity is measured by."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

# Taken at import, so that test libraries that bend `time` do not bend it. CLOCK_BOOTTIME
# also counts the time a suspended machine sleeps, in which the masters' TTLs run on.
clock: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME)
    if hasattr(time, "CLOCK_BOOTTIME")
    else time.monotonic
)
wall_ns: Callable[[], int] = time.time_ns

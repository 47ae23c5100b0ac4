"""The clock that validity is measured with."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

# Read at import, so that test libraries that replace functions of `time` do not change it.
# CLOCK_BOOTTIME also counts the time during which a suspended machine sleeps, while the masters'
# TTLs run on.
clock: Callable[[], float] = (
    partial(time.clock_gettime, time.CLOCK_BOOTTIME)
    if hasattr(time, "CLOCK_BOOTTIME")
    else time.monotonic
)
wall_ns: Callable[[], int] = time.time_ns

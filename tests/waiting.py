"""Waiting for something to come true, instead of sleeping and hoping."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(
    condition: Callable[[], object],
    what: str = "it",
    *,
    seconds: float = 10.0,
    longest: float = 0.02,
) -> float:
    """Return once the condition holds, with the seconds that took.

    Looks again after pauses that grow up to `longest` seconds: who looks without one takes the
    processor from what it waits for. AssertionError that says `what` if it never holds.
    """
    began, pause = time.monotonic(), 0.001
    while not condition():
        assert time.monotonic() - began < seconds, f"not within {seconds:g} s: {what}"
        time.sleep(pause)
        pause = min(pause * 1.4, longest)
    return time.monotonic() - began

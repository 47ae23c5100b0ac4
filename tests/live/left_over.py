"""What is left of locks on real masters, and how to wait for something without guessing."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from redlock_django.testing.masters import LocalMaster


def until(condition: Callable[[], object], seconds: float = 10.0, what: str = "it") -> None:
    """Wait until a condition holds; AssertionError if it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not come within {seconds:g} s"
        time.sleep(0.002)


def locked(masters: Sequence[LocalMaster], prefix: str = "redlock") -> dict[str, int]:
    """Every lock key, and on how many masters it stands."""
    found: dict[str, int] = {}
    for master in masters:
        with master.client() as client:
            for key in client.scan_iter(f"{prefix}:lock:*", count=1000):
                found[key.decode()] = found.get(key.decode(), 0) + 1
    return found


def nothing_left(masters: Sequence[LocalMaster], seconds: float = 3.0) -> None:
    """Wait until no master has a lock: far less than a TTL, so only a release can do it."""
    deadline = time.monotonic() + seconds
    while left := locked(masters):
        assert time.monotonic() < deadline, f"left behind: {left}"
        time.sleep(0.005)

"""A hint for developers: a lock that was made and never acquired has locked nothing.

Only a process whose settings have DEBUG has the method that finds them.
"""

from __future__ import annotations

import logging
import sys

from django.conf import settings

from redlock_django.locking.lock import Lock

logger = logging.getLogger("redlock_django")


def report_unused_locks() -> None:
    """Log a warning for each `lock()` that ends without an attempt to acquire it."""
    Lock.__del__ = _report_if_unused  # type: ignore[attr-defined]


def _report_if_unused(lock: Lock) -> None:
    if sys.is_finalizing() or not settings.DEBUG or type(lock) is not Lock:
        return
    state = vars(lock)
    # Valid arguments set the first; every attempt to acquire the lock sets the second. A resumed
    # lock has the third: its ticket is still good.
    if "_arguments" in state and "_unlocked" not in state and "_given" not in state:
        names = ", ".join(map(repr, lock.resources))
        logger.warning(
            "redlock: lock(%s) was never acquired, so it has locked nothing. Write "
            "'with lock(...):' or 'async with lock(...):', or call acquire()",
            names,
        )

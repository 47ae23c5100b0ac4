"""Forced release: free a lock that another client holds, and report the operator."""

from __future__ import annotations

import logging

from django.utils.asyncio import async_unsafe

from redlock_django.backends.inspection.contract import Inspection
from redlock_django.backends.inspection.results import Freed, ReleaseOutcome
from redlock_django.locking.names import check_slot, printable
from redlock_django.locking.reports import counters
from redlock_django.operate.inspection import inspection_of
from redlock_django.signals import lock_force_released, send

__all__ = ["Freed", "ReleaseOutcome", "force_release"]

logger = logging.getLogger("redlock_django")


@async_unsafe
def force_release(
    resource: str,
    *,
    by: str,
    fingerprint: str | None = None,
    using: str = "default",
    inspection: Inspection | None = None,
) -> Freed:
    """Free a lock that another client holds.

    With `fingerprint`, only the very lock that was shown with it: one that was acquired since
    survives. None frees whatever lock is there. The holder is not stopped: it notices at its
    next renewal, or when it calls `verify()`; until then only the fencing token keeps its writes
    out.
    The fence is not touched. `by` names the person who frees it in the log and the signal. Pass
    an open `inspection` to free several locks with one timeout for a server that hangs.

    The resource may be a slot of a name with a limit (`engine.protocol.slots`): its waiters then
    get their turn. Raises InvalidRedlock, or BadResource for a string that cannot be a name.
    """
    resource = check_slot(resource)
    with inspection_of(using, inspection) as inspection:
        freed = inspection.free(resource, fingerprint)
    if freed.fingerprint:
        _report(freed, by)
    return freed


def _report(freed: Freed, by: str) -> None:
    """Count, log and signal that a lock was released by force, and by which operator."""
    by = printable(by)
    counters.count(freed.using, "forced", freed.outcome is ReleaseOutcome.RELEASED)
    logger.warning(
        "redlock %s: lock %s of %r was released by force by %s: %s (%s)",
        freed.label,
        freed.fingerprint,
        dict(freed.holder),
        by,
        freed.outcome.value,
        ", ".join(f"{name}: {word}" for name, word in freed.masters.items()),
        extra={"resource": freed.name, "using": freed.using, "by": by},
    )
    send(
        lock_force_released,
        sender=force_release,
        using=freed.using,
        resource=freed.name,
        by=by,
        freed=freed,
    )

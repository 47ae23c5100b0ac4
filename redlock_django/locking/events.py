"""What happens to locks, masters and repeated requests: counted, logged, signalled in one place.

Names of resources were checked before, so no log line can be forged with them; of a token
only the fingerprint is told.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from redlock_django.backends.base import BaseBackend
from redlock_django.engine.errors import NotAcquired, QuorumUnreachable
from redlock_django.exceptions import (
    IdempotencyRefused,
    KeyInFlight,
    KeyReused,
    OutcomeUncertain,
)
from redlock_django.locking.counters import counters
from redlock_django.signals import (
    atell,
    lock_acquired,
    lock_lost,
    lock_refused,
    lock_released,
    master_down,
    master_up,
    request_replayed,
    tell,
)

if TYPE_CHECKING:
    from redlock_django.locking.renewal_service import HeldLease

logger = logging.getLogger("redlock_django")

_REFUSED_AGAIN: dict[type[IdempotencyRefused], str] = {
    KeyInFlight: "conflicted",
    KeyReused: "mismatched",
    OutcomeUncertain: "uncertain",
}


def acquired(hold: HeldLease) -> None:
    """A lock was taken."""
    waited = hold.lease.waited
    _count_tries(hold.backend.alias, "acquired", waited)
    if logger.isEnabledFor(logging.DEBUG):
        logger.debug(
            "redlock %s: acquired by %s after %.3f s",
            ", ".join(hold.lease.resources),
            hold.lease.fingerprint,
            waited,
            extra={**_fields(hold), "waited": waited},
        )
    if lock_acquired.receivers:
        tell(lock_acquired, **_about(hold), waited=waited)


def refused(
    error: NotAcquired,
    *,
    sender: type,
    using: str,
    resources: tuple[str, ...],
    holder: Mapping[str, str],
    proceed: bool,
) -> None:
    """A lock was not taken; with `proceed`, the settings say to go on without."""
    unavailable = isinstance(error, QuorumUnreachable)
    _count_tries(using, "unavailable" if unavailable else "refused", error.waited)
    logger.log(
        logging.ERROR if unavailable else logging.DEBUG,
        "redlock %s: no quorum, going on WITHOUT a lock (ON_UNAVAILABLE): %s"
        if proceed
        else "redlock %s: not acquired: %s",
        error.resource,
        error,
        extra={"resource": error.resource, "using": using, "waited": error.waited},
    )
    tell(
        lock_refused,
        sender=sender,
        using=using,
        resources=resources,
        holder=holder,
        reason=str(error),
        error=error,
        waited=error.waited,
    )


def released(hold: HeldLease, freed: bool | None) -> None:
    """A lock was given back while it was ours; `freed` is None where that is not known yet."""
    held = _given_back(hold, freed)
    if lock_released.receivers:
        tell(lock_released, **_about(hold), held=held, freed=freed)


async def areleased(hold: HeldLease, freed: bool | None) -> None:
    """As `released`, and wait until every receiver is done: the loop may end behind it."""
    held = _given_back(hold, freed)
    if lock_released.receivers:
        await atell(lock_released, **_about(hold), held=held, freed=freed)


def released_late(hold: HeldLease) -> None:
    """A holder wanted to give a lock back that was lost before."""
    counters.count(hold.backend.alias, released_late=1)


def lost(hold: HeldLease, reason: str) -> None:
    """A lock was lost before it was given back."""
    held = hold.held()
    counters.count(hold.backend.alias, lost=1, held_seconds=held)
    logger.warning(
        "redlock %s: the lock was lost: %s",
        ", ".join(hold.lease.resources),
        reason,
        extra={**_fields(hold), "held": held, "reason": reason},
    )
    if lock_lost.receivers:
        tell(lock_lost, **_about(hold), held=held, reason=reason)


def master(using: str, name: str, up: bool, reason: str) -> None:
    """A master failed or came back: told once for each outage, by whatever link it was noticed."""
    if not counters.master(using, name, up=up):
        return
    if up:  # why it failed is in the log already
        logger.info(
            "redlock master %s is back%s",
            name,
            f" ({reason})" if reason else "",
            extra={"master": name, "using": using},
        )
    signal = master_up if up else master_down
    tell(signal, sender=BaseBackend, using=using, master=name, reason=reason)


def replayed(using: str, *, sender: type, **said: Any) -> None:
    """A request was answered from a record."""
    counters.count(using, replayed=1)
    tell(request_replayed, sender=sender, using=using, **said)


def refused_again(using: str, error: type[IdempotencyRefused]) -> None:
    """A request was refused because of another one with its key."""
    if name := _REFUSED_AGAIN.get(error):
        counters.count(using, **{name: 1})


def _count_tries(using: str, outcome: str, waited: float) -> None:
    if waited:
        counters.count(using, **{outcome: 1}, waited=1, waited_seconds=waited)
    else:
        counters.count(using, **{outcome: 1})


def _given_back(hold: HeldLease, freed: bool | None) -> float:
    held = hold.held()
    counters.count(hold.backend.alias, released=1, held_seconds=held)
    if logger.isEnabledFor(logging.DEBUG):
        logger.debug(
            "redlock %s: released by %s after %.3f s%s",
            ", ".join(hold.lease.resources),
            hold.lease.fingerprint,
            held,
            "" if freed else ", not confirmed",
            extra={**_fields(hold), "held": held},
        )
    return held


def _fields(hold: HeldLease) -> dict[str, Any]:
    return {
        "resource": ", ".join(hold.lease.resources),
        "using": hold.backend.alias,
        "fingerprint": hold.lease.fingerprint,
    }


def _about(hold: HeldLease) -> dict[str, Any]:
    return {
        "sender": hold.sender,
        "using": hold.backend.alias,
        "resources": hold.lease.resources,
        "fingerprint": hold.lease.fingerprint,
        "holder": hold.holder,
    }

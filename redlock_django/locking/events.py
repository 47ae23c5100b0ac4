"""Events of locks, masters and repeated requests: each is counted, logged and signalled here.

Resource names have been checked before, so they cannot forge a log line. Tokens never appear,
only their fingerprints.
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
    asend,
    lock_acquired,
    lock_lost,
    lock_refused,
    lock_released,
    master_down,
    master_up,
    request_replayed,
    send,
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
    """Report that a lock was acquired."""
    waited = hold.lease.waited
    _count_attempt(hold.backend.alias, "acquired", waited)
    if logger.isEnabledFor(logging.DEBUG):
        logger.debug(
            "redlock %s: acquired by %s after %.3f s",
            ", ".join(hold.lease.resources),
            hold.lease.fingerprint,
            waited,
            extra={**_log_fields(hold), "waited": waited},
        )
    if lock_acquired.receivers:
        send(lock_acquired, **_signal_arguments(hold), waited=waited)


def refused(
    error: NotAcquired,
    *,
    sender: type,
    using: str,
    resources: tuple[str, ...],
    holder: Mapping[str, str],
    proceed: bool,
) -> None:
    """Report that a lock was not acquired; `proceed` is True if the caller continues without it."""
    unavailable = isinstance(error, QuorumUnreachable)
    _count_attempt(using, "unavailable" if unavailable else "refused", error.waited)
    logger.log(
        logging.ERROR if unavailable else logging.DEBUG,
        "redlock %s: no quorum, continuing WITHOUT a lock (ON_UNAVAILABLE): %s"
        if proceed
        else "redlock %s: not acquired: %s",
        error.resource,
        error,
        extra={"resource": error.resource, "using": using, "waited": error.waited},
    )
    send(
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
    """Report the release of a lock that was held; `freed` is None if it is not confirmed yet."""
    held = _count_release(hold, freed)
    if lock_released.receivers:
        send(lock_released, **_signal_arguments(hold), held=held, freed=freed)


async def areleased(hold: HeldLease, freed: bool | None) -> None:
    """Report as `released` does, and wait for all receivers: the loop may end right after this."""
    held = _count_release(hold, freed)
    if lock_released.receivers:
        await asend(lock_released, **_signal_arguments(hold), held=held, freed=freed)


def released_late(hold: HeldLease) -> None:
    """Report that a holder released a lock that it had already lost."""
    counters.count(hold.backend.alias, released_late=1)


def lost(hold: HeldLease, reason: str) -> None:
    """Report that a lock was lost before it was released."""
    held = hold.held()
    counters.count(hold.backend.alias, lost=1, held_seconds=held)
    logger.warning(
        "redlock %s: the lock was lost: %s",
        ", ".join(hold.lease.resources),
        reason,
        extra={**_log_fields(hold), "held": held, "reason": reason},
    )
    if lock_lost.receivers:
        send(lock_lost, **_signal_arguments(hold), held=held, reason=reason)


def master(using: str, name: str, up: bool, reason: str) -> None:
    """Report that a master failed or is back: once for each outage, whichever link noticed it."""
    if not counters.set_master_state(using, name, up=up):
        return
    if up:  # the wire has already logged why it failed
        logger.info(
            "redlock master %s is back%s",
            name,
            f" ({reason})" if reason else "",
            extra={"master": name, "using": using},
        )
    signal = master_up if up else master_down
    send(signal, sender=BaseBackend, using=using, master=name, reason=reason)


def replayed(using: str, *, sender: type, **said: Any) -> None:
    """A request was answered from a record."""
    counters.count(using, replayed=1)
    send(request_replayed, sender=sender, using=using, **said)


def refused_again(using: str, error: type[IdempotencyRefused]) -> None:
    """A request was refused because of another one with its key."""
    if name := _REFUSED_AGAIN.get(error):
        counters.count(using, **{name: 1})


def _count_attempt(using: str, outcome: str, waited: float) -> None:
    if waited:
        counters.count(using, **{outcome: 1}, waited=1, waited_seconds=waited)
    else:
        counters.count(using, **{outcome: 1})


def _count_release(hold: HeldLease, freed: bool | None) -> float:
    held = hold.held()
    counters.count(hold.backend.alias, released=1, held_seconds=held)
    if logger.isEnabledFor(logging.DEBUG):
        logger.debug(
            "redlock %s: released by %s after %.3f s%s",
            ", ".join(hold.lease.resources),
            hold.lease.fingerprint,
            held,
            "" if freed else ", not confirmed",
            extra={**_log_fields(hold), "held": held},
        )
    return held


def _log_fields(hold: HeldLease) -> dict[str, Any]:
    return {
        "resource": ", ".join(hold.lease.resources),
        "using": hold.backend.alias,
        "fingerprint": hold.lease.fingerprint,
    }


def _signal_arguments(hold: HeldLease) -> dict[str, Any]:
    return {
        "sender": hold.sender,
        "using": hold.backend.alias,
        "resources": hold.lease.resources,
        "fingerprint": hold.lease.fingerprint,
        "holder": hold.holder,
    }

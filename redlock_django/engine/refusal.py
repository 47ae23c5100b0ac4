"""The error for a lock that was not acquired: held, reserved for a waiter, or too few masters."""

from __future__ import annotations

from functools import partial

from redlock_django.engine.errors import (
    LimitReached,
    LockLost,
    NotAcquired,
    QuorumUnreachable,
    ResourceLocked,
    Text,
    TicketUsed,
)
from redlock_django.engine.protocol.commands import ENDED
from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.engine.protocol.votes import NOT_ASKED
from redlock_django.engine.quorum import Tally
from redlock_django.engine.validity import Lease

REPLICA = "is a replica"
"""The beginning of the reason of a server that is not a master at all."""


def refusal(
    deployment: Deployment,
    resources: tuple[str, ...],
    tally: Tally,
    late: bool,
    limit: int = 1,
) -> NotAcquired:
    """Return the error for a round that was not won."""
    if late or tally.unreachable:
        return unreachable(deployment, resources, tally, late=late)
    # No votes are built before the error is read.
    names = resources[0] if len(resources) == 1 else _at_fault(resources, tally)
    text, retry_after = Text(partial(_held, names, tally, limit)), partial(free_in, tally)
    answers = partial(_answers, deployment, tally)
    kind = ResourceLocked if limit == 1 else LimitReached
    return kind(text, resource=names, tally=answers, retry_after=retry_after)


def refusal_of_ticket(
    deployment: Deployment, expected: Lease, tally: Tally, late: bool
) -> QuorumUnreachable | LockLost | TicketUsed:
    """Return the error for a round that has not found the lock of an expected lease."""
    if late or tally.unreachable:
        return unreachable(deployment, expected.names, tally, late=late)
    ended = sum(vote.rival == ENDED for vote in tally.refusals)
    if tally.rival_won or not tally.majority(tally.masters - ended):
        return refused_ticket(expected, is_used=not tally.majority(ended) and tally.rival_won)
    if ended == len(tally.refusals):
        return unreachable(deployment, expected.names, tally)
    names = ", ".join(expected.names)
    why = "other clients try to take it with the same ticket at this moment: try again"
    return QuorumUnreachable(f"{names}: {why}", resource=names)


def refused_ticket(expected: Lease, *, is_used: bool) -> LockLost | TicketUsed:
    """Return the error of a client that has not found the lock of an expected lease.

    That client is the giver, if the lease is one that this process has acquired, or has a ticket.
    """
    names = ", ".join(expected.names)
    if expected.home is not None:
        return LockLost(f"{names}: the lock was lost before it was handed on", resource=names)
    if is_used:
        why = "this ticket was used before, or an operator has released its lock"
        return TicketUsed(f"{names}: {why}", resource=names)
    return LockLost(f"{names}: this ticket is too late, its lock has ended", resource=names)


def _at_fault(resources: tuple[str, ...], tally: Tally) -> str:
    """Return the names of the resources at fault; the others may be free."""
    faults = {vote.resource for vote in tally.refusals}
    return ", ".join(resources[index] for index in sorted(faults))


def _held(names: str, tally: Tally, limit: int) -> str:
    only_reserved = all(vote.reserved for vote in tally.refusals)
    if limit > 1:
        why = "a slot is reserved for a waiter" if only_reserved else f"its {limit} slots are held"
        return f"{names}: {why}"
    return f"{names}: {'reserved for a waiter' if only_reserved else 'held by another client'}"


def _answers(deployment: Deployment, tally: Tally) -> dict[str, str]:
    return dict(zip(deployment.names, tally.reasons(), strict=True))


def unreachable(
    deployment: Deployment, resources: tuple[str, ...], tally: Tally, *, late: bool = False
) -> QuorumUnreachable:
    """Return the error for a round that too few masters answered, or too slowly."""
    names = ", ".join(resources)
    votes = _answers(deployment, tally)
    masters = len(tally.votes)
    unasked = sum(vote is NOT_ASKED for vote in tally.votes)
    failures = masters - len(tally.agreeing) - tally.outstanding - unasked
    why = "the masters answered too slowly for the lock's TTL"
    if not late:
        why = f"{failures} of {masters} masters cannot be counted, and {tally.need} must agree"
    return QuorumUnreachable(f"{names}: {why} ({_by_reason(votes)})", resource=names, tally=votes)


def _by_reason(votes: dict[str, str]) -> str:
    """Return each reason once, after the names of its masters; permanent reasons come first."""
    masters: dict[str, list[str]] = {}
    for name, reason in votes.items():
        masters.setdefault(reason, []).append(name)
    reasons = sorted(masters, key=lambda reason: not reason.startswith(REPLICA))
    return "; ".join(f"{', '.join(masters[reason])}: {reason}" for reason in reasons)


def free_in(tally: Tally) -> float | None:
    """Return the seconds until enough refusing locks expire for a quorum; None if unknown."""
    missing = tally.need - tally.granted
    if missing < 1:
        return 0.0
    left = sorted(vote.ttl for vote in tally.refusals if vote.ttl is not None and vote.ttl >= 0)
    return left[missing - 1] / 1000 if len(left) >= missing else None

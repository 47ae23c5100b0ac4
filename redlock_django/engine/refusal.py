"""The error for a lock that was not acquired: held, reserved for a waiter, or too few masters."""

from __future__ import annotations

from redlock_django.engine.deployment import Deployment
from redlock_django.engine.errors import NotAcquired, QuorumUnreachable, ResourceLocked
from redlock_django.engine.quorum import NOT_ASKED, Ballot, Tally
from redlock_django.engine.waiting import free_in


def refusal(
    deployment: Deployment, resources: tuple[str, ...], tally: Tally, late: bool, waited: float
) -> NotAcquired:
    """Return the error for a round that was not won; `waited` is in seconds."""
    names = ", ".join(resources)
    votes = dict(zip(deployment.names, tally.reasons(), strict=True))
    if late or tally.unreachable:
        unasked = sum(vote is NOT_ASKED for vote in tally.votes)
        failures = tally.masters - len(tally.agreeing) - tally.outstanding - unasked
        why = "the masters answered too slowly for the lock's TTL"
        if not late:
            label = f" of {deployment.label}" if deployment.label else ""
            why = (
                f"{failures} of {tally.masters} masters{label} cannot be counted, and "
                f"{tally.need} must agree"
            )
        answers = "; ".join(f"{name}: {reason}" for name, reason in votes.items())
        return QuorumUnreachable(
            f"{names}: {why} ({answers})", resource=names, tally=votes, waited=waited
        )
    # Name only the resources at fault; the others may be free.
    refused = [vote for vote in tally.votes if vote and vote.ballot is Ballot.REFUSED]
    names = ", ".join(resources[index] for index in sorted({vote.resource for vote in refused}))
    only_reserved = all(vote.reserved for vote in refused)
    return ResourceLocked(
        f"{names}: {'reserved for a waiter' if only_reserved else 'held by another client'}",
        resource=names,
        tally=votes,
        retry_after=free_in(tally),
        waited=waited,
    )

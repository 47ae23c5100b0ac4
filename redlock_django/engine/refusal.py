"""The error for a lock that was not acquired: held, reserved for a waiter, or too few masters."""

from __future__ import annotations

from functools import partial
from typing import Protocol

from redlock_django.engine.attempt import Attempt
from redlock_django.engine.errors import NotAcquired, QuorumUnreachable, ResourceLocked, Text
from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.engine.protocol.votes import NOT_ASKED, Ballot
from redlock_django.engine.quorum import Tally

REPLICA = "is a replica"
"""The beginning of the reason of a server that is not a master at all."""


class CrowdRefusal:
    """The last answer to any waiter of a crowd, if it proves that others hold the lock.

    It refuses a waiter whose wait ended before its process allowed it to ask.
    """

    __slots__ = ("_tally",)

    def __init__(self) -> None:
        self._tally: Tally | None = None

    def note(self, attempt: Attempt) -> None:
        """Note how an attempt has ended."""
        self._tally = attempt.last if attempt.last.rival_won and not attempt.late else None

    @property
    def is_refused(self) -> bool:
        """True if the crowd was refused last, and has not acquired the lock since."""
        return self._tally is not None

    def error(self, resources: tuple[str, ...]) -> ResourceLocked | None:
        """Return the error for a waiter that has not asked; None if the masters must be asked."""
        if (tally := self._tally) is None:
            return None
        names = _at_fault(resources, tally)
        text, retry_after = Text(partial(_held, names, tally)), partial(free_in, tally)
        return ResourceLocked(text, resource=names, retry_after=retry_after)


class WaitingCaller(Protocol):
    """A caller that waits for a lock, as its driver knows it: `name` is what masters call.

    It is `behind` as long as enough others of its process ask for the same resources. Their last
    answer is `crowd_refusal`, None if there are no others to follow.
    """

    name: str
    behind: bool

    @property
    def crowd_refusal(self) -> CrowdRefusal | None: ...

    def leave(self) -> None:
        """Note that the lock was acquired."""


def refusal(
    deployment: Deployment, resources: tuple[str, ...], tally: Tally, late: bool
) -> NotAcquired:
    """Return the error for a round that was not won."""
    if late or tally.unreachable:
        return _unreachable(deployment, ", ".join(resources), tally, late)
    names = _at_fault(resources, tally)
    return ResourceLocked(
        Text(partial(_held, names, tally)),
        resource=names,
        tally=partial(_answers, deployment, tally),
        retry_after=partial(free_in, tally),
    )


def _at_fault(resources: tuple[str, ...], tally: Tally) -> str:
    """Return the names of the resources at fault; the others may be free."""
    if len(resources) == 1:
        return resources[0]
    faults = {vote.resource for vote in tally.votes if vote and vote.ballot is Ballot.REFUSED}
    return ", ".join(resources[index] for index in sorted(faults))


def _held(names: str, tally: Tally) -> str:
    refused = [vote for vote in tally.votes if vote and vote.ballot is Ballot.REFUSED]
    only_reserved = all(vote.reserved for vote in refused)
    return f"{names}: {'reserved for a waiter' if only_reserved else 'held by another client'}"


def _answers(deployment: Deployment, tally: Tally) -> dict[str, str]:
    return dict(zip(deployment.names, tally.reasons(), strict=True))


def _unreachable(deployment: Deployment, names: str, tally: Tally, late: bool) -> QuorumUnreachable:
    votes = _answers(deployment, tally)
    unasked = sum(vote is NOT_ASKED for vote in tally.votes)
    failures = tally.masters - len(tally.agreeing) - tally.outstanding - unasked
    why = "the masters answered too slowly for the lock's TTL"
    if not late:
        label = f" of {deployment.label}" if deployment.label else ""
        why = (
            f"{failures} of {tally.masters} masters{label} cannot be counted, and "
            f"{tally.need} must agree"
        )
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
    missing = tally.need - tally.count(Ballot.GRANTED)
    left = sorted(
        vote.ttl
        for vote in tally.votes
        if vote is not None and vote.ttl is not None and vote.ttl >= 0
    )
    if missing < 1:
        return 0.0
    return left[missing - 1] / 1000 if len(left) >= missing else None

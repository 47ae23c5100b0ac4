"""The error for a lock that was not acquired: held, reserved for a waiter, or too few masters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from redlock_django.engine.errors import (
    LimitReached,
    NotAcquired,
    QuorumUnreachable,
    ResourceLocked,
    Text,
)
from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.engine.protocol.votes import NOT_ASKED, Ballot
from redlock_django.engine.quorum import Account

REPLICA = "is a replica"
"""The beginning of the reason of a server that is not a master at all."""


class CrowdRefusal:
    """The last answer to any waiter of a crowd, if it proves that others hold the lock.

    It refuses a waiter whose wait ended before its process allowed it to ask.
    """

    __slots__ = ("_account",)

    def __init__(self) -> None:
        self._account: Account | None = None

    def note(self, account: Account, *, late: bool) -> None:
        """Note how the last attempt of any of them has ended."""
        self._account = account if account.rival_won and not late else None

    @property
    def is_refused(self) -> bool:
        """True if the crowd was refused last, and has not acquired the lock since."""
        return self._account is not None

    def error(self, resources: tuple[str, ...]) -> ResourceLocked | None:
        """Return the error for a waiter that has not asked; None if the masters must be asked."""
        return None if self._account is None else _locked(resources, self._account)


class WaitingCaller(Protocol):
    """A caller that waits for a lock, as its driver knows it: `name` is what masters call.

    It is `behind` as long as enough others of its process ask for the same resources. Their last
    answer is `crowd_refusal`, None if there are no others to follow.
    """

    name: str
    called_slot: int | None
    """The slot that masters named when they called it; None if none did since its last round."""

    @property
    def behind(self) -> bool: ...

    @property
    def crowd_refusal(self) -> CrowdRefusal | None: ...

    def leave(self) -> None:
        """Note that the lock was acquired."""


def refusal(
    deployment: Deployment,
    resources: tuple[str, ...],
    account: Account,
    late: bool,
    limit: int = 1,
) -> NotAcquired:
    """Return the error for a round that was not won."""
    if late or account.unreachable:
        return _unreachable(deployment, ", ".join(resources), account, late)
    return _locked(resources, account, partial(_answers, deployment, account), limit)


def _locked(
    resources: tuple[str, ...],
    account: Account,
    answers: Callable[[], Mapping[str, str]] | None = None,
    limit: int = 1,
) -> ResourceLocked:
    names = _at_fault(resources, account)
    text, retry_after = Text(partial(_held, names, account, limit)), partial(free_in, account)
    kind = ResourceLocked if limit == 1 else LimitReached
    return kind(text, resource=names, tally=answers, retry_after=retry_after)


def _at_fault(resources: tuple[str, ...], account: Account) -> str:
    """Return the names of the resources at fault; the others may be free."""
    if len(resources) == 1:
        return resources[0]
    faults = {vote.resource for vote in account.refusals}
    return ", ".join(resources[index] for index in sorted(faults))


def _held(names: str, account: Account, limit: int) -> str:
    only_reserved = all(vote.reserved for vote in account.refusals)
    if limit > 1:
        why = "a slot is reserved for a waiter" if only_reserved else f"its {limit} slots are held"
        return f"{names}: {why}"
    return f"{names}: {'reserved for a waiter' if only_reserved else 'held by another client'}"


def _answers(deployment: Deployment, account: Account) -> dict[str, str]:
    return dict(zip(deployment.names, account.reasons(), strict=True))


def _unreachable(
    deployment: Deployment, names: str, account: Account, late: bool
) -> QuorumUnreachable:
    votes = _answers(deployment, account)
    masters = len(account.votes)
    unasked = sum(vote is NOT_ASKED for vote in account.votes)
    failures = masters - len(account.agreeing) - account.outstanding - unasked
    why = "the masters answered too slowly for the lock's TTL"
    if not late:
        label = f" of {deployment.label}" if deployment.label else ""
        why = (
            f"{failures} of {masters} masters{label} cannot be counted, and "
            f"{account.need} must agree"
        )
    return QuorumUnreachable(f"{names}: {why} ({_by_reason(votes)})", resource=names, tally=votes)


def _by_reason(votes: dict[str, str]) -> str:
    """Return each reason once, after the names of its masters; permanent reasons come first."""
    masters: dict[str, list[str]] = {}
    for name, reason in votes.items():
        masters.setdefault(reason, []).append(name)
    reasons = sorted(masters, key=lambda reason: not reason.startswith(REPLICA))
    return "; ".join(f"{', '.join(masters[reason])}: {reason}" for reason in reasons)


def free_in(account: Account) -> float | None:
    """Return the seconds until enough refusing locks expire for a quorum; None if unknown."""
    missing = account.need - account.count(Ballot.GRANTED)
    if missing < 1:
        return 0.0
    left = sorted(vote.ttl for vote in account.refusals if vote.ttl is not None and vote.ttl >= 0)
    return left[missing - 1] / 1000 if len(left) >= missing else None

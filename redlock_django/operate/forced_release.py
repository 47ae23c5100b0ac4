"""Freeing a lock that is somebody else's, so that it is known who did it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, transaction
from django.utils.asyncio import async_unsafe

from redlock_django.engine.commands import Deployment, Release
from redlock_django.engine.holders import Sighting, merge
from redlock_django.engine.quorum import Ballot, Tally, failed
from redlock_django.locking.counters import counters
from redlock_django.locking.handler import locks
from redlock_django.locking.names import check_resource, printable
from redlock_django.models import ForcedRelease
from redlock_django.operate.inspection import look, silent_masters, span_of, under_way
from redlock_django.signals import lock_force_released, send
from redlock_django.wire.survey import Survey

logger = logging.getLogger("redlock_django")


class ReleaseOutcome(Enum):
    """What came of freeing somebody's lock."""

    RELEASED = "released"
    NOT_HELD = "not held"
    CHANGED = "changed"  # somebody else holds it now
    NO_QUORUM = "no quorum"  # too few masters answered: it may still be held


@dataclass(frozen=True, kw_only=True)
class Freed:
    """What came of freeing a lock; `masters` has one word or reason for each master by name.

    `fingerprint` and `holder` are of the lock that was to be freed, "" and empty where
    nothing was held. `now` is the fingerprint of who holds it instead, if CHANGED.
    """

    resource: str
    using: str
    outcome: ReleaseOutcome
    fingerprint: str = ""
    holder: Mapping[str, str | int | float] = field(default_factory=dict)
    now: str = ""
    masters: Mapping[str, str] = field(default_factory=dict)


@async_unsafe
def force_release(
    resource: str,
    *,
    by: str,
    fingerprint: str | None = None,
    using: str = "default",
    survey: Survey | None = None,
) -> Freed:
    """Free a lock that somebody else holds.

    With `fingerprint`, only the very lock that was shown with it: one that was taken anew in
    between survives. None frees whatever is there. The holder is not stopped: it learns of it
    at its next renewal or `ensure_held()`, and only the fencing token keeps its writes out.
    The fence is not touched. `by` says who frees it, for the log, the signal and the record.
    `survey` is one that is under way, so that a master that hangs is waited for once.

    Raises InvalidRedlock, or BadResource for what can be no name.
    """
    resource = check_resource(resource)
    backend = locks[using].backend
    deployment = backend.deployment
    with under_way(using, survey) as survey:
        found = look(survey, backend, [resource])
        sightings = [s for holding in found for s in (*holding.leading, *holding.rivals)]
        wanted = [s for s in sightings if fingerprint in (None, s.fingerprint)]
        span = span_of(backend, resource, sightings)
        if not wanted:
            silent = silent_masters(survey, backend)
            outcome = ReleaseOutcome.CHANGED if sightings else ReleaseOutcome.NOT_HELD
            if not sightings and span in backend.short({*span} - survey.silent.keys()):
                outcome = ReleaseOutcome.NO_QUORUM
            return Freed(
                resource=resource,
                using=using,
                outcome=outcome,
                now=found[0].fingerprint if found else "",
                masters=silent,
            )
        tallies = [
            _free(survey, deployment, span, resource, value)
            for value in dict.fromkeys(sighting.value for sighting in wanted)
        ]
    names = [backend.names[index] for index in span]
    masters = dict(zip(names, _words(tallies), strict=True))
    freed = Freed(
        resource=resource,
        using=using,
        outcome=_outcome(tallies),
        fingerprint=wanted[0].fingerprint,
        holder=merge(resource, wanted, len(span), ()).holder,
        masters=masters,
    )
    _record(freed, by)
    return freed


def _free(
    survey: Survey, deployment: Deployment, span: range, resource: str, value: bytes
) -> Tally:
    """Delete this very value on every master, and keep its token from coming back.

    The masters of other groups are told, too, and not counted.
    """
    ours = Sighting(0, value, None).ours
    # Of another client's lock no token is known that could be buried.
    ask = Release(
        deployment=deployment,
        resources=(resource,),
        value=value[:32].decode() if ours else "-",
        bury=ours,
    )
    argv = [value, *ask.arguments()[1:]]
    answers = survey.ask(lambda say: ask.vote(say("release", ask.keys(), argv)))
    tally = Tally(len(span))
    for own, index in enumerate(span):
        vote = answers.get(index) or failed(survey.silent.get(index, "did not answer"))
        tally.cast(own, vote)
    return tally


def _words(tallies: Sequence[Tally]) -> list[str]:
    words = []
    for votes in zip(*(tally.votes for tally in tallies), strict=True):
        said = [vote for vote in votes if vote is not None]
        if any(vote.ballot is Ballot.GRANTED for vote in said):
            words.append("released")
        elif any(vote.ballot is Ballot.FAILED for vote in said):
            words.append(next(vote.reason for vote in said if vote.ballot is Ballot.FAILED))
        else:
            words.append("was not held" if said[0].absent else "is held by another")
    return words


def _outcome(tallies: Sequence[Tally]) -> ReleaseOutcome:
    if any(not t.majority(t.masters - t.count(Ballot.FAILED)) for t in tallies):
        return ReleaseOutcome.NO_QUORUM
    if any(t.count(Ballot.GRANTED) for t in tallies):
        return ReleaseOutcome.RELEASED
    return ReleaseOutcome.NOT_HELD


def _record(freed: Freed, by: str) -> None:
    """Log, signal and store who freed whose lock."""
    by = printable(by)
    counters.count(freed.using, forced=freed.outcome is ReleaseOutcome.RELEASED)
    logger.warning(
        "redlock %s: lock %s of %r was released by force by %s: %s (%s)",
        freed.resource,
        freed.fingerprint,
        dict(freed.holder),
        by,
        freed.outcome.value,
        ", ".join(f"{name}: {word}" for name, word in freed.masters.items()),
        extra={"resource": freed.resource, "using": freed.using, "by": by},
    )
    send(
        lock_force_released,
        sender=force_release,
        using=freed.using,
        resource=freed.resource,
        by=by,
        freed=freed,
    )
    try:
        with transaction.atomic():
            ForcedRelease.objects.create(
                resource=freed.resource,
                using=freed.using,
                fingerprint=freed.fingerprint,
                holder=dict(freed.holder),
                by=by,
                outcome=freed.outcome.value,
                masters=dict(freed.masters),
            )
    except (DatabaseError, ImproperlyConfigured) as error:
        # It must work when the database does not, or is not there: the log has it. Without
        # the traceback, in which a database may quote in many lines what a holder wrote.
        logger.error(
            "redlock %s: the forced release was not recorded: %s",
            freed.resource,
            printable(str(error)),
            extra={"resource": freed.resource, "using": freed.using},
        )

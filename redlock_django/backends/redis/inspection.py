"""Inspection of N masters: held locks, forced release and health, merged from their answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from redlock_django.backends.inspection.contract import Inspection
from redlock_django.backends.inspection.results import Listing, ReleaseOutcome, ServerHealth
from redlock_django.backends.redis.health import health_of
from redlock_django.backends.redis.settings import RedlockSettings
from redlock_django.engine.inspection.holders import Holding, Sighting, merge
from redlock_django.engine.inspection.queries import (
    ForceRelease,
    ListHeld,
    ReadLocks,
    StoredLock,
)
from redlock_django.engine.protocol.query import SendQuery
from redlock_django.engine.protocol.votes import Ballot, failed
from redlock_django.engine.quorum import Tally, quorum
from redlock_django.wire.servers.survey import Survey

READ_TIME = 3.0  # seconds allowed for reading more than BATCH locks
BATCH = 1000  # locks read in one query: all slots of a name


class MasterInspection(Inspection):
    """Asks N masters, by a survey, and merges their answers."""

    def __init__(self, using: str, survey: Survey, settings: RedlockSettings) -> None:
        super().__init__(using, survey.deployment.names)
        self._survey = survey
        self._settings = settings
        self._deployment = survey.deployment

    def __exit__(self, *error: object) -> None:
        self._survey.close()

    @property
    def silent(self) -> Mapping[str, str]:
        return {self.servers[index]: why for index, why in sorted(self._survey.silent.items())}

    def has_quorum(self) -> bool:
        masters = len(self.servers)
        return masters - len(self._survey.silent) >= quorum(masters)

    def listing(self) -> Listing:
        query = ListHeld(deployment=self._deployment, most=self.MAX_LISTED)
        pages = self._survey.ask(lambda send: send(query)).values()
        return Listing(
            _union(page.names for page in pages)[: self.MAX_LISTED],
            any(page.held > self.MAX_LISTED for page in pages),
        )

    def holdings(self, resources: Sequence[str]) -> list[Holding]:
        if not resources:
            return []
        queries = [
            ReadLocks(
                deployment=self._deployment, resources=tuple(resources[start : start + BATCH])
            )
            for start in range(0, len(resources), BATCH)
        ]

        def read(send: SendQuery) -> list[StoredLock | None]:
            return [stored for query in queries for stored in send(query)]

        answers = self._survey.ask(read, READ_TIME if len(queries) > 1 else None)
        holdings, silent = [], frozenset(self.silent)
        for place, resource in enumerate(resources):
            found = [(n, stored) for n, answer in answers.items() if (stored := answer[place])]
            if found:
                sightings = [Sighting(self.servers[n], one.value, one.ttl) for n, one in found]
                waiters = max(one.waiters for _, one in found)
                holdings.append(merge(resource, sightings, self.servers, silent, waiters))
        return holdings

    def release(
        self, resource: str, values: Sequence[bytes]
    ) -> tuple[ReleaseOutcome, Mapping[str, str]]:
        tallies = [self._release(resource, value) for value in values]
        return _outcome(tallies), dict(zip(self.servers, _answers(tallies), strict=True))

    def _release(self, resource: str, value: bytes) -> Tally:
        """Delete the lock that has this value on every master."""
        query = ForceRelease(deployment=self._deployment, resource=resource, value=value)
        votes = self._survey.ask(lambda send: send(query))
        tally = Tally(len(self.servers))
        for index in range(len(self.servers)):
            tally.cast(index, votes.get(index) or failed(self._survey.silent[index]))
        return tally

    def health(self) -> list[ServerHealth]:
        return health_of(self._survey, self._settings)


def _union(every: Iterable[Iterable[bytes]]) -> list[str]:
    """Return every name once, in the order of the first master that has it."""
    names = dict.fromkeys(chain.from_iterable(every))
    return [name.decode(errors="backslashreplace") for name in names]


def _answers(tallies: Sequence[Tally]) -> list[str]:
    """Return what each master answered to the releases of all holders, in words."""
    answers = []
    for votes in zip(*(tally.votes for tally in tallies), strict=True):
        cast = [vote for vote in votes if vote is not None]
        if any(vote.ballot is Ballot.GRANTED for vote in cast):
            answers.append("released")
        elif any(vote.ballot is Ballot.FAILED for vote in cast):
            answers.append(next(vote.reason for vote in cast if vote.ballot is Ballot.FAILED))
        else:
            answers.append("was not held" if cast[0].absent else "is held by another")
    return answers


def _outcome(tallies: Sequence[Tally]) -> ReleaseOutcome:
    if any(not t.majority(t.masters - t.failed) for t in tallies):
        return ReleaseOutcome.NO_QUORUM
    if any(t.granted for t in tallies):
        return ReleaseOutcome.RELEASED
    return ReleaseOutcome.NOT_HELD

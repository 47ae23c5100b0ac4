"""The accelerator of the verdict: a tally that counts plain grants without building votes.

Nearly every round is answered by masters that grant with the same fence and agreeing clocks, or do
not answer at all. A `FastTally` compares such grants and stores only their clocks. At the
first other answer (a refusal, another fence, a clock that is off, too few masters left), or when a
caller looks at single votes, it builds the votes and is a `Tally` from then on, in the same state:
the algorithm is written once, in `quorum`, `fencing` and `rounds`. That both always agree is shown
by `tests/engine/test_fast_path.py`.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from redlock_django.engine.protocol.votes import Ballot, Vote, granted
from redlock_django.engine.quorum import PENDING, WON, Tally, Verdict, quorum


class Switch:
    """The switch of the fast path. Tests and REDLOCK_FAST_PATH=0 turn it off."""

    on = True


class FastTally(Tally):
    """A tally that builds its votes when they are needed; from the start if `Switch` is off."""

    __slots__ = ("_earliest", "_fences", "_latest", "_missing", "_unsent", "is_plain")
    _votes: list[Any]
    """While it `is_plain`, a vote that grants is the master's clock alone."""
    _earliest: int
    _latest: int

    def __init__(self, masters: int, skew: int | None = None, rivals: bool = False) -> None:
        # As in `Tally`, without a call of it, which would take as long as all of this.
        self.masters = masters
        self.need = self._missing = quorum(masters)  # the grants that are missing for a quorum
        self.skew = skew
        self.rivals = rivals
        self._votes = [None] * masters
        self.verdict = PENDING
        self.is_plain = Switch.on
        # Each plain grant has these fences, and a clock between two bounds that the first one sets.
        self._fences: tuple[int, ...] | None = None
        self._unsent: tuple[int, ...] = ()  # the masters to which no byte was sent

    def grant(self, master: int, time: int, fences: tuple[int, ...]) -> Verdict:
        votes = self._votes
        if votes[master] is not None:
            return super().grant(master, time, fences)
        if fences != self._fences:
            if self._fences is not None or not self.is_plain:
                return super().grant(master, time, fences)
            near = (self.skew or 0) >> 1  # half of it, so that any two agree
            self._fences, self._earliest, self._latest = fences, time - near, time + near
        elif self.skew is not None and not self._earliest <= time <= self._latest:
            return super().grant(master, time, fences)
        votes[master] = time
        # Each of these votes is counted, because all clocks agree.
        self._missing -= 1
        if not self._missing:
            self.verdict = WON
        return self.verdict

    def cast(self, master: int, vote: Vote) -> Verdict:
        votes = self._votes
        if self.is_plain and votes[master] is None:
            # The clock of a failed vote does not matter: a majority can still grant with agreeing
            # clocks, and the median is then among these.
            failures = sum(isinstance(vote, Vote) for vote in votes)
            if vote.ballot is Ballot.FAILED and self.majority(self.masters - failures - 1):
                votes[master] = vote
                if not vote.sent:
                    self._unsent = (*self._unsent, master)
                return self.verdict
            self._build()
        return super().cast(master, vote)

    def _build(self) -> None:
        """Build the votes, and count them as a `Tally` does."""
        fences = self._fences or ()
        self._votes = [granted(vote, fences) if type(vote) is int else vote for vote in self._votes]
        self.is_plain, self._fences = False, None  # which no later grant has
        if self.verdict is PENDING:
            self.verdict = self._judge()

    @property
    def grants(self) -> int:
        return self.need - self._missing if self.is_plain else super().grants

    @property
    def votes(self) -> list[Vote | None]:
        if self.is_plain:
            self._build()
        return self._votes

    @property
    def unanimous(self) -> tuple[int, ...] | None:  # type: ignore[override]
        return self._fences if self.is_plain and self.verdict is WON else None

    @property
    def asked(self) -> frozenset[int]:
        if not self.is_plain:
            return super().asked
        return _all(self.masters).difference(self._unsent) if self._unsent else _all(self.masters)

    @property
    def reached(self) -> frozenset[int]:
        return self.asked if self.is_plain else super().reached

    @property
    def forgot(self) -> frozenset[int]:
        return frozenset() if self.is_plain else super().forgot


@cache
def _all(masters: int) -> frozenset[int]:
    return frozenset(range(masters))

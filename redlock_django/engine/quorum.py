"""The tally of a round: the votes, the verdict (won or lost), and why it was won or lost."""

from __future__ import annotations

import math
from enum import Enum
from functools import cache
from statistics import median

from redlock_django.engine.protocol.votes import Ballot, Vote


def quorum(masters: int) -> int:
    """Return how many of `masters` must agree: more than half, so that two majorities overlap."""
    return masters // 2 + 1


class Verdict(Enum):
    """The result of the votes so far."""

    PENDING = "pending"
    WON = "won"
    LOST = "lost"


# A member of an enum takes long to look up.
PENDING, WON, LOST = Verdict.PENDING, Verdict.WON, Verdict.LOST
_GRANTED, _REFUSED, _FAILED = Ballot.GRANTED, Ballot.REFUSED, Ballot.FAILED
_NONE: frozenset[int] = frozenset()


class Tally:
    """The votes of one round over `masters` masters (always the configured number).

    The round is WON once a majority grants whose clocks agree within `skew` µs. It is LOST once
    that is impossible and the reason is final. With `rivals`, the reason is final once too few
    masters can be counted, or one rival is proved to hold a majority: otherwise a split vote would
    look like a held lock. Without, it is final once the lock is denied, or cannot be denied any
    more: otherwise a lost lock would be reported as unknown.

    `votes` has the vote of each master, None as long as it is outstanding. The counters make it
    cheap to know when there may be a verdict; all else is derived from the votes.
    """

    __slots__ = (
        "_rival_won", "earliest", "failed", "granted", "latest", "masters", "need", "refused",
        "rivals", "skew", "spare", "verdict", "votes",
    )  # fmt: skip

    def __init__(self, masters: int, skew: int | None = None, rivals: bool = False) -> None:
        self.masters = masters
        self.need = quorum(masters)
        self.spare = masters - self.need  # a quorum is possible without so many
        self.skew = skew
        self.rivals = rivals
        self.verdict = PENDING
        self.votes: list[Vote | None] = [None] * masters
        # How many masters voted so, and the bounds of their clocks in µs.
        self.granted = self.refused = self.failed = 0
        self.earliest, self.latest = math.inf, -math.inf
        self._rival_won = False

    # The verdict.

    def cast(self, master: int, vote: Vote) -> Verdict:
        """Count the vote of a master (0-based index) and return the verdict.

        The first vote of a master is final. A verdict is final too once it is reached. Later votes
        are still stored, because a renewal needs to know which masters had forgotten the lock.
        """
        if self.votes[master] is None:
            # No signal is handled before the vote is counted, because nothing is called.
            self.votes[master] = vote
            if (ballot := vote.ballot) is _GRANTED:
                self.granted += 1
            elif ballot is _REFUSED:
                self.refused += 1
            else:
                self.failed += 1
            if (time := vote.time) is not None:
                if time < self.earliest:
                    self.earliest = time
                if time > self.latest:
                    self.latest = time
        else:
            self._recount()
        # Otherwise a quorum may still grant, and has not yet.
        if self.verdict is PENDING and (
            self.granted >= self.need or self.refused + self.failed > self.spare
        ):
            self.verdict = self._judge()
        return self.verdict

    def _recount(self) -> None:
        """Count all votes again: one may have been stored, and then an interrupt struck."""
        votes = [vote for vote in self.votes if vote is not None]
        ballots = [vote.ballot for vote in votes]
        times = [vote.time for vote in votes if vote.time is not None]
        self.granted, self.refused = ballots.count(_GRANTED), ballots.count(_REFUSED)
        self.failed = ballots.count(_FAILED)
        self.earliest, self.latest = min(times, default=math.inf), max(times, default=-math.inf)

    def _judge(self) -> Verdict:
        if self.granted >= self.need and (self._clocks_agree or len(self.counted()) >= self.need):
            return WON
        if not (outstanding := self.outstanding):
            return LOST
        # A vote that is left out because of the master's clock may count again when the median
        # moves, so it is still possible here.
        if self.granted + outstanding >= self.need:
            return PENDING
        if self.rivals:
            is_final = self.rival_won or self.unreachable
        else:
            is_final = self.denied or not self.may_be_denied
        return LOST if is_final else PENDING

    @property
    def outstanding(self) -> int:
        """How many masters have not answered yet."""
        return self.masters - self.granted - self.refused - self.failed

    def majority(self, votes: int) -> bool:
        """Return whether that many votes are a majority."""
        return votes >= self.need

    # Votes whose clocks agree.

    def counted(self) -> list[Vote]:
        """Return the granting votes of masters whose clocks agree."""
        return [vote for vote in self.agreeing if vote.ballot is _GRANTED]

    @property
    def agreeing(self) -> list[Vote]:
        """The answers, granting or refusing, of the masters whose clocks agree."""
        answers = [vote for vote in self.votes if vote is not None and vote.ballot is not _FAILED]
        middle = self._middle()
        if middle is None:
            return answers
        return [vote for vote in answers if self._near(vote, middle)]

    @property
    def _clocks_agree(self) -> bool:
        return self.skew is None or self.latest - self.earliest <= self.skew

    def _middle(self) -> float | None:
        """Return the median of the masters' clocks in µs; None if all clocks agree anyway."""
        if self._clocks_agree:
            return None
        times = (vote.time for vote in self.votes if vote is not None)
        return median(time for time in times if time is not None)

    def _near(self, vote: Vote, middle: float | None) -> bool:
        if middle is None or vote.time is None or self.skew is None:
            return True
        return abs(vote.time - middle) <= self.skew

    @property
    def unanimous(self) -> tuple[int, ...] | None:
        """The fences of grants that are all alike, if no master refused; else None."""
        if self.refused or not self._clocks_agree:
            return None
        said = {vote.fences for vote in self.votes if vote is not None and vote.ballot is _GRANTED}
        return said.pop() if len(said) == 1 else None

    # What the votes prove.

    @property
    def answered(self) -> bool:
        """True if a quorum has answered already, whether it grants or refuses."""
        if self.granted + self.refused < self.need:
            return False
        return self._clocks_agree or len(self.agreeing) >= self.need

    @property
    def unreachable(self) -> bool:
        """True if too few masters can be counted for a quorum, even if none of them refused."""
        # The median may still move, so that a vote left out for its clock counts again.
        return self.failed > self.spare or not (self.outstanding or self.answered)

    @property
    def only_stale(self) -> bool:
        """True if a round that is `unreachable` might have been won without stale votes."""
        lasting = [v for v in self.votes if v and v.ballot is _FAILED and not v.stale]
        return len(lasting) <= self.spare

    @property
    def denied(self) -> bool:
        """True if so many masters refused that the others are fewer than a quorum."""
        return self.refused > self.spare

    @property
    def may_be_denied(self) -> bool:
        """True if it is `denied`, or would be if all that are outstanding refused."""
        return self.refused + self.outstanding > self.spare

    @property
    def rival_won(self) -> bool:
        """True if one other holder is proved to have a majority; later votes do not change that."""
        if not self._rival_won and self.refused >= self.need:
            rivals = [vote.rival for vote in self.votes if vote is not None]
            for rival in rivals:
                if rival is not None and rivals.count(rival) >= self.need:
                    self._rival_won = True
                    break
        return self._rival_won

    # Which votes, and of which masters.

    @property
    def refusals(self) -> list[Vote]:
        """The answers of the masters that refused."""
        return [vote for vote in self.votes if vote is not None and vote.ballot is _REFUSED]

    @property
    def queueing(self) -> list[Vote]:
        """The answers of the masters that have the waiter in a queue."""
        return [vote for vote in self.votes if vote is not None and vote.ahead >= 0]

    @property
    def asked(self) -> frozenset[int]:
        """The masters that may have received the command, whatever they answered."""
        if not self.failed:
            return _all(self.masters)
        votes = enumerate(self.votes)
        return frozenset([master for master, vote in votes if vote is None or vote.sent])

    @property
    def reached(self) -> frozenset[int]:
        """The masters that may have the lock: not those never asked or sure to have refused."""
        if not self.refused:
            return self.asked
        votes = enumerate(self.votes)
        refused = [master for master, vote in votes if vote and vote.ballot is _REFUSED]
        return self.asked.difference(refused)

    @property
    def unsure(self) -> frozenset[int]:
        """The masters that may have the lock, without those that have not answered yet."""
        if not (self.granted or self.failed):
            return _NONE
        silent = [master for master, vote in enumerate(self.votes) if vote is None]
        return self.reached.difference(silent)

    @property
    def forgot(self) -> frozenset[int]:
        """The masters that answered that they do not have the lock."""
        if not self.refused:
            return _NONE
        votes = enumerate(self.votes)
        return frozenset([master for master, vote in votes if vote is not None and vote.absent])

    def reasons(self) -> list[str]:
        """Return the answer of each master in words, in the order of the masters."""
        middle = self._middle()
        reasons = []
        for vote in self.votes:
            if vote is None:
                reasons.append("no answer yet")
            elif self._near(vote, middle):
                reasons.append(vote.reason)
            else:
                off = ((vote.time or 0) - (middle or 0)) / 1_000_000
                reasons.append(f"its clock is {off:+.1f} s off the other masters'")
        return reasons


@cache
def _all(masters: int) -> frozenset[int]:
    return frozenset(range(masters))

"""Who won: votes, the tally over N masters, and its verdict."""

from __future__ import annotations

from enum import Enum
from statistics import median
from typing import NamedTuple


def quorum(masters: int) -> int:
    """How many of `masters` must agree: more than half, so that two majorities meet."""
    return masters // 2 + 1


class Ballot(Enum):
    """What one master said."""

    GRANTED = "granted"
    REFUSED = "refused"  # it answered, and the answer is no
    FAILED = "failed"  # it did not answer, or may not be counted


class Vote(NamedTuple):
    """One master's answer to one round.

    `time` is the master's clock in µs, None where it did not answer. `fences` holds one
    fencing token for each resource (granted), or one for the resource at fault
    (refused). `ttl` is how long a refusing lock still lives, in ms, -1 for ever. `rival`
    tells apart who is in the way, `resource` is the index of the resource at fault,
    `ahead` how many wait for it before us (-1: we do not stand in its queue). `sent` is
    False only where nothing was ever said to the master.
    """

    ballot: Ballot
    reason: str = ""
    time: int | None = None
    fences: tuple[int, ...] = ()
    ttl: int | None = None
    rival: bytes | None = None
    resource: int = 0
    absent: bool = False
    ahead: int = -1
    sent: bool = True

    def __repr__(self) -> str:  # without the rival, which is a token
        return f"Vote({self.ballot.value}, {self.reason!r})"


def granted(time: int | None = None, fences: tuple[int, ...] = ()) -> Vote:
    """A vote for us."""
    return Vote(Ballot.GRANTED, "granted", time, fences)


def failed(reason: str, *, sent: bool = True, time: int | None = None) -> Vote:
    """A vote that does not count, and why."""
    return Vote(Ballot.FAILED, reason, time, sent=sent)


NOT_ASKED = failed("not asked", sent=False)


class Verdict(Enum):
    """What the votes so far amount to."""

    PENDING = "pending"
    WON = "won"
    LOST = "lost"


class Tally:
    """The votes of one round over `masters` masters (always the configured number).

    `skew` in µs: a master whose clock stands further than that from the median of the
    masters that answered is not counted. With `rivals`, a lost tally stays PENDING until
    either one rival is proved to hold a majority or every master has answered: a split
    vote, which nobody won, must not be mistaken for a lock that somebody holds.
    """

    __slots__ = (
        "_failed",
        "_yes",
        "masters",
        "need",
        "outstanding",
        "rivals",
        "skew",
        "verdict",
        "votes",
    )

    def __init__(self, masters: int, *, skew: int | None = None, rivals: bool = False) -> None:
        self.masters = masters
        self.need = quorum(masters)
        self.skew = skew
        self.rivals = rivals
        self.votes: list[Vote | None] = [None] * masters
        self.outstanding = masters
        self.verdict = Verdict.PENDING
        self._yes = self._failed = 0

    def cast(self, master: int, vote: Vote) -> Verdict:
        """Count the vote of a master (0-based index) and return the verdict.

        The first vote of a master stands. A verdict, once reached, stands too; later
        votes are kept, because a renewal wants to know who had forgotten the lock.
        """
        if self.votes[master] is not None:
            return self.verdict
        self.votes[master] = vote
        self.outstanding -= 1
        ballot = vote.ballot
        self._yes += ballot is Ballot.GRANTED
        self._failed += ballot is Ballot.FAILED
        if self.verdict is Verdict.PENDING:
            self.verdict = self._judge()
        return self.verdict

    def majority(self, votes: int) -> bool:
        """Whether that many votes decide."""
        return votes >= self.need

    def _judge(self) -> Verdict:
        yes = self._yes
        if yes >= self.need and self.majority(len(self.counted())):
            return Verdict.WON
        # A vote left out for its clock may come back when the median moves, so it still
        # counts as possible here.
        if self.outstanding and yes + self.outstanding >= self.need:
            return Verdict.PENDING
        if self.outstanding and self.rivals and not (self.unreachable or self.rival_won):
            return Verdict.PENDING
        return Verdict.LOST

    def count(self, ballot: Ballot) -> int:
        """How many masters voted `ballot`."""
        return [vote.ballot for vote in self.votes if vote is not None].count(ballot)

    def counted(self) -> list[Vote]:
        """The granting votes of masters whose clocks agree."""
        ours = Ballot.GRANTED
        return [vote for vote in self.agreeing if vote.ballot is ours]

    @property
    def agreeing(self) -> list[Vote]:
        """Every answer, granting or refusing, of a master whose clock agrees."""
        none = Ballot.FAILED
        answers = [vote for vote in self.votes if vote is not None and vote.ballot is not none]
        middle = self._middle()
        if middle is None:
            return answers
        return [vote for vote in answers if self._near(vote, middle)]

    def _middle(self) -> float | None:
        """The median of the masters' clocks in µs; None where they all agree anyway."""
        if self.skew is None:
            return None
        times = [vote.time for vote in self.votes if vote is not None and vote.time is not None]
        if len(times) < 2 or max(times) - min(times) <= self.skew:
            return None
        return median(times)

    def _near(self, vote: Vote, middle: float | None) -> bool:
        if middle is None or vote.time is None or self.skew is None:
            return True
        return abs(vote.time - middle) <= self.skew

    @property
    def unreachable(self) -> bool:
        """Whether too few masters can be counted for a quorum, even if all of them were free."""
        if self.outstanding:
            # The median may still move, and bring back who stands off it now.
            return self.masters - self._failed < self.need
        return len(self.agreeing) < self.need

    @property
    def denied(self) -> bool:
        """Whether so many refused that all the others together are no quorum."""
        return self.masters - self.count(Ballot.REFUSED) < self.need

    @property
    def rival_won(self) -> bool:
        """Whether one other holder is proved to have a majority."""
        rivals = [v.rival for v in self.votes if v is not None and v.rival is not None]
        return len(rivals) >= self.need and max(map(rivals.count, rivals)) >= self.need

    def reasons(self) -> list[str]:
        """What each master said, in the order of the masters, for people."""
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

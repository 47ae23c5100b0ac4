"""The tally of the votes of N masters, and its verdict: is a round won or lost."""

from __future__ import annotations

from enum import Enum
from statistics import median

from redlock_django.engine.protocol.votes import Ballot, Vote, granted


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


class Tally:
    """The votes of one round over `masters` masters (always the configured number).

    `skew` is in µs: the vote of a master whose clock is further than that from the median of the
    answering masters does not count. With `rivals`, a lost tally stays PENDING until either one
    rival is proved to hold a majority or every master has answered: a split vote, which no client
    won, must not be mistaken for a held lock. Without, it stays PENDING as long as it may still
    become `denied`: a lock that is lost must not be reported as unknown.
    """

    __slots__ = ("_votes", "masters", "need", "rivals", "skew", "verdict")
    is_plain = False
    """True as long as a `FastTally` has got nothing but plain grants and failures."""
    unanimous: tuple[int, ...] | None = None
    """The fences of a round that was won by plain grants, which all have them; else None."""

    def __init__(self, masters: int, skew: int | None = None, rivals: bool = False) -> None:
        self.masters = masters
        self.need = quorum(masters)
        self.skew = skew
        self.rivals = rivals
        self._votes: list[Vote | None] = [None] * masters
        self.verdict = PENDING

    @property
    def votes(self) -> list[Vote | None]:
        """The vote of each master; None for those that have not answered yet."""
        return self._votes

    @property
    def outstanding(self) -> int:
        """How many masters have not answered yet."""
        return self._votes.count(None)

    @property
    def grants(self) -> int:
        """How many masters have granted so far. Another thread may count votes meanwhile."""
        return self.count(Ballot.GRANTED)

    def grant(self, master: int, time: int, fences: tuple[int, ...]) -> Verdict:
        """Count a vote that grants, given by the master's clock and its fences."""
        return self.cast(master, granted(time, fences))

    def cast(self, master: int, vote: Vote) -> Verdict:
        """Count the vote of a master (0-based index) and return the verdict.

        The first vote of a master is final. A verdict is final too once it is reached. Later votes
        are still stored, because a renewal needs to know which masters had forgotten the lock.
        """
        votes = self.votes
        if votes[master] is None:
            votes[master] = vote
        # Also for a vote that is there already: an interrupt may have struck before it was judged.
        if self.verdict is PENDING:
            self.verdict = self._judge()
        return self.verdict

    def majority(self, votes: int) -> bool:
        """Return whether that many votes are a majority."""
        return votes >= self.need

    def _judge(self) -> Verdict:
        yes, outstanding = self.count(Ballot.GRANTED), self.outstanding
        if yes >= self.need and self.majority(len(self.counted())):
            return WON
        # A vote that is left out because of the master's clock may count again when the median
        # moves, so it is still possible here.
        if outstanding and yes + outstanding >= self.need:
            return PENDING
        if outstanding and self.rivals and not (self.unreachable or self.rival_won):
            return PENDING
        if outstanding and not self.rivals and self._may_be_denied():
            return PENDING
        return LOST

    def _may_be_denied(self) -> bool:
        """Return whether outstanding votes may still prove, as refusals, that the lock is lost."""
        most = self.count(Ballot.REFUSED) + self.outstanding
        return not self.denied and self.masters - most < self.need

    def count(self, ballot: Ballot) -> int:
        """Return how many masters voted `ballot`."""
        return [vote.ballot for vote in self.votes if vote is not None].count(ballot)

    def counted(self) -> list[Vote]:
        """Return the granting votes of masters whose clocks agree."""
        ours = Ballot.GRANTED
        return [vote for vote in self.agreeing if vote.ballot is ours]

    @property
    def agreeing(self) -> list[Vote]:
        """The answers, granting or refusing, of the masters whose clocks agree."""
        none = Ballot.FAILED
        answers = [vote for vote in self.votes if vote is not None and vote.ballot is not none]
        middle = self._middle()
        if middle is None:
            return answers
        return [vote for vote in answers if self._near(vote, middle)]

    def _middle(self) -> float | None:
        """Return the median of the masters' clocks in µs; None if all clocks agree anyway."""
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
        """True if too few masters can be counted for a quorum, even if none of them refused."""
        if self.outstanding:
            # The median may still move, so that a vote left out for its clock counts again.
            return self.masters - self.count(Ballot.FAILED) < self.need
        return len(self.agreeing) < self.need

    @property
    def answered(self) -> bool:
        """True if a quorum has answered already, whether it grants or refuses."""
        return self.majority(len(self.agreeing))

    @property
    def queueing(self) -> list[Vote]:
        """The answers of the masters that have the waiter in a queue."""
        return [vote for vote in self.votes if vote is not None and vote.ahead >= 0]

    @property
    def only_stale(self) -> bool:
        """True if the round failed, and might have been won without stale votes."""
        lasting = sum(
            vote.ballot is Ballot.FAILED and not vote.stale for vote in self.votes if vote
        )
        return self.unreachable and self.masters - lasting >= self.need

    @property
    def denied(self) -> bool:
        """True if so many masters refused that the others are fewer than a quorum."""
        return self.masters - self.count(Ballot.REFUSED) < self.need

    @property
    def rival_won(self) -> bool:
        """True if one other holder is proved to have a majority."""
        rivals = [v.rival for v in self.votes if v is not None and v.rival is not None]
        return len(rivals) >= self.need and max(map(rivals.count, rivals)) >= self.need

    @property
    def asked(self) -> frozenset[int]:
        """The masters that may have received the command, whatever they answered."""
        votes = enumerate(self.votes)
        return frozenset(master for master, vote in votes if vote is None or vote.sent)

    @property
    def reached(self) -> frozenset[int]:
        """The masters that may have the lock: not those never asked or sure to have refused."""
        return frozenset(
            master
            for master, vote in enumerate(self.votes)
            if vote is None or (vote.sent and vote.ballot is not Ballot.REFUSED)
        )

    @property
    def silent(self) -> frozenset[int]:
        """The masters that have not answered yet."""
        return frozenset(master for master, vote in enumerate(self.votes) if vote is None)

    @property
    def forgot(self) -> frozenset[int]:
        """The masters that answered that they do not have the lock."""
        votes = enumerate(self.votes)
        return frozenset(master for master, vote in votes if vote is not None and vote.absent)

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

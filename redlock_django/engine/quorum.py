"""The tally of a round: its verdict, won or lost, and the account of why.

Nearly every round is answered by masters whose clocks agree, and which all grant with the same
fences or all refuse because of the same rival, or do not answer at all. A `Tally` counts such plain
answers as they come. The first other answer (other fences, another rival, both a grant and a
refusal, a clock that is off, too few masters left) opens the `Account`, which has a vote for each
master. So does a caller that looks at it. That both ways come to the same verdict is shown by
`tests/engine/test_fast_path.py`.
"""

from __future__ import annotations

import math
from enum import Enum
from functools import cache
from statistics import median
from typing import Any

from redlock_django.engine.protocol.votes import Ballot, Vote, granted, refused


def quorum(masters: int) -> int:
    """Return how many of `masters` must agree: more than half, so that two majorities overlap."""
    return masters // 2 + 1


class Verdict(Enum):
    """The result of the votes so far."""

    PENDING = "pending"
    WON = "won"
    LOST = "lost"


_NONE: frozenset[int] = frozenset()
# A member of an enum takes long to look up.
PENDING, WON, LOST = Verdict.PENDING, Verdict.WON, Verdict.LOST


class Switch:
    """The switch of the fast path of a tally. Tests turn it off."""

    on = True


class Tally:
    """The count of one round over `masters` masters (always the configured number).

    The round is WON once a majority grants whose clocks agree within `skew` µs. It is LOST once
    that is impossible and the reason is final. With `rivals`, the reason is final once too few
    masters can be counted, or one rival is proved to hold a majority: otherwise a split vote would
    look like a held lock. Without, it is final once the lock is denied, or cannot be denied any
    more: otherwise a lost lock would be reported as unknown.
    """

    __slots__ = (
        "_account", "_earliest", "_latest", "_missing", "_shared", "_unsent", "_votes", "masters",
        "need", "rivals", "skew", "verdict",
    )  # fmt: skip
    _earliest: float
    _latest: float

    def __init__(self, masters: int, skew: int | None = None, rivals: bool = False) -> None:
        self.masters = masters
        self.need = self._missing = quorum(masters)  # plain answers that are missing for a quorum
        self.skew = skew
        self.rivals = rivals
        self.verdict = PENDING
        # The vote of each master. Without an account, a vote that grants is its clock alone, one
        # that refuses is its clock, the remaining TTL and the fence.
        self._votes: list[Any] = [None] * masters
        self._unsent: tuple[int, ...] = ()  # the masters to which no byte was sent
        # What all of these share: the fences of grants, or the rival of refusals. Then the bounds
        # of their clocks.
        self._shared: Any = None
        self._account = None if Switch.on else Account(self._votes, skew)

    # The verdict.

    def grant(self, master: int, time: int, fences: tuple[int, ...]) -> Verdict:
        """Count a vote that grants, given by the master's clock and its fences."""
        if (
            fences == self._shared
            and self._earliest <= time <= self._latest
            and self._votes[master] is None
        ):
            self._votes[master] = time
            self._missing -= 1
            if not self._missing:
                self.verdict = WON
            return self.verdict
        if self._shared is None and self._account is None:
            self._begin(fences, time)
            return self.grant(master, time, fences)
        return self.cast(master, granted(time, fences))

    def refuse(self, master: int, time: int, ttl: int, fence: int, rival: bytes) -> Verdict:
        """Count a vote that refuses one resource to a client that does not wait; see `refused`."""
        if (
            rival == self._shared
            and self._earliest <= time <= self._latest
            and self._votes[master] is None
        ):
            self._votes[master] = time, ttl, fence
            self._missing -= 1
            if not self._missing:
                self.verdict = LOST
            return self.verdict
        if self._shared is None and self._account is None and self.rivals:
            self._begin(rival, time)
            return self.refuse(master, time, ttl, fence, rival)
        return self.cast(master, refused(time, ttl, fence, rival))

    def _begin(self, shared: tuple[int, ...] | bytes, time: int) -> None:
        """Begin to count plain answers, of which this is the first one."""
        near = math.inf if self.skew is None else self.skew >> 1  # half, so that any two agree
        self._shared, self._earliest, self._latest = shared, time - near, time + near

    def cast(self, master: int, vote: Vote) -> Verdict:
        """Count the vote of a master (0-based index) and return the verdict.

        The first vote of a master is final. A verdict is final too once it is reached. Later votes
        are still stored, because a renewal needs to know which masters had forgotten the lock.
        """
        if is_first := self._votes[master] is None:
            self._votes[master] = vote
            if not vote.sent:
                self._unsent = (*self._unsent, master)
        account = self._account
        if account is None:
            if not (is_first and self._is_spared(vote)):
                self._open()
        elif self.verdict is PENDING:
            # Also for a vote that is there already: an interrupt may have struck before the count.
            self.verdict = self._judge(account)
        return self.verdict

    def _is_spared(self, vote: Vote) -> bool:
        """Return whether the other masters may still decide the round after this failure.

        Its clock does not matter: the median is then among clocks that agree.
        """
        failures = sum(isinstance(vote, Vote) for vote in self._votes)
        return vote.ballot is Ballot.FAILED and self.masters - failures >= self.need

    def _judge(self, account: Account) -> Verdict:
        granting, outstanding = account.count(Ballot.GRANTED), self.outstanding
        if granting >= self.need and len(account.counted()) >= self.need:
            return WON
        if not outstanding:
            return LOST
        # A vote that is left out because of the master's clock may count again when the median
        # moves, so it is still possible here.
        if granting + outstanding >= self.need:
            return PENDING
        if self.rivals:
            is_final = account.unreachable or account.rival_won
        else:
            is_final = account.denied or not account.may_be_denied
        return LOST if is_final else PENDING

    def _open(self) -> Account:
        """Open the account: build the votes of the answers that were counted without any."""
        shared = self._shared
        votes = [
            granted(vote, shared) if type(vote) is int
            else refused(vote[0], vote[1], vote[2], shared) if type(vote) is tuple
            else vote
            for vote in self._votes
        ]  # fmt: skip
        account = Account(votes, self.skew)
        self._votes, self._account, self._shared = votes, account, None
        if self.verdict is PENDING:
            self.verdict = self._judge(account)
        return account

    # What nearly every caller asks: no votes are built for it.

    @property
    def is_plain(self) -> bool:
        """True as long as there are only plain answers, and failures of a minority."""
        return self._account is None

    @property
    def is_refused(self) -> bool:
        """True if plain refusals have decided: one rival has a majority, and no master granted."""
        return self._account is None and self.verdict is LOST

    @property
    def unanimous(self) -> tuple[int, ...] | None:
        """The fences of a round that was won by agreeing grants, which all have them; else None."""
        return self._shared if self.verdict is WON else None

    @property
    def grants(self) -> int:
        """How many masters have granted so far. Another thread may count votes meanwhile."""
        if (account := self._account) is not None:
            return account.count(Ballot.GRANTED)
        return 0 if type(self._shared) is bytes else self.need - self._missing

    @property
    def outstanding(self) -> int:
        """How many masters have not answered yet."""
        return self._votes.count(None)

    @property
    def asked(self) -> frozenset[int]:
        """The masters that may have received the command, whatever they answered."""
        masters = _all(self.masters)
        return masters.difference(self._unsent) if self._unsent else masters

    @property
    def reached(self) -> frozenset[int]:
        """The masters that may have the lock: not those never asked or sure to have refused."""
        if (account := self._account) is not None:
            return account.reached
        if type(self._shared) is not bytes:
            return self.asked
        return self.asked.difference(
            master for master, vote in enumerate(self._votes) if type(vote) is tuple
        )

    @property
    def unsure(self) -> frozenset[int]:
        """The masters that may have the lock, without those that have not answered yet."""
        refused = self.need - self._missing  # first: another thread may count votes meanwhile
        if self.is_refused and refused + self.outstanding == self.masters:
            return _NONE
        silent = {master for master, vote in enumerate(self._votes) if vote is None}
        return self.reached - silent

    @property
    def rival_won(self) -> bool:
        """True if one other holder is proved to have a majority."""
        return self.is_refused or self.account.rival_won

    @property
    def forgot(self) -> frozenset[int]:
        """The masters that answered that they do not have the lock."""
        return _NONE if self._account is None else self._account.forgot

    # Why.

    @property
    def account(self) -> Account:
        """The vote of each master, and what the votes prove."""
        return self._account or self._open()

    @property
    def votes(self) -> list[Vote | None]:
        """The vote of each master; None for those that have not answered yet."""
        return self.account.votes


class Account:
    """The account of why a round was won or lost: the votes, in the order of the masters.

    A vote is None as long as it is outstanding. The tally adds late ones.
    """

    __slots__ = ("need", "skew", "votes")

    def __init__(self, votes: list[Vote | None], skew: int | None) -> None:
        self.votes = votes
        self.skew = skew
        self.need = quorum(len(votes))

    def majority(self, votes: int) -> bool:
        """Return whether that many votes are a majority."""
        return votes >= self.need

    def count(self, ballot: Ballot) -> int:
        """Return how many masters voted `ballot`."""
        return [vote.ballot for vote in self.votes if vote is not None].count(ballot)

    @property
    def outstanding(self) -> int:
        """How many masters have not answered yet."""
        return self.votes.count(None)

    # Votes whose clocks agree.

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

    # What the votes prove.

    @property
    def answered(self) -> bool:
        """True if a quorum has answered already, whether it grants or refuses."""
        return self.majority(len(self.agreeing))

    @property
    def unreachable(self) -> bool:
        """True if too few masters can be counted for a quorum, even if none of them refused."""
        if self.outstanding:
            # The median may still move, so that a vote left out for its clock counts again.
            return not self._suffice_without(self.count(Ballot.FAILED))
        return not self.answered

    @property
    def only_stale(self) -> bool:
        """True if the round failed, and might have been won without stale votes."""
        lasting = sum(
            vote.ballot is Ballot.FAILED and not vote.stale for vote in self.votes if vote
        )
        return self.unreachable and self._suffice_without(lasting)

    @property
    def denied(self) -> bool:
        """True if so many masters refused that the others are fewer than a quorum."""
        return not self._suffice_without(self.count(Ballot.REFUSED))

    @property
    def may_be_denied(self) -> bool:
        """True if it is `denied`, or would be if all that are outstanding refused."""
        return not self._suffice_without(self.count(Ballot.REFUSED) + self.outstanding)

    @property
    def rival_won(self) -> bool:
        """True if one other holder is proved to have a majority."""
        rivals = [v.rival for v in self.votes if v is not None and v.rival is not None]
        return self.majority(max(map(rivals.count, rivals), default=0))

    def _suffice_without(self, votes: int) -> bool:
        """Return whether the masters without that many are a majority of all."""
        return self.majority(len(self.votes) - votes)

    # Which votes, and of which masters.

    @property
    def refusals(self) -> list[Vote]:
        """The answers of the masters that refused."""
        no = Ballot.REFUSED
        return [vote for vote in self.votes if vote is not None and vote.ballot is no]

    @property
    def queueing(self) -> list[Vote]:
        """The answers of the masters that have the waiter in a queue."""
        return [vote for vote in self.votes if vote is not None and vote.ahead >= 0]

    @property
    def reached(self) -> frozenset[int]:
        """The masters that may have the lock: not those never asked or sure to have refused."""
        return frozenset(
            master
            for master, vote in enumerate(self.votes)
            if vote is None or (vote.sent and vote.ballot is not Ballot.REFUSED)
        )

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


@cache
def _all(masters: int) -> frozenset[int]:
    return frozenset(range(masters))

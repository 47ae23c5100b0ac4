"""The accelerator of the verdict: a tally that counts plain grants without building votes.

Nearly every round is answered by masters that grant with the same fence and agreeing clocks, or do
not answer at all. A `FastTally` stores such answers as they came and only compares them. At the
first other answer (a refusal, another fence, a clock that is off, too few masters left), or when a
caller looks at single votes, it builds the votes and is a `Tally` from then on, in the same state:
the algorithm is written once, in `quorum`, `fencing` and `rounds`. That both always agree is shown
by `tests/engine/test_fast_path.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from redlock_django.engine.quorum import (
    PENDING,
    WON,
    Ballot,
    Tally,
    Verdict,
    Vote,
    check_fences,
    granted,
)

Answer = Vote | tuple[int, Sequence[int]]
"""The clock and the fences of a grant, or a failed vote."""


class FastTally(Tally):
    """A tally that builds its votes when they are needed."""

    __slots__ = ("_failed", "_fences", "_first", "_last", "_missing", "_plain", "_unsent")

    def __init__(self, masters: int, skew: int | None = None, rivals: bool = False) -> None:
        super().__init__(masters, skew, rivals)
        # The answers so far, in order; None once the votes are built.
        self._plain: dict[int, Answer] | None = {}
        self._failed = 0
        self._missing = self.need  # the grants that are missing for a quorum
        self._fences: Sequence[int] | None = None
        self._first = self._last = 0  # the earliest and the latest clock of a grant, in µs
        self._unsent: list[int] | None = None  # the masters to which no byte was sent

    def grant(self, master: int, time: int, fences: Sequence[int]) -> Verdict:
        plain = self._plain
        if plain is None or master in plain:
            return super().grant(master, time, fences)
        if self._fences is None:
            check_fences(fences)  # others are compared with these
            self._fences, self._first, self._last = fences, time, time
        elif fences != self._fences:
            return super().grant(master, time, fences)
        elif self.skew is not None:
            if time < self._first:
                self._first = time
            elif time > self._last:
                self._last = time
            if self._last - self._first > self.skew:
                return super().grant(master, time, fences)
        plain[master] = (time, fences)
        # Each of these votes is counted, because all clocks agree.
        self._missing -= 1
        if not self._missing:
            self.verdict = WON
        return self.verdict

    def cast(self, master: int, vote: Vote) -> Verdict:
        plain = self._plain
        if plain is not None and master not in plain:
            # Its clock, if it has one, does not matter: a majority grants with agreeing clocks, so
            # that the median is among these.
            left = self.masters - self._failed - 1
            if vote.ballot is Ballot.FAILED and self.majority(left):
                plain[master] = vote
                self._failed += 1
                if not vote.sent:
                    self._unsent = [*(self._unsent or ()), master]
                return self.verdict
            self._build(plain)
        return super().cast(master, vote)

    def _build(self, plain: dict[int, Answer]) -> None:
        """Build the votes, and count them as a `Tally` does."""
        for master, answer in plain.items():
            vote = answer if isinstance(answer, Vote) else granted(answer[0], tuple(answer[1]))
            self._votes[master] = vote
        self._plain = None  # now: after an interrupt above, the votes are built again
        if self.verdict is PENDING:
            self.verdict = self._judge()

    @property
    def outstanding(self) -> int:
        return super().outstanding if self._plain is None else self.masters - len(self._plain)

    @property
    def grants(self) -> int:
        return super().grants if self._plain is None else self.need - self._missing

    @property
    def votes(self) -> list[Vote | None]:
        if self._plain is not None:
            self._build(self._plain)
        return self._votes

    @property
    def unanimous(self) -> tuple[int, ...] | None:  # type: ignore[override]
        if self._plain is None or self.verdict is not WON or self._fences is None:
            return None
        return tuple(self._fences)

    @property
    def is_plain(self) -> bool:  # type: ignore[override]
        return self._plain is not None

    @property
    def asked(self) -> frozenset[int]:
        if self._plain is None:
            return super().asked
        return _all(self.masters) if self._unsent is None else _all(self.masters) - {*self._unsent}

    @property
    def reached(self) -> frozenset[int]:
        return super().reached if self._plain is None else self.asked

    @property
    def forgot(self) -> frozenset[int]:
        return super().forgot if self._plain is None else frozenset()


class Switch:
    """The switch of the fast path. Tests and REDLOCK_FAST_PATH=0 turn it off."""

    on = True


def new_tally(masters: int, *, skew: int | None = None, rivals: bool = False) -> Tally:
    """Return the tally of a new round."""
    # Without keywords, which take long on the way through the constructor of a class.
    return (FastTally if Switch.on else Tally)(masters, skew, rivals)


@cache
def _all(masters: int) -> frozenset[int]:
    return frozenset(range(masters))

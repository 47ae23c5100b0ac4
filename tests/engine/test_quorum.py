"""The verdict of a vote: every ballot in every order, compared with a very simple oracle."""

from __future__ import annotations

import math
from functools import cache
from itertools import product
from random import Random
from unittest.mock import patch

import pytest

from redlock_django.engine.protocol.votes import Ballot, Vote, failed, granted
from redlock_django.engine.quorum import Tally, Verdict, quorum
from tests.engine.mutants import kills
from tests.engine.mutation import always, instead, never
from tests.replies import refused, tally_of

YES, NO, FAIL = Ballot.GRANTED, Ballot.REFUSED, Ballot.FAILED


def end(masters: int, said: tuple[Ballot, ...]) -> str:
    """Return how a round ends in which all masters have answered."""
    if 2 * said.count(YES) > masters:
        return "won"
    return "denied" if 2 * (masters - said.count(NO)) <= masters else "unknown"


@cache
def oracle(masters: int, said: tuple[Ballot, ...]) -> Verdict:
    """Return the verdict if the end is certain whatever the other masters vote, else PENDING."""
    ends = {
        end(masters, said + rest) for rest in product((YES, NO, FAIL), repeat=masters - len(said))
    }
    if len(ends) > 1:
        return Verdict.PENDING
    return Verdict.WON if ends == {"won"} else Verdict.LOST


@kills("judged only by grants", Tally.cast, never("self.refused + self.failed > self.spare"), 4)
@kills("a verdict waits for no denial", Tally._judge, always("not self.may_be_denied"), 3)
@pytest.mark.parametrize("masters", range(1, 8))
def test_every_ballot_in_every_order(masters: int) -> None:
    for ballots in product((YES, NO, FAIL), repeat=masters):
        tally = Tally(masters)
        verdicts = [tally.cast(index, Vote(ballot)) for index, ballot in enumerate(ballots)]
        # Reached as soon as it is certain, and never changed.
        expected = [oracle(masters, ballots[: index + 1]) for index in range(masters)]
        assert verdicts == expected, ballots
        assert tally.verdict is expected[-1] is not Verdict.PENDING


@pytest.mark.parametrize("masters", range(1, 8))
def test_two_majorities_always_meet(masters: int) -> None:
    need = quorum(masters)
    assert 2 * need > masters
    assert 2 * (need - 1) <= masters
    tally = Tally(masters)
    assert [tally.majority(votes) for votes in range(masters + 1)] == [
        votes >= need for votes in range(masters + 1)
    ]


def _end_with_rivals(masters: int, said: tuple[str, ...]) -> Verdict:
    yes, left = said.count("yes"), masters - len(said)
    if 2 * yes > masters:
        return Verdict.WON
    possible = 2 * (yes + left) > masters
    proven = 2 * max(said.count("A"), said.count("B")) > masters
    hopeless = 2 * (masters - said.count("failed")) <= masters
    split = left and not proven and not hopeless
    return Verdict.PENDING if possible or split else Verdict.LOST


@pytest.mark.parametrize("masters", range(1, 8))
def test_every_ballot_with_rivals(masters: int) -> None:
    votes = {
        "yes": granted(),
        "failed": failed("hung"),
        "A": Vote(NO, rival=b"A"),
        "B": Vote(NO, rival=b"B"),
    }
    for said in product(votes, repeat=masters):
        tally = Tally(masters, rivals=True)
        reached = Verdict.PENDING
        for index, word in enumerate(said):
            if reached is Verdict.PENDING:
                reached = _end_with_rivals(masters, said[: index + 1])
            assert tally.cast(index, votes[word]) is reached, (said, index)


@kills(
    "a master votes twice",
    Tally.cast,
    instead(
        "self.votes[master] is None", "vote.ballot is not Ballot.FAILED or not self.votes[master]"
    ),
)
def test_the_first_vote_of_a_master_counts() -> None:
    tally = Tally(3)
    tally.cast(0, failed("hung"))
    tally.cast(0, granted())
    tally.cast(1, granted())
    assert tally.verdict is Verdict.PENDING
    assert tally.failed == tally.granted == tally.outstanding == 1
    assert tally.cast(2, granted()) is Verdict.WON


def test_reasons_name_silent_masters() -> None:
    tally = tally_of(None, failed("refused the connection", sent=False), skew=1)
    assert tally.reasons() == ["no answer yet", "refused the connection"]


# Clocks: a master off the median is not counted.

SECOND = 1_000_000


def _cast(times: list[float | None], *, rivals: bool = False) -> tuple[Tally, list[Verdict]]:
    tally = Tally(len(times), skew=SECOND, rivals=rivals)
    verdicts = []
    for index, time in enumerate(times):
        vote = failed("hung") if time is None else granted(int(time * SECOND))
        verdicts.append(tally.cast(index, vote))
    return tally, verdicts


def test_a_clock_off_the_median_is_not_counted() -> None:
    tally, verdicts = _cast([0, 0, None, None, 5])
    assert tally.granted == 3
    assert len(tally.counted()) == 2
    assert verdicts == [Verdict.PENDING] * 4 + [Verdict.LOST]
    assert tally.unreachable
    assert tally.reasons()[4] == "its clock is +5.0 s off the other masters'"
    assert tally.reasons()[0] == "granted"


def test_a_vote_comes_back_when_the_median_moves() -> None:
    tally, verdicts = _cast([0, 5, 5, 5.5])
    assert verdicts == [Verdict.PENDING, Verdict.PENDING, Verdict.PENDING, Verdict.WON]
    # Of two clocks either may be wrong: neither counts until a third master has answered.
    two, _ = _cast([0, 5])
    assert two.counted() == []
    assert [vote.time for vote in tally.counted()] == [5 * SECOND, 5 * SECOND, 5.5 * SECOND]


def test_a_tally_is_not_unreachable_while_the_median_may_move() -> None:
    ahead, other = (Vote(NO, "held", time * SECOND, rival=b"A") for time in (5, 0))
    tally = tally_of(ahead, None, None, other, skew=SECOND, rivals=True)
    assert tally.agreeing == []
    assert not tally.unreachable
    assert tally.verdict is Verdict.PENDING
    for index in (1, 2):
        tally.cast(index, other)
    assert tally.rival_won
    assert not tally.unreachable


@pytest.mark.parametrize("apart", [0.0, 0.4, 1.0])
def test_clocks_within_the_skew_all_count(apart: float) -> None:
    tally, _ = _cast([0, apart, apart / 2])
    assert tally.verdict is Verdict.WON
    assert len(tally.counted()) == tally.granted


def test_clocks_of_masters_that_refuse_or_fail_with_a_time_weigh_too() -> None:
    refused_, failed_ = Vote(NO, time=0), failed("not trusted yet", time=0)
    votes = granted(9 * SECOND), refused_, failed_, granted(0), granted(0)
    tally = tally_of(*votes, skew=SECOND)
    assert tally.verdict is Verdict.LOST
    assert [vote.time for vote in tally.counted()] == [0, 0]
    assert [vote.ballot for vote in tally.agreeing] == [NO, YES, YES]


def test_a_vote_without_a_time_is_not_off() -> None:
    assert tally_of(granted(), granted(0), None, skew=SECOND).verdict is Verdict.WON


@pytest.mark.parametrize("masters", range(1, 6))
def test_every_order_of_clocks_that_are_off(masters: int) -> None:
    """Whatever the order of the replies, there is a verdict, and WON only with a majority."""
    for times in product((0.0, 0.9, 1.8, None), repeat=masters):
        tally, verdicts = _cast(list(times))
        assert tally.verdict is not Verdict.PENDING
        first = next(v for v in verdicts if v is not Verdict.PENDING)
        assert tally.verdict is first
        if first is Verdict.WON:
            at = verdicts.index(first)
            then, _ = _cast([*times[: at + 1], *[None] * (masters - at - 1)])
            assert 2 * len(then.counted()) > masters


@kills("the earliest clock is forgotten", Tally.cast, never("time < self.earliest"))
@kills("the latest clock is forgotten", Tally.cast, never("time > self.latest"))
def test_the_counters_are_those_of_the_votes() -> None:
    rng = Random(1)
    for _ in range(2000):
        tally = Tally(rng.randint(1, 7), skew=SECOND, rivals=rng.random() < 0.5)
        for _ in range(2 * tally.masters):  # some masters vote twice
            time = rng.choice((None, 0, 5, SECOND + 2, 2 * SECOND + 5))
            tally.cast(rng.randrange(tally.masters), Vote(rng.choice((YES, NO, FAIL)), time=time))
            votes = [vote for vote in tally.votes if vote is not None]
            counters = [tally.granted, tally.refused, tally.failed]
            assert counters == [[v.ballot for v in votes].count(word) for word in (YES, NO, FAIL)]
            assert tally.outstanding == tally.votes.count(None)
            times = [vote.time for vote in votes if vote.time is not None]
            assert tally.earliest == min(times, default=math.inf)
            assert tally.latest == max(times, default=-math.inf)


@kills("an interrupted count stays", Tally.cast, instead("self._recount()", "None"))
def test_a_vote_counts_though_an_interrupt_struck_before() -> None:
    tally = tally_of(None, granted(0), failed("down"), skew=SECOND)
    tally.votes[0] = granted(5)  # stored, but not counted yet
    assert tally.cast(0, granted(5)) is Verdict.WON
    assert [tally.granted, tally.refused, tally.failed, tally.latest] == [2, 0, 1, 5]


def test_a_verdict_is_reached_though_an_interrupt_struck_before() -> None:
    tally = Tally(1)
    with (
        patch.object(Tally, "_judge", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        tally.cast(0, granted(0))
    assert tally.cast(0, granted(0)) is Verdict.WON
    assert tally.granted == 1


@kills("failed masters refused", Tally.unsure,
       instead("self.reached.difference(...)", "frozenset()"))  # fmt: skip
@kills("silent masters are unsure", Tally.unsure, never("vote is None"))
@kills("masters not asked are reached", Tally.asked, always("vote.sent"))
def test_what_a_refused_round_may_have_reached() -> None:
    tally = Tally(7, rivals=True)
    tally.cast(6, failed("not connected", sent=False))
    tally.cast(5, failed("did not answer"))
    for master in range(4):
        assert tally.verdict is Verdict.PENDING
        tally.cast(master, refused(0, 900, 7, b"A"))
    assert tally.verdict is Verdict.LOST
    assert tally.rival_won
    assert tally.asked == {0, 1, 2, 3, 4, 5}
    assert tally.reached == {4, 5}
    assert tally.unsure == {5}
    assert not tally.forgot
    tally.cast(4, granted(0, (8,)))
    assert tally.verdict is Verdict.LOST
    assert tally.reached == tally.unsure == {4, 5}


@pytest.mark.parametrize("ahead", [0, SECOND + 1])
def test_refusals_of_a_majority_are_final_only_if_their_rival_is_one(ahead: int) -> None:
    vote, other = refused(0, 900, 7, b"A"), refused(ahead, 900, 7, b"B")
    tally = tally_of(vote, other, None, None, None, skew=SECOND, rivals=True)
    assert tally.cast(2, vote) is Verdict.PENDING
    assert tally.cast(3, vote) is Verdict.LOST

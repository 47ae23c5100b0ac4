"""The fast path changes nothing: the same verdicts, leases, commands and traces without it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count, permutations, product
from random import Random
from typing import Any

import pytest

from redlock_django.engine import rounds
from redlock_django.engine.attempt import Client
from redlock_django.engine.errors import NotAcquired
from redlock_django.engine.fencing import highest, stored_by_majority
from redlock_django.engine.protocol.commands import Confirm
from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.engine.protocol.votes import Ballot, Vote, failed, granted, refused
from redlock_django.engine.quorum import Account, Switch, Tally, Verdict, quorum
from redlock_django.engine.steps import Round, Step
from tests.engine import sweep
from tests.engine.masters import count_vote

TIME = 1_760_000_000_000_000  # µs
SKEW = 500_000

ANSWERS = {
    "granted": granted(TIME, (7,)),
    "a higher fence": granted(TIME + 1, (8,)),
    "a clock ahead": granted(TIME + SKEW + 2, (7,)),
    "a clock far ahead": granted(TIME + 2 * SKEW + 2, (7,)),
    "no answer": failed("did not answer"),
    "not asked": failed("not connected", sent=False),
    "not trusted": failed("not trusted yet", time=TIME + 9 * SKEW),
    "held": refused(TIME, 900, 7, b"A"),
    "held for longer": refused(TIME + 1, 901, 6, b"A"),
    "held, a clock ahead": refused(TIME + SKEW + 2, 900, 7, b"A"),
    "held by another": refused(TIME, 900, 7, b"B"),
    "reserved": refused(TIME, 90, 7, b"A", reserved=True),
    "held, without a clock": Vote(Ballot.REFUSED, "held", rival=b"A"),
    "absent": Vote(Ballot.REFUSED, "forgot the lock", TIME, absent=True),
}
FEW = ("granted", "held", "no answer", "held by another", "a higher fence")


@contextmanager
def fast_path(on: bool) -> Iterator[None]:
    """Switch the fast path on or off for a while."""
    before, Switch.on = Switch.on, on
    try:
        yield
    finally:
        Switch.on = before


def _state(tally: Tally) -> tuple[Any, ...]:
    """Return all that a caller can learn from a tally."""
    account = tally.account
    return (
        account.votes, tally.verdict, account.outstanding, account.unreachable, account.only_stale,
        account.denied, account.rival_won, account.reasons(), account.counted(), account.agreeing,
        tally.asked, tally.reached, tally.forgot,
    )  # fmt: skip


def _both(masters: int, cast: Iterable[tuple[int, Vote]], *, rivals: bool, look: int = -1) -> None:
    """Count votes with the fast path and without, look at all after `look` of them, and compare."""
    fast = Tally(masters, skew=SKEW, rivals=rivals)
    with fast_path(False):
        slow = Tally(masters, skew=SKEW, rivals=rivals)
    for number, (master, vote) in enumerate(cast):
        assert count_vote(fast, master, vote) is count_vote(slow, master, vote)
        assert fast.verdict is slow.verdict
        assert fast.grants == slow.grants
        assert fast.unsure == slow.unsure
        if fast.is_plain:
            asked = {m for m, v in enumerate(slow.votes) if v is None or v.sent}
            assert fast.asked == slow.asked == asked
            assert fast.reached == slow.reached
            assert fast.forgot == slow.forgot == frozenset()
            if fast.is_refused:
                assert fast.rival_won
                _is_held_by_one(slow.account)
            assert fast.is_plain, "these questions need no votes"
        if fast.unanimous is not None:
            assert fast.unanimous == highest(slow.account, 1)
            assert stored_by_majority(slow.account, fast.unanimous)
        if number == look:
            assert _state(fast) == _state(slow)
    assert _state(fast) == _state(slow)


def _is_held_by_one(account: Account) -> None:
    """Assert what `Tally.is_refused` promises to its callers."""
    assert account.rival_won
    assert not account.unreachable
    assert not account.only_stale
    assert not account.count(Ballot.GRANTED)
    assert not account.queueing


def every_answer(masters: int) -> None:
    """Compare both tallies for every answer of the masters, in every order of up to three."""
    orders = list(permutations(range(masters)))
    for number, answers in enumerate(product(ANSWERS.values(), repeat=masters)):
        # Each of four masters in every order would take half a minute: one order for each answer.
        for order in orders if masters < 4 else [orders[number % len(orders)]]:
            _both(masters, [(index, answers[index]) for index in order], rivals=True)


@pytest.mark.parametrize("masters", [1, 2, 3, pytest.param(4, marks=pytest.mark.nightly)])
def test_every_answer_in_every_order_is_the_same_verdict(masters: int) -> None:
    every_answer(masters)


@pytest.mark.parametrize("masters", [5, 6, 7])
def test_every_answer_of_many_masters_is_the_same_verdict(masters: int) -> None:
    few = [ANSWERS[name] for name in FEW[: 10 - masters]]
    for answers in product(few, repeat=masters):
        _both(masters, enumerate(answers), rivals=False)
        _both(masters, enumerate(answers), rivals=True)


def test_random_answers_are_the_same_verdict() -> None:
    rng = Random(1)
    names = [*ANSWERS, *["granted"] * 8, *["no answer"] * 3]
    for _ in range(4000):
        masters = rng.randint(1, 7)
        cast = [
            (rng.randrange(masters), ANSWERS[rng.choice(names)]._replace())
            for _ in range(rng.randint(1, 2 * masters))
        ]
        _both(masters, cast, rivals=rng.random() < 0.5, look=rng.randrange(2 * masters))


def _trace(masters: int, answers: Iterator[Sequence[str]], prompt: int, late: int) -> list[object]:
    """Return all that a client does and gets, up to the release of its lease.

    `answers` are those to each round. The first `prompt` of them have come when the client goes on
    (or as many as make a verdict), and `late` more before it releases its lease.
    """
    deployment = Deployment(names=tuple(f"m{index}" for index in range(masters)))
    protocol = rounds.acquire(
        Client(
            deployment,
            tokens=(f"{number:032x}" for number in count()),
            proposals=count(TIME),
            delay=lambda attempts: 0.01,
            overrun=0.0,
        ),
        ("r",),
        10.0,
        "{}",
        now=100.0,
        wait=0.0,
    )
    done: list[object] = []
    rest: list[tuple[int, str]] = []
    try:
        step: Step = next(protocol)
        while True:
            done.append(_asked(step) if isinstance(step, Round) else step)
            if isinstance(step, Round) and step.awaited:
                said = list(enumerate(next(answers)))
                given = _answer(step.tally, said, prompt)
                rest = rest if isinstance(step.commands[0], Confirm) else said[given:]
            step = protocol.send(100.1)
    except NotAcquired as error:
        return [*done, type(error), str(error)]
    except StopIteration as won:
        lease = won.value
    for master, word in rest[:late]:
        count_vote(lease.tally, master, ANSWERS[word])
    released = _asked(next(rounds.release(deployment, lease)))
    extended = _asked(next(rounds.extend(deployment, lease, 10.0, now=101.0)))
    return [*done, lease, lease.reached, released, extended[0], lease.tally.votes]


def _asked(step: Step) -> tuple[object, ...]:
    """Return all of a round but its tally."""
    assert isinstance(step, Round)
    return step.commands, step.awaited, step.patient


def _answer(tally: Tally, answers: list[tuple[int, str]], prompt: int) -> int:
    """Count answers up to the verdict, and the first `prompt` anyway; return how many."""
    for number, (master, word) in enumerate(answers):
        if number >= prompt and tally.verdict is not Verdict.PENDING:
            return number
        count_vote(tally, master, ANSWERS[word])
    return len(answers)


@pytest.mark.parametrize("masters", range(1, 8))
def test_the_same_lease_and_the_same_commands(masters: int) -> None:
    rng = Random(masters)
    kinds = [*ANSWERS, *["granted"] * 12]
    firsts = list(product(ANSWERS, repeat=masters)) if masters < 4 else []
    firsts += [tuple(rng.choices(kinds, k=masters)) for _ in range(600)]
    won = 0
    for first in firsts:
        rest = [rng.choices(kinds, k=masters) for _ in range(20)]
        prompt, late = rng.randint(0, masters), rng.randint(0, masters)
        traces = []
        for on in (True, False):
            with fast_path(on):
                traces.append(_trace(masters, iter([first, *rest]), prompt, late))
        assert traces[0] == traces[1], first
        won += not isinstance(traces[0][-1], str)
    assert won > 50


def test_a_round_that_nothing_disturbs_builds_no_votes() -> None:
    tally = Tally(5, skew=SKEW, rivals=True)
    tally.cast(4, failed("not connected", sent=False))
    for master in range(3):
        tally.grant(master, TIME + master, (7,))
    assert tally.verdict is Verdict.WON
    assert tally.unanimous == (7,)
    assert tally.asked == tally.reached == {0, 1, 2, 3}
    assert not tally.forgot
    assert tally.is_plain
    assert tally._votes[:3] == [TIME, TIME + 1, TIME + 2]
    assert tally.grant(3, TIME, (9,)) is Verdict.WON
    assert [tally.unanimous, tally.is_plain] == [None, False]


def test_a_round_that_one_rival_wins_builds_no_votes() -> None:
    tally = Tally(7, skew=SKEW, rivals=True)
    tally.cast(6, failed("not connected", sent=False))
    tally.cast(5, failed("did not answer"))
    for master in range(4):
        assert tally.verdict is Verdict.PENDING
        tally.refuse(master, TIME + master, 900 - master, 7, b"A")
    assert tally.verdict is Verdict.LOST
    assert tally.is_refused
    assert tally.rival_won
    assert tally.reached == {4, 5}
    assert tally.unsure == {5}
    assert not tally.grants
    assert tally.is_plain
    assert tally._votes[:3] == [(TIME, 900, 7), (TIME + 1, 899, 7), (TIME + 2, 898, 7)]
    assert tally.account.votes[2] == refused(TIME + 2, 898, 7, b"A")
    assert not tally.is_refused


@pytest.mark.parametrize("late", [granted(TIME, (7,)), refused(TIME, 900, 7, b"B")])
def test_a_late_answer_does_not_change_what_plain_refusals_decided(late: Vote) -> None:
    tally = Tally(3, skew=SKEW, rivals=True)
    for master in range(2):
        tally.refuse(master, TIME, 900, 7, b"A")
    assert count_vote(tally, 2, late) is Verdict.LOST
    assert tally.votes == [*[refused(TIME, 900, 7, b"A")] * 2, late]
    assert tally.rival_won


@pytest.mark.parametrize("masters", range(1, 8))
def test_fewer_grants_than_a_quorum_are_not_unanimous(masters: int) -> None:
    tally = Tally(masters)
    for master in range(quorum(masters) - 1):
        tally.grant(master, TIME, (7,))
        assert tally.unanimous is None
    tally.grant(masters - 1, TIME, (7,))
    assert tally.unanimous == (7,)


def test_the_switch_decides_if_votes_are_built_at_once() -> None:
    with fast_path(True):
        assert Tally(3).is_plain
    with fast_path(False):
        assert not Tally(3).is_plain


@pytest.mark.parametrize("seeds", [4, pytest.param(40, marks=pytest.mark.nightly)])
def test_the_simulator_produces_the_same_digest_without_the_fast_path(seeds: int) -> None:
    def chunk(on: bool) -> sweep.Chunk:
        with fast_path(on):
            return sweep.run(0, seeds)

    with_it, without_it = chunk(on=True), chunk(on=False)
    plain = with_it.seen.pop("rounds won by plain grants")
    assert without_it.seen.pop("rounds won by plain grants", 0) == 0
    assert plain > seeds
    assert with_it._replace(digest="") == without_it._replace(digest="")

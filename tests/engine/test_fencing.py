"""The fencing token: the rule on its own, then on masters with a history."""

from __future__ import annotations

from random import Random

import pytest

from redlock_django.engine import fencing
from redlock_django.engine.fencing import highest, stored_by_majority
from redlock_django.engine.protocol.commands import Confirm
from redlock_django.engine.protocol.votes import Ballot, Vote, failed, granted
from redlock_django.engine.quorum import Tally, Verdict
from redlock_django.engine.steps import Round
from tests.engine.lua_mutation import lua
from tests.engine.masters import Masters
from tests.engine.mutants import kills
from tests.engine.mutation import always, instead, never
from tests.replies import tally_of

NOW = 1_760_000_000_000_000
HOUR = 3600.0


def _tally(*votes: Vote, skew: int | None = 500_000) -> Tally:
    return tally_of(*votes, skew=skew)


def _refused(fence: int, *, resource: int = 0, time: int = NOW) -> Vote:
    return Vote(Ballot.REFUSED, "held", time, fences=(fence,), resource=resource, rival=b"x")


def test_the_highest_of_each_resource() -> None:
    tally = _tally(granted(NOW, (5, 1)), granted(NOW, (3, 9)), failed("hung"))
    assert highest(tally, 2) == (5, 9)


@kills("refusals have no say", fencing.highest, never("vote.ballot is Ballot.REFUSED and ..."))
def test_refusals_count_plus_one() -> None:
    tally = _tally(granted(NOW, (5, 5)), granted(NOW, (5, 5)), _refused(7, resource=1))
    assert highest(tally, 2) == (5, 8)
    absent = Vote(Ballot.REFUSED, "forgot the lock", NOW, absent=True)
    assert highest(_tally(granted(NOW, (5,)), absent, granted(NOW, (4,))), 1) == (5,)


@kills("a wrong clock lifts the fence", fencing.highest,
       instead("tally.agreeing", "filter(None, tally.votes)"))  # fmt: skip
def test_a_clock_off_the_median_has_no_say() -> None:
    ahead = NOW + 2_000_000
    tally = _tally(granted(NOW, (NOW,)), granted(NOW, (NOW,)), granted(ahead, (ahead,)))
    assert highest(tally, 1) == (NOW,)
    refusal = _tally(granted(NOW, (NOW,)), granted(NOW, (NOW,)), _refused(ahead, time=ahead))
    assert highest(refusal, 1) == (NOW,)


@kills("a poisoned refusal has a say", fencing._honest, always("skew is None"))
def test_a_refusal_far_ahead_of_its_own_clock_has_no_say() -> None:
    """Otherwise one poisoned fence would make every confirmation fail for ever."""
    poisoned = NOW + 1_000_001
    votes = (granted(NOW, (NOW,)), granted(NOW, (NOW,)))
    assert highest(_tally(*votes, _refused(poisoned)), 1) == (NOW,)
    assert highest(_tally(*votes, _refused(NOW + 999_999)), 1) == (NOW + 1_000_000,)
    assert highest(_tally(*votes, _refused(poisoned), skew=None), 1) == (poisoned + 1,)


def test_fences_are_stored_by_a_majority_of_all_masters_for_each_resource() -> None:
    tally = _tally(granted(NOW, (5, 5)), granted(NOW, (5, 4)), failed("hung"))
    assert stored_by_majority(tally, (5, 4))
    assert not stored_by_majority(tally, (5, 5))
    assert not stored_by_majority(_tally(granted(NOW, (5,)), failed("hung"), failed("hung")), (5,))


@kills("fences from the clock alone", "acquire",
       lua("math.max(stored + 1, proposal)", "proposal",
           ("math.max(fence + 1, proposal)", "proposal")), -0.3)  # fmt: skip
@kills("no clamp above", "acquire",
       lua("math.min(math.max(proposed, now - SKEW), now + SKEW)",
           "math.max(proposed, now - SKEW)"), HOUR)  # fmt: skip
@pytest.mark.parametrize("wall", [-3600.0, -0.3, 0.0, 0.3, 3600.0])
def test_fences_grow_whatever_the_clocks_of_clients_say(wall: float, masters: Masters) -> None:
    last = 0
    for step in range(6):
        lease = masters.taken(wall=wall if step % 2 else 0.0)
        assert lease.fences[0] > last
        last = lease.fences[0]
        assert last <= NOW + 10_000_000
        for memory in masters.memories:
            del memory.keyspace.strings[masters.deployment.lock("r")]
        masters.now += 0.001


@kills("confirmed by anybody", "confirm", lua("if lock ~= ARGV[2] then", "if false then"))
def test_confirm_raises_a_fence_only_where_the_token_matches(masters: Masters) -> None:
    lease = masters.taken()
    masters.memories[2].keyspace.set(masters.deployment.lock("r"), b"f" * 32 + b" {}", 5000)
    masters.forget(1)
    high = NOW + 5
    confirm = Confirm(
        deployment=masters.deployment, resources=("r",), value=lease.value, fences=(high,)
    )
    asked = Round((confirm,) * 3, Tally(3))
    masters.hear(asked)
    assert masters.fences() == [high, 0, NOW]
    assert asked.tally.granted == 1
    assert asked.tally.verdict is Verdict.LOST


@kills("any fences are unanimous", Tally.unanimous, always("len(said) == 1"))
@kills("unanimous in spite of a refusal", Tally.unanimous, never("self.refused"))
@kills("unanimous with any clocks", Tally.unanimous, never("not self._clocks_agree"))
def test_unanimous_fences_are_the_highest_and_stored_by_a_majority() -> None:
    rng, found = Random(1), 0
    for _ in range(3000):
        tally = Tally(rng.randint(1, 7), skew=500_000, rivals=True)
        for index in range(tally.masters):
            time = NOW + rng.choice((0, 0, 0, 0, 0, 0, 700_000))
            said = rng.choices(
                (granted(time, (7,)), granted(time, (8,)), failed("hung"), _refused(9)),
                (20, 1, 3, 1),
            )[0]
            tally.cast(index, said)
        if tally.verdict is Verdict.WON and (fences := tally.unanimous) is not None:
            found += 1
            assert fences == highest(tally, 1)
            assert stored_by_majority(tally, fences)
    assert found > 500

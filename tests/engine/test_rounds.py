"""The protocols, driven step by step: what is sent, to which masters, and what is undone."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest

from redlock_django.engine import pauses, rounds, undo
from redlock_django.engine.attempt import SPLIT_ROUNDS, Attempt, Wait
from redlock_django.engine.errors import LockLost, QuorumUnreachable, ResourceLocked
from redlock_django.engine.protocol.commands import (
    Acquire,
    Command,
    Confirm,
    Extend,
    Heal,
    Release,
)
from redlock_django.engine.protocol.votes import Ballot, Vote, failed, granted
from redlock_django.engine.quorum import Tally, Verdict
from redlock_django.engine.steps import Pause, Protocol, Round, Step
from redlock_django.engine.validity import LeaseState, RedlockLease, valid_until
from tests.engine.lua_mutation import lua
from tests.engine.masters import START, Masters, asked, paused
from tests.engine.mutants import kills
from tests.engine.mutation import always, argument, instead, never, returns, without

Kind = type[BaseException]


class Cancelled(BaseException):
    """Stands for asyncio's CancelledError."""


def names(step: Step) -> list[str | None]:
    """Return the names of a round's commands, by master."""
    return [None if command is None else command.name for command in asked(step).commands]


def one(step: Step) -> Command:
    """Return the first command of a round."""
    return next(command for command in asked(step).commands if command is not None)


def refuse(step: Step, *holders: str | None, left: int = 5000) -> None:
    """Make the masters refuse, each for its holder; None grants."""
    for index, holder in enumerate(holders):
        vote = granted(int(START * 1e6), (int(START * 1e6),))
        if holder is not None:
            vote = Vote(Ballot.REFUSED, "held", int(START * 1e6), (5,), left, holder.encode())
        asked(step).tally.cast(index, vote)


def is_undo(step: Step, of: Command, indexes: set[int]) -> None:
    """Check that the step releases `of` on those masters and is not awaited."""
    undo = asked(step)
    assert not undo.awaited
    assert {index for index, command in enumerate(undo.commands) if command} == indexes
    for command in undo.commands:
        if command is not None:
            assert isinstance(command, Release)
            assert command.value == of.value
            assert command.resources == of.resources
            assert not command.bury


# Acquire: won.


@kills(
    "a verdict waits for all",
    Tally._judge,
    instead("self.granted >= self.need", "not self.outstanding and self.granted >= self.need"),
)
def test_a_round_is_won_before_the_slowest_master_has_answered() -> None:
    masters = Masters(5)
    lease = masters.run(masters.acquire(), silent=(3, 4))
    assert lease.reached == {0, 1, 2, 3, 4}, "silent masters may have the lock too"
    assert lease.granted == 3
    assert not lease.tally.votes, "many leases with votes cost the garbage collector time"


@kills("one proposal for all rounds", Wait.next_attempt,
       instead("next(client.proposals)", "(self.ticket or next(client.proposals))"))  # fmt: skip
def test_every_round_has_a_fresh_token_and_a_new_proposal(masters: Masters) -> None:
    protocol = masters.acquire(wait=1.0)
    step, tokens, proposals = next(protocol), set(), set()
    for _ in range(20):
        ask = one(step)
        assert isinstance(ask, Acquire)
        tokens.add(ask.token)
        proposals.add(ask.proposal)
        refuse(step, "A", "A", None)
        is_undo(protocol.send(masters.now), ask, {2})
        assert isinstance(protocol.send(masters.now), Pause)
        masters.now += 0.001
        step = protocol.send(masters.now)
    assert len(tokens) == len(proposals) == 20


# Acquire: lost.


def test_a_proven_holder_is_a_refusal_at_once_with_retry_after() -> None:
    masters = Masters(5)
    protocol = masters.acquire()
    step = next(protocol)
    for index, left in ((3, 900), (0, 700), (2, 800)):
        vote = Vote(Ballot.REFUSED, "held", 0, (5,), left, b"A")
        asked(step).tally.cast(index, vote)
    assert asked(step).tally.verdict is Verdict.LOST, "the verdict does not need the other two"
    with pytest.raises(ResourceLocked) as caught:
        protocol.send(masters.now)
    # Three must be free, and the two silent ones may be: the third lock to expire decides.
    assert caught.value.retry_after == pytest.approx(0.9)
    assert caught.value.resource == "r"
    assert caught.value.attempts == 1
    assert caught.value.tally == {
        "m0": "held", "m1": "no answer yet", "m2": "held", "m3": "held", "m4": "no answer yet",
    }  # fmt: skip
    assert one(step).token not in str(caught.value)


def test_the_texts_of_a_refusal_are_built_when_they_are_read(masters: Masters) -> None:
    """Most refusals become a response that says none of them."""
    protocol = masters.acquire()
    refuse(next(protocol), "A", "A", "A")
    with patch.object(Tally, "reasons", return_value=["no"] * 3) as reasons:
        with pytest.raises(ResourceLocked) as caught:
            masters.carry(protocol, protocol.send(masters.now))
        assert reasons.call_count == 0
        assert caught.value.tally == caught.value.tally == dict.fromkeys(("m0", "m1", "m2"), "no")
        assert reasons.call_count == 1


def test_the_error_of_a_lost_lock_keeps_its_resource_when_it_is_pickled() -> None:
    copied = pickle.loads(pickle.dumps(LockLost("the lock is lost", resource="r")))
    assert (str(copied), copied.resource, copied.tally) == ("the lock is lost", "r", {})


def test_an_error_names_the_resources_at_fault() -> None:
    """It joins their names by a comma and a space, and no valid name contains a space."""
    names = ("a,b", ",", "c,")
    assert ResourceLocked("held", resource=", ".join(names)).resources == names
    assert ResourceLocked("held").resources == ()


def test_a_refusal_leaves_the_process_without_tokens(masters: Masters) -> None:
    """As an argument of a task, or in a report about an error."""
    taken = masters.taken("r")
    with pytest.raises(ResourceLocked) as caught:
        masters.run(masters.acquire("r"))
    packed = pickle.dumps(caught.value)
    assert taken.token.encode() not in packed
    copied = pickle.loads(packed)
    for error in (caught.value, copied):
        assert str(error) == "r: held by another client"
        assert repr(error) == "ResourceLocked('r: held by another client')"
        assert error.tally == dict.fromkeys(("m0", "m1", "m2"), "held by another client for 10 s")
        assert error.retry_after == pytest.approx(10, abs=0.1)


def test_a_lock_without_expiry_has_no_retry_after(masters: Masters) -> None:
    protocol = masters.acquire()
    refuse(next(protocol), "A", "A", "A", left=-1)
    with pytest.raises(ResourceLocked) as caught:
        protocol.send(masters.now)
    assert caught.value.retry_after is None


def test_an_acquire_without_a_quorum_is_refused_and_undone(masters: Masters) -> None:
    with pytest.raises(QuorumUnreachable) as caught:
        masters.run(masters.acquire("r", "s"), deaf=(0, 1))
    assert caught.value.retry_after is None
    assert caught.value.resource == "r, s"
    assert caught.value.tally["m0"] == "did not answer"
    assert "2 of 3 masters cannot be counted, and 2 must agree" in str(caught.value)
    assert masters.tokens() == ["", "", ""]


@kills("stale connections refuse a lock", Attempt.split, never("last.only_stale"))
def test_a_round_that_failed_for_stale_connections_is_asked_again(masters: Masters) -> None:
    """Also without waiting, if the masters that failed for another reason are a minority."""
    protocol = masters.acquire()
    step = next(protocol)
    for index, vote in enumerate((failed("down", sent=False), failed("closed", stale=True))):
        asked(step).tally.cast(index, vote)
    is_undo(protocol.send(masters.now), one(step), {1, 2})
    assert isinstance(protocol.send(masters.now), Pause)
    lease = masters.carry(protocol, protocol.send(masters.now), down=(0,))
    assert masters.tokens() == ["", lease.token, lease.token]


@kills("one stale connection is enough", Tally.only_stale, instead("len(lasting)", "0"))
def test_a_majority_that_failed_for_other_reasons_is_not_asked_again(masters: Masters) -> None:
    protocol = masters.acquire()
    step = next(protocol)
    for index, vote in enumerate((failed("hung"), failed("down", sent=False))):
        asked(step).tally.cast(index, vote)
    asked(step).tally.cast(2, failed("closed", stale=True))
    protocol.send(masters.now)
    with pytest.raises(QuorumUnreachable):
        protocol.send(masters.now)


@kills("split votes without end", Wait.goes_on, always("now < self.limit"))
def test_split_votes_are_asked_again_until_their_time_is_over(masters: Masters) -> None:
    """A call ends with an attempt that began before `wait` and `overrun` were over."""
    protocol = masters.acquire(wait=1.0, overrun=0.5)
    attempts = []

    def attempt(step: Step) -> Step:
        attempts.append(masters.now - START)
        masters.now += 0.4  # as on a host that is very busy
        refuse(step, "A", "B", None)
        is_undo(protocol.send(masters.now), one(step), {2})
        masters.now += paused(protocol.send(masters.now)).seconds
        return protocol.send(masters.now)

    last = attempt(attempt(attempt(next(protocol))))
    with pytest.raises(ResourceLocked):
        attempt(last)
    assert attempts == pytest.approx([0.0, 0.41, 0.82, 1.23])


@kills("a pause past the end", Wait.pause, instead("min(delay, end - now)", "delay"))
def test_a_pause_between_split_votes_ends_in_time() -> None:
    for stalled, left in ((0.0, 0.005), (60.0, 0.0)):
        masters = Masters(3)
        protocol = masters.acquire(wait=0.0, overrun=0.005)
        refuse(next(protocol), "A", "B", None)
        protocol.send(masters.now)
        pause = paused(protocol.send(masters.now + stalled))
        assert pause.seconds == pytest.approx(left, abs=1e-6)


@kills("a split vote is a refusal", Wait.goes_on, never("attempt.split", nth=1))
def test_a_split_vote_that_is_over_is_won(masters: Masters) -> None:
    protocol = masters.acquire(wait=0.0)
    refuse(next(protocol), "A", "B", "C")
    assert isinstance(protocol.send(masters.now), Pause), "there is nothing to undo"
    lease = masters.carry(protocol, protocol.send(masters.now))
    assert masters.tokens() == [lease.token] * 3
    assert lease.attempts == 2


def test_a_client_that_does_not_wait_gives_up_after_some_split_votes() -> None:
    masters = Masters(4)
    for memory, holder in zip(masters.memories, (b"a", b"a", b"b", b"b"), strict=True):
        memory.keyspace.set(masters.deployment.lock("r"), holder * 32 + b" {}", 9000)
    with pytest.raises(ResourceLocked) as caught:
        masters.run(masters.acquire(wait=0.0, overrun=9.0))
    assert caught.value.attempts == SPLIT_ROUNDS
    assert caught.value.retry_after == pytest.approx(9.0, abs=0.2)


def test_a_wait_ends_at_its_deadline_and_not_before(masters: Masters) -> None:
    masters.taken(ttl=60)
    with pytest.raises(ResourceLocked) as caught:
        masters.run(masters.acquire(wait=2.0))
    assert masters.now == pytest.approx(START + 2.0, abs=1e-6)
    assert caught.value.took == pytest.approx(2.0, abs=1e-6)
    assert 0 < caught.value.waited <= caught.value.took


@kills("pauses are only random", pauses._until_expiry, always("left is None"))
def test_no_pause_is_longer_than_the_lock_in_the_way(masters: Masters) -> None:
    protocol = masters.acquire(wait=5.0)
    refuse(next(protocol), "A", "A", None, left=3)
    protocol.send(masters.now)
    assert paused(protocol.send(masters.now)).seconds == pytest.approx(0.004)


@kills("elapsed time is ignored", Attempt.end, never("now >= self.until"))
@kills("validity from the answer", Attempt.end, argument(valid_until, started="now"))
@kills("no undo", Attempt.undo, instead("tally.unsure if is_left else tally.reached", "_NONE"))
def test_a_round_that_is_won_too_late_is_undone_everywhere(masters: Masters) -> None:
    protocol = masters.acquire(ttl=1.0)
    step = masters.hear(next(protocol))
    masters.now += 0.989
    is_undo(protocol.send(masters.now), one(step), {0, 1, 2})
    with pytest.raises(QuorumUnreachable, match="too slowly for the lock's TTL"):
        protocol.send(masters.now)


# Acquire: the confirm round.


def _to_confirm(masters: Masters, **how: Any) -> tuple[Protocol[RedlockLease], Round, Command]:
    masters.memories[0].keyspace.set(
        masters.deployment.fence("r"), b"%d" % int((START + 0.3) * 1e6)
    )
    protocol = masters.acquire(**how)
    step = next(protocol)
    ask = one(step)
    masters.hear(step)
    confirm = asked(protocol.send(masters.now))
    assert names(confirm) == ["confirm"] * masters.deployment.masters
    assert isinstance(one(confirm), Confirm)
    assert one(confirm).value == ask.value
    return protocol, confirm, ask


@kills("confirmed where it is gone", "confirm",
       lua("if not lock then", "lock = lock or ARGV[2] if false then"))  # fmt: skip
def test_a_lock_that_has_gone_before_its_confirmation_is_not_held(masters: Masters) -> None:
    protocol, confirm, ask = _to_confirm(masters)
    masters.forget(0)
    masters.forget(1)
    masters.hear(confirm)
    assert confirm.tally.verdict is Verdict.LOST
    is_undo(protocol.send(masters.now), ask, {0, 1, 2})
    assert isinstance(protocol.send(masters.now), Pause), "no holder is proven"


@kills("elapsed time is read before the confirm round", rounds.acquire,
       instead("yield confirm", "((yield confirm), now)[1]"), 0.99, (), "too slowly")  # fmt: skip
@pytest.mark.parametrize(
    ("took", "deaf", "why"), [(0.99, (), "too slowly"), (0.0, (0, 1), "2 of 3 masters")]
)
def test_a_lock_that_is_confirmed_too_late_or_by_a_minority_is_undone(
    took: float, deaf: tuple[int, ...], why: str, masters: Masters
) -> None:
    protocol, confirm, ask = _to_confirm(masters, ttl=1.0)
    masters.hear(confirm, deaf=deaf)
    masters.now += took
    is_undo(protocol.send(masters.now), ask, {0, 1, 2})
    with pytest.raises(QuorumUnreachable, match=why):
        protocol.send(masters.now)


# Acquire: interrupted.

INTERRUPTS = [Cancelled, KeyboardInterrupt, SystemExit, RuntimeError]


@kills("cancelled without an undo", Wait.undo_interrupted, always("self.resting"), RuntimeError)
@kills("undo only what was granted", Tally.asked,
       instead("vote is None or ...", "vote is not None and vote.ballot is _GRANTED"),
       SystemExit)  # fmt: skip
@kills("undo also what was refused", Tally.reached, always("not self.refused"), SystemExit)
@kills("late grants are left to the links", undo.leaves_late_grants,
       returns("isinstance(ask, Acquire)"), SystemExit)  # fmt: skip
@pytest.mark.parametrize("kind", INTERRUPTS)
def test_an_interrupted_round_is_undone_where_it_may_be_granted(kind: Kind) -> None:
    protocol = Masters(5).acquire()
    step = next(protocol)
    tally = asked(step).tally
    tally.cast(0, granted(0, (1,)))
    tally.cast(1, Vote(Ballot.REFUSED, "held"))
    tally.cast(2, failed("down", sent=False))
    tally.cast(3, failed("hung"))
    is_undo(protocol.throw(kind()), one(step), {0, 3, 4})
    with pytest.raises(kind):
        protocol.send(START)


@pytest.mark.parametrize("kind", INTERRUPTS)
def test_a_confirm_round_that_is_interrupted_is_undone(kind: Kind, masters: Masters) -> None:
    protocol, _, ask = _to_confirm(masters)
    undo = protocol.throw(kind())
    is_undo(undo, ask, {0, 1, 2})
    masters.hear(undo)
    assert masters.tokens() == ["", "", ""]
    with pytest.raises(kind):
        protocol.send(START)


@pytest.mark.parametrize("kind", INTERRUPTS)
def test_an_undo_that_was_interrupted_is_sent_again(kind: Kind) -> None:
    protocol = Masters(3).acquire()
    step = next(protocol)
    refuse(step, "A", "A", None)
    is_undo(protocol.send(START), one(step), {2})
    is_undo(protocol.throw(kind()), one(step), {2})
    with pytest.raises(kind):
        protocol.send(START)


@pytest.mark.parametrize("kind", INTERRUPTS)
def test_interrupted_in_a_pause_there_is_nothing_left_to_undo(kind: Kind) -> None:
    protocol = Masters(3).acquire(wait=5)
    refuse(next(protocol), "A", "A", None)
    protocol.send(START)
    assert isinstance(protocol.send(START), Pause)
    with pytest.raises(kind):
        protocol.throw(kind())


def _closable() -> list[Callable[[Masters], Protocol[Any]]]:
    return [
        lambda masters: masters.acquire(),
        lambda masters: masters.extend(masters.taken()),
        lambda masters: masters.release(masters.taken()),
    ]


@kills("a closed protocol sends", rounds.acquire,
       instead("GeneratorExit", "ZeroDivisionError", nth=1), lambda m: m.acquire())  # fmt: skip
@pytest.mark.parametrize("make", _closable(), ids=["acquire", "extend", "release"])
def test_a_closed_protocol_sends_nothing(make: Callable[[Masters], Protocol[Any]]) -> None:
    protocol = make(Masters(3))
    next(protocol)
    protocol.close()  # raises RuntimeError if the generator yields
    with pytest.raises(StopIteration):
        next(protocol)


def test_a_protocol_can_be_closed_in_the_confirm_round() -> None:
    protocol, _, _ = _to_confirm(Masters(3))
    protocol.close()


# Extend.


@kills("extended from the answer", rounds.extend, argument(valid_until, started="now"))
def test_an_extension_is_valid_from_before_its_first_byte(masters: Masters) -> None:
    lease = masters.taken(ttl=10)
    masters.now += 4.0
    protocol = masters.extend(lease, 8.0)
    step = next(protocol)
    assert isinstance(one(step), Extend)
    begun = masters.now
    masters.now += 0.5
    state, renewed = masters.carry(protocol, step)
    assert state is LeaseState.RENEWED
    assert (renewed.started, renewed.ttl) == (begun, 8.0)
    assert renewed.until == pytest.approx(begun + 8.0 - 0.082, abs=1e-6)
    assert renewed.fences == lease.fences
    assert renewed.value == lease.value


@kills("an extension takes over", "ownership",
       lua("if lock and lock:sub(1, length) ~= own then", "if false then"))  # fmt: skip
def test_a_lock_taken_by_another_client_is_lost_and_left_to_that_client(masters: Masters) -> None:
    lease = masters.taken()
    for index in (0, 1):
        masters.forget(index)
    other = masters.taken()
    state, _ = masters.run(masters.extend(lease))
    assert state is LeaseState.LOST
    assert masters.tokens() == [other.token, other.token, lease.token]


@kills("extended after the deadline", rounds.extend, never("now >= lease.until", nth=1))
def test_an_extension_sends_nothing_after_the_deadline(masters: Masters) -> None:
    lease = masters.taken()
    masters.now = lease.until
    with pytest.raises(StopIteration) as done:
        next(masters.extend(lease))
    assert done.value.value == (LeaseState.LOST, lease)


@kills("extended by a late answer", rounds.extend, never("now >= lease.until", nth=2))
def test_an_extension_answered_after_the_old_deadline_is_lost(masters: Masters) -> None:
    lease = masters.taken()
    masters.now = lease.until - 0.01
    protocol = masters.extend(lease)
    step = masters.hear(next(protocol))
    assert step.tally.verdict is Verdict.WON
    masters.now = lease.until
    assert masters.end(protocol)[0] is LeaseState.LOST


@kills("renewed into the past", rounds.extend, always("now < until"))
def test_an_extension_used_up_by_its_own_round_is_unknown(masters: Masters) -> None:
    lease = masters.taken(ttl=10)
    protocol = masters.extend(lease, 0.5)
    masters.hear(next(protocol))
    masters.now += 1.0
    state, same = masters.end(protocol)
    assert state is LeaseState.UNKNOWN
    assert same.until == lease.until


@kills("a heal counts at once", Heal.vote, never("vote.ballot is Ballot.GRANTED"))
@kills("no master is healed", rounds.extend, never("master in forgot"))
def test_a_master_that_forgot_is_healed_and_counts_an_extension_later(masters: Masters) -> None:
    lease = masters.run(masters.acquire(), down=(2,))
    assert lease.reached == {0, 1}
    state, lease = masters.run(masters.extend(lease))
    assert state is LeaseState.RENEWED
    assert masters.tokens()[2] == ""
    assert lease.reached == {0, 1}

    protocol = masters.extend(lease)
    step = asked(next(protocol))
    assert names(step) == ["extend", "extend", "heal"]
    heal = step.commands[2]
    assert isinstance(heal, Heal)
    assert heal.fences == lease.fences
    state, lease = masters.carry(protocol, step)
    assert state is LeaseState.RENEWED
    assert masters.tokens() == [lease.token] * 3
    assert masters.fences()[2] == lease.fences[0]
    assert step.tally.granted == 2
    assert lease.reached == {0, 1, 2}

    protocol = masters.extend(lease)
    step = asked(next(protocol))
    assert names(step) == ["extend"] * 3
    masters.carry(protocol, step)
    assert step.tally.granted == 3


def test_a_late_reply_of_a_master_that_forgot_counts(masters: Masters) -> None:
    """Votes that come in after the verdict still show which masters to heal."""
    lease = masters.taken()
    masters.forget(2)
    protocol = masters.extend(lease)
    step = masters.hear(next(protocol), silent=(2,))
    lease = masters.end(protocol)[1]
    masters.hear(step)
    assert names(next(masters.extend(lease))) == ["extend", "extend", "heal"]


# Release.


def test_a_release_deletes_the_lock_on_every_master(masters: Masters) -> None:
    lease = masters.taken("r", "s")
    protocol = masters.release(lease)
    step = asked(next(protocol))
    assert step.awaited is True, "by default a release is awaited"
    assert masters.carry(protocol, step) is True
    assert masters.tokens("r") == masters.tokens("s") == ["", "", ""]


@kills("too few answers are a success", rounds.release,
       instead("... if tally.denied else None", "not tally.denied"),
       3, (), (0, 1), None)  # fmt: skip
@pytest.mark.parametrize(
    ("many", "forgot", "deaf", "released"),
    [
        (3, (0, 2), (), False),
        (4, (0, 1), (), False),  # the other two are no quorum either
        (3, (), (0, 1), None),
        (3, (0,), (1,), None),
    ],
)
def test_a_release_is_false_where_the_lock_was_lost_and_none_where_too_few_answer(
    many: int, forgot: tuple[int, ...], deaf: tuple[int, ...], released: bool | None
) -> None:
    masters = Masters(many)
    lease = masters.taken()
    for index in forgot:
        masters.forget(index)
    assert masters.run(masters.release(lease), deaf=deaf) is released


@kills("a release skips masters being healed", rounds.release,
       instead("lease.reached | lease.tally.forgot", "lease.reached"))  # fmt: skip
def test_a_release_goes_to_masters_that_may_have_the_lock_or_are_healed(masters: Masters) -> None:
    lease = masters.run(masters.acquire(), down=(2,))
    assert names(next(masters.release(lease))) == ["release", "release", None]
    _, lease = masters.run(masters.extend(lease))
    assert names(next(masters.release(lease))) == ["release"] * 3


@kills("acquire ignores tombstones", "acquire", lua("if seen[3] then", "if false then"))
@kills("no tombstone", Release.arguments, never("self.bury"))
def test_a_release_can_bury_and_need_not_be_awaited(masters: Masters) -> None:
    lease = masters.taken()
    protocol = masters.release(lease, awaited=False, bury=True)
    step = asked(next(protocol))
    assert not step.awaited
    masters.carry(protocol, step)
    assert all(
        memory.keyspace.get(masters.deployment.tomb(lease.token)) for memory in masters.memories
    )
    late = Acquire(
        deployment=masters.deployment, resources=("r",), value=lease.value, ttl=1, proposal=1
    )
    assert masters.vote(late).reason == "this token was released already"


@kills("a release cut off by Ctrl-C", rounds.release, without("yield Round(..., awaited=False)"),
       RuntimeError)  # fmt: skip
@pytest.mark.parametrize("kind", INTERRUPTS)
def test_a_release_that_was_interrupted_is_sent_again(kind: Kind, masters: Masters) -> None:
    lease = masters.taken()
    protocol = masters.release(lease, bury=True)
    first = asked(next(protocol))
    again = asked(protocol.throw(kind()))
    assert again.commands == first.commands
    assert not again.awaited
    with pytest.raises(kind):
        protocol.send(masters.now)


# Several resources: all or nothing.


def test_resources_in_opposite_orders_do_not_deadlock(masters: Masters) -> None:
    first, second = masters.acquire("a", "b", wait=1), masters.acquire("b", "a", wait=1)
    early, late = asked(next(first)), asked(next(second))
    masters.hear(early, silent=(1, 2))
    masters.hear(late)
    masters.hear(early)
    # The master that refused it has the same fence, so it must confirm a higher one.
    winner = masters.carry(second, second.send(masters.now))
    masters.hear(first.send(masters.now))
    masters.run(masters.release(winner))
    loser = masters.carry(first, first.send(masters.now))
    assert masters.tokens("a") == masters.tokens("b") == [loser.token] * 3

"""The queue, driven step by step: which waiter is called and served first, and what is left."""

from __future__ import annotations

from dataclasses import replace

import pytest

from redlock_django.engine import pauses, undo
from redlock_django.engine.attempt import Attempt, Wait
from redlock_django.engine.errors import ResourceLocked
from redlock_django.engine.pauses import CALM, CALM_LONGEST, CROWD, FALLBACK, LONGEST, retry_delays
from redlock_django.engine.protocol.commands import Acquire, Release
from redlock_django.engine.protocol.votes import Ballot, Vote, failed, granted
from redlock_django.engine.quorum import Tally, Verdict
from redlock_django.engine.steps import Protocol, Round, Step
from redlock_django.engine.undo import undo_of_late_grant
from redlock_django.engine.validity import RedlockLease
from tests.engine.lua_mutation import lua
from tests.engine.masters import START, Masters, Waiting, asked, free, paused, queued
from tests.engine.mutants import kills
from tests.engine.mutation import always, argument, instead, never
from tests.replies import refused, tally_of

LATE, LINGER, NEWEST, TURN = 4e15, 3000, 8, 100_000

OF_A = [f"P:wake:a {number}" for number in range(1, 101)]
A, B, C = OF_A[0], "P:wake:b 1", "P:wake:c 1"


def on_all(masters: Masters, waiter: str) -> list[tuple[int, str]]:
    return [(index, waiter) for index in range(masters.deployment.masters)]


@kills("a plain release calls no waiter", "release", lua("and redis.call('PTTL', KEYS[3]) == -2"))
@kills("last come, first served", "queue",
       lua("redis.pcall('ZRANGE', key, turns, turns, 'WITHSCORES')",
           "redis.pcall('ZRANGE', key, -1 - turns, -1 - turns, 'WITHSCORES')"))  # fmt: skip
@kills("no waiter is called", "release", lua("call_first(queue, now, '')\n    else", "else"))
def test_waiters_are_served_in_the_order_in_which_they_came(masters: Masters) -> None:
    lease, (first, second, third) = queued(masters, A, B, C)
    assert masters.queues() == [[A, B, C]] * 3, "one order on all masters"
    for waiting, name in ((first, A), (second, B), (third, C)):
        free(masters, lease)
        assert masters.called == on_all(masters, name), "only the first is called"
        lease = waiting.won()
        masters.called.clear()
    assert masters.queues() == [[], [], []]
    free(masters, lease)
    assert masters.called == []


@kills("a plain acquire overtakes", "acquire", lua("and redis.call('PTTL', KEYS[6]) == -2"))
@kills("a client that does not wait overtakes", "acquire",
       lua("(slots > 0 or not lock) and redis.call('PTTL', queue) ~= -2",
           "waiter ~= '' and not lock and redis.call('PTTL', queue) ~= -2"))  # fmt: skip
@kills("every turn is ignored", "acquire",
       lua("(slots > 0 or not lock) and redis.call('PTTL', queue) ~= -2", "false"))  # fmt: skip
def test_a_client_that_comes_while_others_wait_does_not_overtake(masters: Masters) -> None:
    lease, (waiting,) = queued(masters, A)
    free(masters, lease)
    with pytest.raises(ResourceLocked) as caught:
        masters.run(masters.acquire())
    assert set(caught.value.tally.values()) == {"reserved for a waiter for 0.1 s"}
    assert caught.value.retry_after == pytest.approx(0.1)
    late = Waiting(masters, B)
    assert waiting.won().waiter == A
    late.refused_again()
    assert masters.queues() == [[B]] * 3


def test_a_lock_that_is_reserved_for_a_waiter_is_not_called_held(masters: Masters) -> None:
    lease, _ = queued(masters, A)
    with pytest.raises(ResourceLocked, match=r"^r: held by another client$"):
        masters.taken()
    free(masters, lease)
    with pytest.raises(ResourceLocked, match=r"^r: reserved for a waiter$"):
        masters.taken()


@kills("dead waiters are called", "queue", lua("type(heard) ~= 'number' or heard == 0", "false"))
def test_dead_waiters_are_skipped_at_once(masters: Masters) -> None:
    lease, (*_, third) = queued(masters, A, B, C)
    masters.gone = {"P:wake:a", "P:wake:b"}
    free(masters, lease)
    assert masters.called == on_all(masters, C)
    third.won()
    assert masters.queues() == [[], [], []]


def test_an_invalid_waiter_name_is_skipped(master: Masters) -> None:
    lease, (_, waiting) = queued(master, "nonsense", A)
    free(master, lease)
    waiting.won()


def test_all_waiters_of_a_process_that_is_gone_are_removed_together(master: Masters) -> None:
    lease, (_, waiting) = queued(master, A, B)
    queue = master.memories[0].keyspace.sorted_set(master.deployment.queue("r"))
    queue.update({b"P:wake:a %d" % number: 1.0 for number in range(2, 1002)})
    master.gone = {"P:wake:a"}
    free(master, lease)
    assert master.queues() == [[B]]
    waiting.won()


def test_more_dead_processes_than_one_script_removes_block_no_waiter(master: Masters) -> None:
    lease, _ = queued(master, A)
    queue = master.memories[0].keyspace.sorted_set(master.deployment.queue("r"))
    channels = [f"P:wake:{number}" for number in range(1001)]
    queue.update({f"{channel} 1".encode(): 1.0 for channel in channels})
    master.gone = set(channels)
    free(master, lease)
    assert master.called == []
    master.run(master.acquire(waiter=A, wait=1.0))


@kills("a stopped process has a turn for each of its waiters", "queue",
       lua("if channel ~= channel_of(waiter) then", "if false then"))  # fmt: skip
def test_a_stopped_process_costs_one_turn_however_many_waiters_it_has(masters: Masters) -> None:
    lease, (*_, other) = queued(masters, *OF_A, B)
    free(masters, lease)
    masters.now += TURN / 1e6 + 0.001
    other.won()
    assert masters.queues() == [[A]] * 3, "the others come back when they ask"


@kills("a process that asks is removed", "queue",
       lua("if channel ~= channel_of(waiter) then", "if true then"))  # fmt: skip
def test_a_process_that_asks_has_not_stopped(master: Masters) -> None:
    lease, (*_, asks) = queued(master, *OF_A[:4])
    free(master, lease)
    master.now += TURN / 1e6 + 0.001
    master.called.clear()
    asks.refused_again()
    assert master.called == [(0, OF_A[1])]
    assert master.queues() == [[*OF_A[1:4], A]]


@kills("a late waiter waits for the turns of others", "queue",
       lua("if ticket and is_late(key, waiter) then", "if false then"))  # fmt: skip
def test_a_waiter_that_comes_late_takes_the_lock_in_the_turn_of_another(masters: Masters) -> None:
    lease, (late, third, second) = queued(masters, A, B, C)
    free(masters, lease)
    masters.now += TURN / 1e6 + 0.001
    second.refused_again()
    assert masters.called[-1] == (2, B), "it is the second waiter's turn"
    lease = late.won()
    third.refused_again()
    assert masters.queues() == [[B, C]] * 3
    free(masters, lease)
    assert masters.called[0] == (0, B)


@kills("a late waiter has turn after turn", "queue",
       lua("elseif score >= LATE then", "elseif false then"))  # fmt: skip
def test_a_late_waiter_has_no_second_turn_before_it_has_asked_again(masters: Masters) -> None:
    lease, (late,) = queued(masters, A)
    free(masters, lease)
    for _ in range(3):
        masters.now += TURN / 1e6 + 0.001
        masters.called.clear()
        lease = masters.taken()
        assert masters.called == on_all(masters, A), "it is called, but nothing is reserved"
        free(masters, lease)
    late.won()
    assert masters.queues() == [[], [], []]


def test_a_late_waiter_that_is_refused_has_turns_again(masters: Masters) -> None:
    lease, (late,) = queued(masters, A)
    free(masters, lease)
    masters.now += TURN / 1e6 + 0.001
    lease = masters.taken()
    late.refused_again()
    free(masters, lease)
    with pytest.raises(ResourceLocked, match="reserved for a waiter"):
        masters.taken()
    late.won()


WATCHED = [
    ([*OF_A[:3], B, OF_A[3]], [B]),  # the newest of another process
    (OF_A[: NEWEST + 1], [OF_A[NEWEST]]),  # one process watches its own turns
    ([A], []),
]


@kills("no turn is watched", "queue", lua("if not ticket then", "if false then"), *WATCHED[0])
@kills("a stopped process watches itself", "queue",
       lua("if channel and channel ~= own then", "if channel then"), *WATCHED[0])  # fmt: skip
@pytest.mark.parametrize(("names", "watching"), WATCHED)
def test_a_waiter_of_another_process_is_asked_to_watch_a_turn(
    names: list[str], watching: list[str], masters: Masters
) -> None:
    lease, _ = queued(masters, *names)
    free(masters, lease)
    assert masters.called == on_all(masters, A)
    assert masters.watching == [one for name in watching for one in on_all(masters, name)]


@kills("a turn that was begun is watched late", pauses._until_expiry,
       never("tally.majority(sum(...))"))  # fmt: skip
def test_turns_that_pass_unused_cost_little_more_than_a_turn_each(masters: Masters) -> None:
    """The waiter that begins the next turn asks when it is over, however long the queue is."""
    names = (f"P:wake:{process} {number}" for process in "abcde" for number in range(1, 41))
    lease, (*_, last) = queued(masters, *names, "P:wake:z 1")
    free(masters, lease)
    began = masters.now
    masters.now += TURN / 1e6 + 0.01  # it was asked to watch the first turn
    last.ask()
    masters.carry(last.protocol, last.step)
    assert masters.now - began == pytest.approx(5 * TURN / 1e6, abs=0.05)


@kills("a turn never ends", "queue", lua("score < 0 and now < -score", "score < 0"))
def test_a_turn_that_passes_unused_is_over_and_the_next_one_has_it(masters: Masters) -> None:
    lease, (slow, next_one) = queued(masters, A, B)
    free(masters, lease)
    masters.now += TURN / 1e6 - 0.002
    next_one.refused_again()
    masters.now += 0.003
    lease = next_one.won()
    slow.refused_again()
    Waiting(masters, C)
    assert masters.queues() == [[A, C]] * 3, "it keeps its ticket"
    free(masters, lease)
    assert masters.called == on_all(masters, A)


def test_a_wrong_clock_gains_no_place_beyond_the_skew(masters: Masters) -> None:
    masters.taken()
    Waiting(masters, A)
    masters.now += 1.1
    Waiting(masters, B, wall=-3600.0)
    assert masters.queues() == [[A, B]] * 3


@kills("the ticket is by the client's own clock", pauses.clock_lag,
       instead("least if ... else 0", "0"))  # fmt: skip
@kills("a clock near the skew is near", pauses.clock_lag,
       instead("tally.skew / 2", "tally.skew * 2"))  # fmt: skip
def test_a_place_that_a_wrong_clock_gains_within_the_skew_is_lost_in_the_next_round() -> None:
    """MAX_CLOCK_SKEW is half a second: the clock is off by more, or by a little less."""
    for wall in (-3600.0, -0.4):
        masters = Masters(3)
        masters.taken()
        Waiting(masters, A)
        masters.now += 0.2
        wrong = Waiting(masters, B, wall=wall)
        assert masters.queues() == [[B, A]] * 3
        wrong.refused_again()
        assert masters.queues() == [[A, B]] * 3


@kills("a stopped waiter has a wrong clock", pauses.clock_lag, instead("most - round(...)", "most"))
def test_a_waiter_that_was_stopped_in_a_round_does_not_have_a_wrong_clock(masters: Masters) -> None:
    masters.taken()
    protocol = masters.acquire(waiter=A, wait=60.0)
    step = next(protocol)
    masters.now += 0.3
    Waiting(masters, B)
    masters.now += 2.7
    for _ in range(2):
        masters.hear(step)
        paused(masters.after_undo(protocol))
        step = protocol.send(masters.now)
    assert masters.queues() == [[A, B]] * 3


@kills("a minority decides that a clock is wrong", pauses.clock_lag,
       never("not tally.majority(...)"))  # fmt: skip
def test_a_minority_does_not_decide_that_a_clock_is_wrong() -> None:
    masters = Masters(5)
    masters.off[:2] = [3600.0] * 2
    masters.taken()
    waiting = Waiting(masters, A)
    masters.now += 0.1
    Waiting(masters, B)
    waiting.refused_again(deaf=(2, 3, 4))
    waiting.refused_again()
    assert masters.queues()[2:] == [[A, B]] * 3


@kills("equal tickets both go first", "queue",
       lua("ticket == score and waiter < name", "ticket == score"))  # fmt: skip
def test_of_two_equal_tickets_the_first_by_name_is_served() -> None:
    for waits, asks in ((A, B), (B, A)):
        masters = Masters(3)
        masters.taken(ttl=0.3)
        protocol = masters.acquire(waiter=asks, wait=60.0)
        step = next(protocol)
        Waiting(masters, waits)
        masters.now += 0.3
        verdict = masters.hear(step).tally.verdict
        assert (verdict is Verdict.WON) is (asks == A), "on every master the same"
        assert masters.called == ([] if asks == A else on_all(masters, A))
        protocol.close()


@kills("the ticket is the last proposal", "acquire",
       lua("ticket = proposal - (proposed - tonumber(ticket))", "ticket = proposal"))  # fmt: skip
def test_a_master_that_forgot_its_queue_gets_the_same_order_again(masters: Masters) -> None:
    masters.taken()
    first, second = Waiting(masters, A), Waiting(masters, B)
    masters.memories[0].keyspace.sets.clear()
    for waiting in (second, first):
        masters.now += 0.7
        waiting.refused_again()
    assert masters.queues() == [[A, B]] * 3


def _refused_by_three_of_five() -> tuple[Masters, Round, Protocol[RedlockLease]]:
    """Return the round of a waiter that masters 3 and 4 have not answered, and its protocol."""
    masters = Masters(5)
    masters.taken()
    protocol = masters.acquire(waiter=A, wait=60.0)
    step = masters.hear(next(protocol), silent=(3, 4))
    paused(protocol.send(masters.now))  # nothing is released at once
    return masters, step, protocol


def _sent_to(step: Step) -> list[int]:
    commands = asked(step).commands
    return [master for master, command in enumerate(commands) if command is not None]


@kills("a late grant is in the way", Wait.undo_silent, always("not silent"))
def test_a_waiter_that_asks_again_releases_what_silent_masters_may_grant() -> None:
    """Otherwise its own late grant would be in its way."""
    masters, _, protocol = _refused_by_three_of_five()
    undo, again = protocol.send(masters.now), protocol.send(masters.now)
    assert _sent_to(undo) == [3, 4]
    assert _sent_to(again) == [0, 1, 2, 3, 4]
    assert not asked(undo).awaited


@kills("an undo where all have refused", Wait.undo_silent,
       instead("last.left & last.tally.reached", "last.left"))  # fmt: skip
def test_a_waiter_releases_nothing_where_all_have_answered() -> None:
    masters, step, protocol = _refused_by_three_of_five()
    masters.hear(step, silent=(0, 1, 2))
    assert _sent_to(protocol.send(masters.now)) == [0, 1, 2, 3, 4]


@kills("the release of a late grant leaves the queue", undo.undo_of_late_grant,
       argument(undo.undo_of, leave="True"))  # fmt: skip
def test_the_release_of_a_late_grant_leaves_the_waiter_in_the_queue() -> None:
    _, step, *_ = _refused_by_three_of_five()
    ask = step.commands[3]
    assert isinstance(ask, Acquire)
    release = undo_of_late_grant(ask)
    assert (release.value, release.waiter, release.calls) == (ask.value, "", False)
    plain = undo_of_late_grant(replace(ask, waiter=""))
    assert plain.calls, "the grant to a client that does not wait may have used a turn"


@kills("an undo calls", Release.keys, always("self.calls"))
def test_an_undo_on_the_way_to_the_next_round_calls_no_waiter(masters: Masters) -> None:
    masters.taken()
    first = Waiting(masters, A)
    Waiting(masters, B)
    masters.memories[2].keyspace.strings.pop(masters.deployment.lock("r"))
    first.refused_again()
    assert masters.tokens()[2] == ""
    assert masters.called == []
    assert masters.queues() == [[A, B], [A, B], [B]]


@kills("an undo calls nobody", Attempt.undo, instead("leave or self.unreachable", "leave"))
def test_an_undo_without_a_quorum_calls_the_next_waiter(masters: Masters) -> None:
    lease, (first, _) = queued(masters, A, B)
    free(masters, lease)
    masters.called.clear()
    first.refused_again(mute=(0, 1))
    assert masters.called == on_all(masters, B), "the grants came too late"


@kills("a waiter that has a vote asks seldom", Attempt.queued, always("not last.granted"))
@kills("all that share the votes ask at once", Wait.pause, never("queueing and attempt.queued"))
@kills("a waiter in no queue asks seldom", Wait.pause, always("attempt.queued"))
def test_waiters_that_share_the_votes_do_not_ask_again_at_once(masters: Masters) -> None:
    for index, memory in enumerate(masters.memories):
        memory.keyspace.set(masters.deployment.lock("r"), b"%032d {}" % index, 10_000)
    queued = Waiting(masters, A)
    assert paused(queued.step).seconds > CALM
    assert paused(queued.step).unheard < 2 * FALLBACK
    masters.memories[0].keyspace.strings.pop(masters.deployment.lock("r"))
    masters.memories[0].keyspace.sets.clear()
    assert paused(Waiting(masters, C).step).seconds == 0.01, "it has a vote"
    masters.memories[0].keyspace.set(masters.deployment.lock("r"), b"%032d {}" % 7, 10_000)
    for memory in masters.memories[:2]:
        memory.keyspace.sets.clear()
        memory.keyspace.set(masters.deployment.queue("r"), b"of another type")
    assert paused(Waiting(masters, B).step).seconds == 0.01, "it is in few queues"


def test_the_rounds_of_a_waiter_are_patient_until_its_wait_is_over() -> None:
    for wait in (0.0, 2.0):
        step = asked(next(Masters(3).acquire(wait=wait, waiter=A)))
        assert step.waits_on(START + wait - 0.001)
        assert not step.waits_on(START + wait)
    answered = Round((), Tally(3), patient=1.0)
    answered.tally.cast(0, granted())
    assert answered.waits_on(0.0)
    answered.tally.cast(1, Vote(Ballot.REFUSED))
    assert not answered.waits_on(0.0)


@kills("a queue never expires", "queue", lua("redis.call('PEXPIRE', key, lasts + LINGER)"))
def test_a_queue_lives_a_little_longer_than_the_lock(master: Masters) -> None:
    master.taken(ttl=2.0)
    Waiting(master, A)
    master.now += 2.0 + LINGER / 1000 - 0.01
    assert master.queues() == [[A]]
    master.now += 0.02
    assert master.queues() == [[]]


def test_a_lock_without_expiry_has_a_queue_too() -> None:
    masters = Masters(1, max_ttl=5.0)
    masters.memories[0].keyspace.set(masters.deployment.lock("r"), b"foreign")
    Waiting(masters, A)
    masters.now += 5.0
    assert masters.queues() == [[A]]


def test_a_queue_key_of_another_type_costs_no_lock(master: Masters) -> None:
    master.memories[0].keyspace.set(master.deployment.queue("r"), b"something else")
    lease, _ = queued(master, A)
    free(master, lease)
    master.taken()


# Several resources.


@kills("a turn that cannot be used is kept", "acquire", lua("another ~= index and", "false and"))
def test_a_waiter_that_cannot_take_everything_passes_its_turn_on(masters: Masters) -> None:
    lease = masters.taken("s")
    both = Waiting(masters, A, "r", "s")
    one = Waiting(masters, B, "s")
    masters.taken("r")
    free(masters, lease)
    assert masters.called == on_all(masters, A)
    masters.called.clear()
    both.refused_again()
    assert masters.called == on_all(masters, B)
    one.won()


def test_a_turn_that_came_too_late_is_not_passed_on(master: Masters) -> None:
    lease = master.taken("s")
    both = Waiting(master, A, "r", "s")
    Waiting(master, B, "s")
    master.taken("r")
    free(master, lease)
    # A client that does not use the queue.
    master.memories[0].keyspace.set(master.deployment.lock("s"), b"foreign", 1000)
    master.called.clear()
    both.refused_again()
    assert master.called == []


def test_a_holder_leaves_the_queues_of_all_its_resources(masters: Masters) -> None:
    s = masters.taken("s")
    both = Waiting(masters, A, "r", "s")
    r = masters.taken("r")
    free(masters, s)
    both.refused_again()
    free(masters, r)
    both.won()
    assert masters.queues("r") == masters.queues("s") == [[], [], []]


# Leaving.


@kills("a client that gives up stays queued", undo.undo_of,
       instead("ask.waiter if leave else ...", "''"))  # fmt: skip
def test_a_waiter_that_gives_up_leaves_every_queue_to_the_next_one(masters: Masters) -> None:
    lease = masters.taken()
    protocol = masters.acquire(wait=0.05, waiter=A)
    other = Waiting(masters, B)
    with pytest.raises(ResourceLocked):
        masters.run(protocol)
    assert masters.queues() == [[B]] * 3
    free(masters, lease)
    other.won()


def test_a_release_removes_the_waiter_from_the_queues_that_refused_it(masters: Masters) -> None:
    lease, (waiting,) = queued(masters, A)
    free(masters, lease, deaf=(2,))
    lease = waiting.won()
    assert masters.queues() == [[], [], [A]]
    assert lease.waiter == A
    assert lease.reached == {0, 1, 2}
    free(masters, lease)
    assert masters.queues() == [[], [], []]


# How long a pause is.


def _pauses(
    delay: float, left: int, *ahead: int, reserved: bool = False, queueing: bool = True
) -> tuple[float, float]:
    """Return the pauses after refusals of a lock that is held for `left` ms more.

    Each master has `ahead` waiters before us in its queue; one number is that of three masters.
    """
    votes = [
        refused(0, left, 5, b"A", ahead=before, reserved=reserved)
        for before in (ahead if len(ahead) > 1 else ahead * 3)
    ]
    return retry_delays(tally_of(*votes, rivals=True), delay, queueing=queueing)


@kills("waiters poll", pauses.retry_delays, never("tally.majority(len(queued))"))
def test_a_waiter_that_will_be_called_asks_again_in_seconds() -> None:
    def long(ahead: int, delay: float) -> float:
        return _pauses(delay, 60_000, ahead)[0]

    assert long(0, 0.0) == CALM
    assert CALM < long(0, 0.05) < long(0, 0.1) == 2 * CALM
    assert long(CROWD, 0.1) == (2 * CALM + CALM_LONGEST) / 2
    assert 9.9 < long(100_000, 0.1) < 10.0, "a call that was lost costs no longer"


def test_a_waiter_that_may_miss_its_call_asks_again_after_a_while() -> None:
    def long(ahead: int, delay: float) -> float:
        return _pauses(delay, 60_000, ahead)[1]

    assert long(0, 0.0) == FALLBACK
    assert FALLBACK < long(0, 0.1) < 0.151
    assert 10 * FALLBACK < long(400, 0.0) < long(100_000, 0.0) < LONGEST


@kills("a crowd asks at the same moment", pauses._prolonged,
       instead("(longest - pause) * ahead / (ahead + CROWD)", "min(ahead / 50, longest - pause)"),
       False)  # fmt: skip
@pytest.mark.parametrize("unheard", [False, True])
def test_waiters_that_came_at_the_same_moment_ask_one_after_the_other(unheard: bool) -> None:
    pauses = [_pauses(0.001, 60_000, ahead)[unheard] for ahead in range(2000)]
    assert pauses == sorted(set(pauses))
    assert pauses[1999] - pauses[1000] > 0.2


@kills("a minority will call", pauses.retry_delays, always("tally.majority(len(queued))"))
def test_a_waiter_that_only_a_minority_has_in_its_queue_will_not_be_called() -> None:
    assert _pauses(0.1, 60_000, 0, -1, -1) == pytest.approx((0.15, 0.15))
    assert _pauses(0.1, 60_000, 0, 0, -1) == pytest.approx((2 * CALM, 0.15))


def test_the_first_asks_as_soon_as_the_lock_expires_and_the_others_after_it() -> None:
    assert _pauses(0.1, 20, 0) == pytest.approx((0.021, 0.021))
    assert 0.022 < _pauses(0.1, 20, 1)[0] < 0.03
    order = [_pauses(0.1, 20, ahead)[0] for ahead in range(2000)]
    assert order == sorted(set(order))
    assert order[-1] < 0.52
    assert _pauses(0.1, 20, 3, 0, -1)[0] < 0.022


@kills("a crowd watches each turn", pauses._until_expiry, never("tally.majority(len(turns))"))
def test_a_turn_that_another_waiter_watches_is_not_watched_by_a_crowd() -> None:
    def after(left: int, ahead: int) -> float:
        return _pauses(0.01, left, ahead, reserved=True)[0]

    assert after(50, 1) < after(50, 4) < 0.082
    assert after(50, 20) == pytest.approx(0.301)
    assert after(50, 1000) > 5.0
    assert after(TURN // 1000, 1000) == pytest.approx(0.101), "it has begun this turn itself"
    held = _pauses(0.01, 50, 20)[0]
    assert held < 0.14, "no waiter is asked to watch a lock that expires"


@kills("a crowd that is not answered asks at once", pauses.retry_delays, never("tally.unreachable"))
def test_without_a_queue_the_pause_is_random() -> None:
    assert _pauses(0.03, 60_000, -1, queueing=False) == (0.03, 0.03)
    down = tally_of(failed("down"), failed("down"), None)
    assert retry_delays(down, 0.03, queueing=False) == pytest.approx((0.6, 0.6)), (
        "costs processor time"
    )
    free_already = tally_of(*[granted()] * 3)
    assert retry_delays(free_already, 0.03, queueing=True) == (0.001, 0.001)

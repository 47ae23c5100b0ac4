"""A lease that is handed on: rounds of the giver and of takers, over masters of which some fail."""

from __future__ import annotations

from dataclasses import replace

import pytest

from redlock_django.engine import refusal, rounds, validity
from redlock_django.engine.attempt import SPLIT_ROUNDS, Attempt, Client, Wait
from redlock_django.engine.errors import (
    LockLost,
    QuorumUnreachable,
    ResourceLocked,
    TicketUsed,
)
from redlock_django.engine.protocol.commands import TOKEN, Extend, Restore, Take
from redlock_django.engine.protocol.slots import slot_resource
from redlock_django.engine.steps import Pause, Protocol
from redlock_django.engine.validity import LeaseState, RedlockLease
from tests.engine.lua_mutation import lua
from tests.engine.masters import Masters, asked, fresh, paused
from tests.engine.mutants import kills
from tests.engine.mutation import always, argument, instead, never, together, without

HOLDER = '{"handed_on":1}'
TTL = 30.0


class Interrupted(BaseException):
    """Stands for a cancellation."""


def client(masters: Masters) -> Client:
    return Client(masters.deployment, fresh(), iter(lambda: 1, None), lambda tries: 0.01, 0.5)


def giving(masters: Masters, lease: RedlockLease, ttl: float = TTL) -> Protocol[RedlockLease]:
    """Return the rounds that hand a lease of this process on."""
    return _asking(masters, replace(lease, home=masters), ttl, HOLDER)


def taking(
    masters: Masters, handed: RedlockLease, ttl: float = 10.0, by: Client | None = None
) -> Protocol[RedlockLease]:
    """Return the rounds of a client that has the ticket of a lease."""
    ticket = replace(handed, holder="", started=0.0, home=None)
    return _asking(masters, ticket, ttl, "{}", by)


def _asking(
    masters: Masters, expected: RedlockLease, ttl: float, holder: str, by: Client | None = None
) -> Protocol[RedlockLease]:
    return rounds.acquire(
        by or client(masters), expected.names, ttl, holder,
        now=masters.now, wait=0, home=masters, limit=expected.limit, expected=expected,
    )  # fmt: skip


def given(masters: Masters, *resources: str, **how: tuple[int, ...]) -> RedlockLease:
    """Return a lease that was handed on."""
    return masters.run(giving(masters, masters.taken(*resources)), **how)


def release_rest(masters: Masters, lease: RedlockLease, *, bury: bool = False) -> None:
    """Release what is left of a lease that was handed on, as `Handing.ticket` does."""
    masters.run(masters.release(lease, awaited=False, bury=bury))


# The giver.


@kills("a taker has the TTL of its ticket", "take",
       lua("redis.call('SET', KEYS[4 + index], ARGV[2], 'PX', ARGV[4])",
           "redis.call('SET', KEYS[4 + index], ARGV[2], 'PX', rest)"))  # fmt: skip
def test_what_was_handed_on_has_a_new_token_and_is_held_for_its_ttl(masters: Masters) -> None:
    lease = masters.taken("r", "s")
    handed = masters.run(giving(masters, lease))
    assert masters.tokens("r") == masters.tokens("s") == [handed.token] * 3
    assert handed.token != lease.token
    assert handed.fences == lease.fences
    masters.now = handed.until - 0.01
    with pytest.raises(ResourceLocked):
        masters.run(masters.acquire("r"))
    masters.now = handed.until + 0.7
    masters.taken("r", "s")


@pytest.mark.parametrize("bury", [True, False])
def test_an_acquire_that_arrives_after_a_hand_on_sets_nothing(bury: bool, masters: Masters) -> None:
    """On the links of the acquire it cannot: there, the release follows it."""
    protocol = masters.acquire()
    acquire = masters.hear(next(protocol), silent=(2,))
    lease = masters.end(protocol)
    handed = masters.run(giving(masters, lease))
    release_rest(masters, lease, bury=bury)
    masters.hear_at(acquire, 2)
    late = "" if bury else lease.token
    assert masters.tokens() == [handed.token, handed.token, late]


@kills("a taker that failed shortens the ticket", "restore",
       lua("tonumber(ends) - math.floor(now / 1000)", "redis.call('PTTL', key)"))  # fmt: skip
@kills("an undo prolongs the lock", "restore",
       lua("tonumber(ends) - math.floor(now / 1000)", "100000"))  # fmt: skip
def test_an_undo_restores_what_the_lock_had_before(masters: Masters) -> None:
    handed = given(masters, "r", "s")
    before = [_locks(masters, index) for index in range(3)]
    masters.now += 1.0
    with pytest.raises(QuorumUnreachable):
        masters.run(taking(masters, handed, 2.0), mute=(0, 1, 2))
    assert [_locks(masters, index) for index in range(3)] == before


def _locks(masters: Masters, index: int) -> list[tuple[bytes, float]]:
    """Return the value and the end of each lock on a master."""
    strings, deployment = masters.memories[index].keyspace.strings, masters.deployment
    return [strings[deployment.lock(name)] for name in "rs"]


@kills("an undo restores the token of another taker", "restore",
       lua("if by ~= value:sub(1, 32) then", "if false then"))  # fmt: skip
def test_an_undo_leaves_what_another_client_has_taken(master: Masters) -> None:
    handed = given(master)
    taken = master.run(taking(master, handed))
    undo = Restore(master.deployment, ("r",), f"{next(fresh())} {{}}", old=handed.token)
    master.vote(undo)
    with pytest.raises(TicketUsed):
        master.run(taking(master, handed))
    assert master.tokens() == [taken.token]


@kills("an undo takes a lock", "restore", lua("lock == value and before", "lock and before"))
def test_an_undo_restores_only_its_own_token(master: Masters) -> None:
    handed = given(master)
    taken = master.run(taking(master, handed))
    master.run(master.release(taken))
    other = master.taken()
    master.vote(Restore(master.deployment, ("r",), taken.value, old=handed.token))
    assert master.tokens() == [other.token]


@kills("a released token is set", "take", lua("if seen[3] then", "if false then"))
@kills("a late token follows its undo", "restore",
       lua("redis.call('SET', KEYS[3], '1', 'PX', MAX_TTL)"))  # fmt: skip
def test_a_token_that_arrives_after_its_undo_is_not_set(master: Masters) -> None:
    """The undo came on another connection."""
    handed = given(master)
    protocol = taking(master, handed)
    ask = next(protocol)
    undo = protocol.throw(Interrupted())
    master.hear(undo)
    master.hear(ask)
    assert master.tokens() == [handed.token]


@kills("an undo is not in the index", "restore", lua("add_to_index(left, key)"), True)
@kills("a lock that is handed on is not in the index", "take",
       lua("add_to_index(tonumber(ARGV[4]), KEYS[4 + index])"), False)  # fmt: skip
@pytest.mark.parametrize("is_restored", [True, False])
def test_the_index_shows_when_what_was_handed_on_ends(is_restored: bool, master: Masters) -> None:
    handed = given(master)
    if is_restored:
        with pytest.raises(QuorumUnreachable):
            master.run(taking(master, handed, 2.0), mute=(0,))
    ends = master.memories[0].keyspace.sorted_set(master.deployment.held)[b"r"]
    assert abs(ends - (master.now + TTL) * 1000) < 2


@kills("a taker of a slot that lost frees no slot", Wait.next_attempt, argument(Take, limit="1"))
def test_a_taker_of_a_slot_that_lost_calls_a_waiter_for_it(masters: Masters) -> None:
    slots = [masters.taken(limit=2) for _ in range(2)]
    handed = masters.run(giving(masters, slots[1]))
    first, second = taking(masters, handed), taking(masters, handed)
    for protocol, indexes in ((first, (0, 1)), (second, (2,))):
        step = next(protocol)
        for index in indexes:
            masters.hear_at(step, index)
        for index in {0, 1, 2}.difference(indexes) if protocol is second else ():
            masters.hear_at(step, index)
    masters.hear(next(masters.acquire(limit=2, wait=60.0, waiter="P:wake:a 1")))
    with pytest.raises(TicketUsed):
        masters.carry(second, second.send(masters.now))
    assert masters.called == [(2, f"P:wake:a 1/{handed.slot}")]


def test_a_waiter_that_hands_its_slot_on_passes_its_turn_on(masters: Masters) -> None:
    """On one master another client has its slot, and it is still in the queue there."""
    lease = replace(masters.taken(limit=2), waiter="P:wake:a 1")
    keyspace, other = masters.memories[2].keyspace, 1 - lease.slot
    for slot, ttl in ((lease.slot, 10_000), (other, 5)):
        key = masters.deployment.lock(slot_resource("r", slot))
        keyspace.set(key, b"c" * TOKEN + b" {}", ttl)
    for waiter in ("P:wake:a 1", "P:wake:b 1"):
        step = next(masters.acquire(limit=2, wait=60.0, waiter=waiter))
        masters.hear_at(step, 2)
        masters.now += 0.001
    masters.now += 0.005  # the other slot is free
    masters.run(giving(masters, lease))
    release_rest(masters, lease)
    assert masters.called == [(2, f"P:wake:b 1/{other}")]


@kills("what failed keeps the new token", Attempt.undo, never("isinstance(ask, Take)"))
def test_without_a_quorum_the_giver_keeps_its_lease() -> None:
    for how in ({"down": (0, 1)}, {"mute": (0, 1)}, {"deaf": (0, 1, 2)}, {"mute": (0, 1, 2)}):
        masters = Masters(3)
        lease = masters.taken()
        with pytest.raises(QuorumUnreachable):
            masters.run(giving(masters, lease), **how)
        masters.run(masters.extend(lease))
        assert masters.tokens() == [lease.token] * 3, how
        handed = masters.run(giving(masters, lease))
        masters.run(taking(masters, handed))


@kills("a second interrupt keeps what was taken", rounds.acquire,
       without("yield replace(undo, ...)"))  # fmt: skip
def test_an_interrupt_of_the_giver_leaves_it_its_lease(masters: Masters) -> None:
    lease = masters.taken()
    protocol = giving(masters, lease)
    masters.hear(next(protocol))
    try:
        protocol.throw(Interrupted())
    except Interrupted:
        pytest.fail("nothing is undone")
    with pytest.raises(Interrupted):
        masters.carry(protocol, protocol.throw(Interrupted()))  # before a byte was sent
    assert masters.tokens() == [lease.token] * 3


@kills("a giver asks as long as a taker", Wait.limit, never("self.expected.home is not None"))
def test_a_giver_without_a_quorum_gives_up_before_its_lease_ends(masters: Masters) -> None:
    """One master hangs, and another one does not have the lock."""
    lease = masters.taken()
    masters.forget(2)
    began = masters.now
    asked, _ = rounds_and_pauses(masters, giving(masters, lease), 0.25, mute=(1,))
    assert asked <= 3
    assert masters.now < began + 1.0
    assert masters.tokens() == [lease.token, lease.token, ""]


@kills("a hand-on prolongs a minimum hold", validity.end_of_min_hold,
       never("handed.home is not None"))  # fmt: skip
def test_a_giver_keeps_its_minimum_hold(masters: Masters) -> None:
    """Also if an extension that failed has reached one master."""
    lease = replace(masters.taken(ttl=60.0), earliest_end=masters.now + 1.0)
    masters.now += 40.0
    masters.vote(Extend(masters.deployment, ("r",), lease.value, 60.0))
    assert masters.run(giving(masters, lease)).earliest_end == lease.earliest_end


@kills("the giver hears of a ticket", refusal.refused_ticket, never("expected.home is not None"))
def test_a_lost_lease_is_not_handed_on(masters: Masters) -> None:
    lease = masters.taken()
    for index in (0, 1):
        masters.forget(index)
    with pytest.raises(LockLost, match="lost before it was handed on"):
        masters.run(giving(masters, lease))
    assert masters.tokens() == [""] * 3, "what is left of it is released"


# The taker.


@kills(
    "a used ticket looks late",
    "take",
    lua("redis.call('SET', KEYS[4], ARGV[2]:sub(1, 32) .. ends .. seen[5], 'PX', FENCE_TTL)"),
)
@kills("a ticket is used twice", "take", lua("if seen[4] then", "if false then"))
@kills("a used ticket has no taker", Take.vote, instead("rest", "ENDED", nth=2))
def test_a_ticket_is_used_once(masters: Masters) -> None:
    handed = given(masters)
    taken = masters.run(taking(masters, handed))
    with pytest.raises(TicketUsed):
        masters.run(taking(masters, handed))
    assert masters.tokens() == [taken.token] * 3
    masters.run(masters.release(taken))
    with pytest.raises(TicketUsed):
        masters.run(taking(masters, handed))
    masters.taken()
    with pytest.raises(TicketUsed):
        masters.run(taking(masters, handed))


@kills("a ticket sets a lock that has ended", "take",
       lua("if absent > 0 then", "if false then",
           (".. seen[5]", ".. (seen[5] or '')")))  # fmt: skip
@kills("a ticket of a lock that ended is used", refusal.refusal_of_ticket,
       always("not tally.majority(ended) and ..."))  # fmt: skip
def test_a_ticket_of_a_lock_that_has_ended_is_too_late(masters: Masters) -> None:
    handed = given(masters)
    masters.now = handed.until + 0.7
    with pytest.raises(LockLost):
        masters.run(taking(masters, handed))
    other = masters.taken()
    with pytest.raises(LockLost):
        masters.run(taking(masters, handed))
    assert masters.tokens() == [other.token] * 3


@kills("an undo leaves the ticket used", "restore", lua("redis.call('DEL', KEYS[1])"))
def test_a_taker_without_a_quorum_restores_the_ticket(masters: Masters) -> None:
    handed = given(masters)
    for how in ({"down": (0, 1)}, {"mute": (0, 1)}, {"mute": (0, 1, 2)}):
        with pytest.raises(QuorumUnreachable):
            masters.run(taking(masters, handed), **how)
        assert masters.tokens() == [handed.token] * 3
    masters.run(taking(masters, handed))


@kills("masters that forgot the lock are other takers", refusal.refusal_of_ticket,
       never("ended == len(tally.refusals)"))  # fmt: skip
def test_a_ticket_that_no_other_client_has_used_shows_which_masters_fail(masters: Masters) -> None:
    handed = given(masters)
    masters.forget(2)
    with pytest.raises(QuorumUnreachable, match=r"m1: did not answer; m2: forgot the lock"):
        masters.run(taking(masters, handed), mute=(1,))
    masters.run(taking(masters, handed))


@kills("a taker does not know what forgot its lock", Wait.lease, without("lease.tally = ..."))
def test_the_first_extension_of_a_taken_lock_heals_what_forgot_it(masters: Masters) -> None:
    handed = given(masters)
    masters.forget(2)
    extension = asked(next(masters.extend(masters.run(taking(masters, handed)))))
    assert [command and command.name for command in extension.commands][2] == "heal"


@kills("a minimum hold ends with its ticket", Wait.lease, without("lease.earliest_end = ..."))
@kills("a minimum hold begins again", validity.end_of_min_hold,
       instead("max(0.0, handed.until - left)", "0.0"))  # fmt: skip
def test_a_minimum_hold_goes_on_at_the_time_that_the_masters_show(masters: Masters) -> None:
    handed = given(masters)
    ticket = replace(handed, started=0.0, until=handed.until - masters.now, earliest_end=5.0)
    masters.now += 2.0
    taken = masters.run(taking(masters, ticket))
    assert 3.0 <= taken.earliest_end - masters.now < 3.4


@kills("a closed undo sends", rounds.acquire, instead("GeneratorExit", "ZeroDivisionError", nth=2))
def test_a_taker_that_is_closed_during_its_undo_asks_nothing_more(masters: Masters) -> None:
    taker = taking(masters, given(masters))
    next(taker)
    asked(taker.throw(Interrupted()))
    taker.close()  # raises RuntimeError if the generator yields


def _finish(masters: Masters, taker: Protocol[RedlockLease]) -> RedlockLease | None:
    try:
        return masters.carry(taker, taker.send(masters.now))
    except StopIteration as done:
        lease: RedlockLease = done.value
        return lease
    except (TicketUsed, QuorumUnreachable):
        return None


@kills("a taker that took a minority has used the ticket", refusal.refusal_of_ticket,
       together(instead("tally.rival_won", "tally.denied", nth=1),
                instead("tally.rival_won", "tally.denied")))  # fmt: skip
@kills("a lock that ended on half of the masters is in transit", refusal.refusal_of_ticket,
       never("not tally.majority(tally.masters - ended)"))  # fmt: skip
@kills("two takers give up together", Attempt.split, instead("not (self.late or ...)", "False"))
def test_takers_that_split_the_masters_try_again_some_times() -> None:
    masters = Masters(4)
    handed = split(masters)
    began = masters.now
    with pytest.raises(QuorumUnreachable, match="other clients try to take it"):
        masters.run(taking(masters, handed))
    assert masters.now - began == pytest.approx(0.01 * (SPLIT_ROUNDS - 1), abs=1e-3)
    masters.now = handed.until + 0.7
    # No taker is proved to have had it: the work may not have been done.
    with pytest.raises(LockLost):
        masters.run(taking(masters, handed))
    masters.taken()


def split(masters: Masters, limit: int = 1) -> RedlockLease:
    """Return a ticket whose taker was killed with the token on half of four masters."""
    handed = masters.run(giving(masters, masters.taken(limit=limit)))
    dead = taking(masters, handed)
    masters.hear(next(dead), down=(2, 3))
    dead.close()
    return handed


def rounds_and_pauses(
    masters: Masters, protocol: Protocol[RedlockLease], took: float, **how: tuple[int, ...]
) -> tuple[int, list[float]]:
    """Run a protocol whose rounds take so long until it gives up; count them, and its pauses."""
    asked, pauses, step = 0, list[float](), next(protocol)
    for _ in range(5 * SPLIT_ROUNDS):
        if isinstance(step, Pause):
            pauses.append(step.seconds)
            masters.now += step.seconds
        else:
            masters.hear(step, **how)
            asked += step.awaited
            masters.now += took if step.awaited else 0.0
        try:
            step = protocol.send(masters.now)
        except QuorumUnreachable:
            break
    return asked, pauses


def test_takers_that_split_the_masters_of_a_slot_try_again_some_times() -> None:
    masters = Masters(4)
    taker = taking(masters, split(masters, limit=2))
    assert rounds_and_pauses(masters, taker, 0.0)[0] == SPLIT_ROUNDS


@kills("distant takers have no time", Wait.limit, always("self.expected is None"))
@kills("distant takers pause as near ones", Wait.pause, instead("(now - started) / NEAR", "0.0"))
@kills("a pause has no end", Wait.pause, instead("LONGEST_PAUSE", "999.0"))
def test_distant_takers_try_again_as_often_and_pause_longer() -> None:
    for took, pause in ((0.0, 0.01), (0.1, 0.5), (1.0, 2.0)):
        masters = Masters(4)
        asked, pauses = rounds_and_pauses(masters, taking(masters, split(masters)), took)
        assert asked == SPLIT_ROUNDS
        assert pauses == pytest.approx([pause] * (SPLIT_ROUNDS - 1))


@kills("a slot that was taken has no limit", Wait.lease, argument(RedlockLease, limit="1"))
def test_a_slot_is_taken_with_its_limit(masters: Masters) -> None:
    masters.taken(limit=2)
    handed = masters.run(giving(masters, masters.taken(limit=2)))
    taken = masters.run(taking(masters, handed))
    assert (taken.resources, taken.limit) == (handed.resources, 2)
    assert taken.names == ("r",)


@kills("a taker of a slot chooses one", rounds.acquire, always("expected is None"))
def test_a_taker_of_a_slot_chooses_none(masters: Masters) -> None:
    lease = masters.taken(limit=2)
    taker = client(masters)
    taker.released.add("r", 1 - lease.slot)
    handed = masters.run(giving(masters, lease))
    masters.run(taking(masters, handed, by=taker))
    assert taker.released.take("r") == 1 - lease.slot, "it is for the next call"


@kills("a lock that was taken has no givers", Wait.lease, without("lease.givers = expected.givers"))
def test_a_lock_shows_who_has_handed_it_on(masters: Masters) -> None:
    handed = replace(given(masters), givers=("1234abcd",))
    assert masters.run(taking(masters, handed)).givers == ("1234abcd",)


@kills("a master does not name the taker", "take", lua("seen[4]:sub(1, 32)", "''"))
@kills("two takers are one", Attempt.split, instead("last.rival_won", "last.denied"))
def test_a_taker_between_two_others_tries_again(masters: Masters) -> None:
    """Each of the others has one master: a majority was used, but by none of them."""
    handed = given(masters)
    others = [taking(masters, handed) for _ in range(2)]
    steps = [next(other) for other in others]
    for index, step in enumerate(steps):
        masters.hear_at(step, index)
    taker = taking(masters, handed)
    masters.hear(next(taker))
    paused(masters.after_undo(taker))
    for other in others:  # both undo
        masters.hear(other.throw(Interrupted()))
    assert masters.carry(taker, taker.send(masters.now)).token == masters.tokens()[0]


@kills("a lock that ended has no rival", Take.vote,
       instead("vote._replace(rival=ENDED)", "vote._replace(rival=None)"))  # fmt: skip
def test_a_ticket_whose_lock_is_left_on_a_minority_is_too_late(masters: Masters) -> None:
    handed = given(masters)
    for index in (0, 1):
        masters.forget(index)
    with pytest.raises(LockLost):
        masters.run(taking(masters, handed))
    assert masters.tokens() == ["", "", ""]


@kills("a taker that lost leaves the ticket's token", Attempt.undo, always("not tally.rival_won"))
def test_a_taker_that_lost_leaves_nothing_in_the_way_of_the_holder(masters: Masters) -> None:
    handed = given(masters)
    holder, late = taking(masters, handed), taking(masters, handed)
    first, second = next(holder), next(late)
    masters.hear_at(second, 2)
    masters.hear(first)
    for index in (0, 1):
        masters.hear_at(second, index)
    lease = _finish(masters, holder)
    assert lease is not None
    with pytest.raises(TicketUsed):
        masters.carry(late, late.send(masters.now))
    assert masters.tokens() == [lease.token, lease.token, ""]
    for _ in range(2):  # the second one heals
        _, lease = masters.run(masters.extend(lease))
    assert masters.tokens() == [lease.token] * 3


@kills("a hand-on compares no token", "ownership",
       lua("if lock and lock:sub(1, length) ~= own then", "if false then"))  # fmt: skip
@kills("a hand-on compares the token without its end", "take",
       lua("ARGV[3] .. ' ', 33", "ARGV[3], 32"))  # fmt: skip
@kills("a hand-on compares the beginning of a token", "take",
       lua("ARGV[3] .. ' ', 33", "ARGV[3]:sub(1, 31), 31"))  # fmt: skip
def test_the_token_is_compared_whole(master: Masters) -> None:
    handed = given(master)
    key = master.deployment.lock("r")
    for other in (handed.token[:31] + "x {}", handed.token, f"{handed.token}x {{}}"):
        master.memories[0].keyspace.set(key, other.encode(), 5000)
        with pytest.raises(LockLost):
            master.run(taking(master, handed))
        assert master.memories[0].keyspace.get(key) == other.encode()


@kills("one lock of several is compared", "ownership",
       lua("for index = 1, #KEYS - first + 1 do", "for index = 1, 1 do"))  # fmt: skip
def test_several_locks_are_replaced_together_and_extended_together(master: Masters) -> None:
    handed = given(master, "r", "s")
    master.memories[0].keyspace.strings.pop(master.deployment.lock("s"))
    state, _ = master.run(master.extend(handed, TTL))
    assert state is LeaseState.LOST
    with pytest.raises(LockLost):
        master.run(taking(master, handed))
    assert master.tokens("r") == [handed.token]

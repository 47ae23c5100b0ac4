"""Names that several clients may hold at once, driven step by step: slots, turns and refusals."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from redlock_django.engine import rounds, undo
from redlock_django.engine.attempt import SPLIT_ROUNDS, Wait
from redlock_django.engine.errors import LimitReached
from redlock_django.engine.protocol.commands import Release
from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.engine.protocol.slots import MOST_SLOTS, SUFFIX, name_of, slot_of, slot_resource
from redlock_django.engine.protocol.statuses import Status
from redlock_django.engine.protocol.votes import Ballot, Vote, failed, granted
from redlock_django.engine.quorum import Tally
from redlock_django.engine.slot_choice import MOST_NAMES, ReleasedSlots, SlotChoice
from redlock_django.engine.validity import RedlockLease
from tests.engine.lua_mutation import lua
from tests.engine.masters import Masters, Waiting, asked, free, paused
from tests.engine.mutants import kills
from tests.engine.mutation import always, argument, instead, never, without
from tests.replies import tally_of

TURN = 100_000

A, B, C, D = "P:wake:a 1", "P:wake:b 1", "P:wake:c 1", "P:wake:d 1"
_numbers = count(1 << 64)  # so that no token is one of `fresh`


def aiming(*slots: int) -> Iterator[str]:
    """Yield tokens that choose these of the open slots, the last one again and again."""
    for nth in count():
        yield f"{slots[min(nth, len(slots) - 1)]:08x}{next(_numbers):024x}"


def taken(masters: Masters, slot: int, limit: int = 2, **how: Any) -> RedlockLease:
    """Acquire a slot on all masters."""
    lease = masters.taken(limit=limit, tokens=aiming(slot), **how)
    assert lease.slot == slot
    return lease


def waits(masters: Masters, waiter: str, limit: int = 2, slot: int = 0) -> Waiting:
    """Return the acquire of a waiter that asked for a slot, and was refused."""
    return Waiting(masters, waiter, limit=limit, tokens=aiming(slot))


def calls(masters: Masters, waiter: str, slot: int) -> list[tuple[int, str]]:
    """Return the calls of a waiter by all masters, which name a slot."""
    return [(index, f"{waiter}/{slot}") for index in range(masters.deployment.masters)]


# Slots and their names.


@pytest.mark.parametrize("name", ["r", "a:b", "\n", "export]", "é" * 10])
def test_a_slot_is_a_resource_of_its_own(name: str) -> None:
    resources = [slot_resource(name, slot) for slot in range(12)]
    assert resources[0] == name
    assert len({*resources}) == 12
    assert {name_of(resource) for resource in resources} == {name}
    assert [slot_of(resource) for resource in resources] == [*range(12)]


def test_the_resource_of_the_last_slot_has_room() -> None:
    assert len(slot_resource("r", MOST_SLOTS - 1)) == len("r") + SUFFIX


# Which slot a call asks for.


def refusal(taken: str) -> Vote:
    """Return the vote of a master that shows these slots as taken."""
    return Vote(Ballot.REFUSED, time=0, ttl=900, rival=b"f" * 32, taken=taken.encode())


def lost(*votes: Vote | None) -> Tally:
    """Return the tally of an attempt with these votes."""
    return tally_of(*votes, skew=500_000, rivals=True)


def choice(*votes: Vote | None, limit: int = 3) -> SlotChoice:
    """Return the choice of a call after an attempt with these votes."""
    slots = SlotChoice("r", limit, ReleasedSlots())
    slots.note(lost(*votes), throughout=True)
    return slots


def chosen(slots: SlotChoice, number: int = 0, called: int | None = None) -> int:
    (resource,) = slots.resource(f"{number:08x}", called)
    return slot_of(resource)


def test_at_first_any_slot_is_asked_for() -> None:
    slots = SlotChoice("r", 3, ReleasedSlots())
    assert [chosen(slots, number) for number in range(6)] == [0, 1, 2, 0, 1, 2]


def test_the_slot_that_a_call_names_is_asked_for() -> None:
    slots = choice(refusal("101"), refusal("101"), refusal("101"))
    assert chosen(slots, 0, called=2) == 2
    assert chosen(slots, 0, called=3) == 1, "a deployment with a larger limit may name it"


@kills("a known slot is asked for again and again", SlotChoice.note, without("self._known = None"))
def test_the_slot_that_the_process_released_last_is_asked_for_first() -> None:
    released = ReleasedSlots()
    for slot in (0, 2, 1, 2):
        released.add("r", slot)
    first, second = SlotChoice("r", 3, released), SlotChoice("r", 3, released)
    assert [chosen(first), chosen(second)] == [1, 2] or [chosen(first), chosen(second)] == [2, 1]
    first.note(lost(*[refusal("110")] * 3), throughout=True)
    assert chosen(first) == 2, "once only"
    assert chosen(SlotChoice("r", 2, released)) == 0
    assert chosen(SlotChoice("r", 2, released), 1) == 1, "nothing is known any more"


@kills("a slot beyond the limit", SlotChoice.resource, never("slot >= self.limit"))
def test_a_slot_beyond_a_smaller_limit_is_not_asked_for() -> None:
    released = ReleasedSlots()
    released.add("r", 2)
    assert chosen(SlotChoice("r", 2, released), 1) == 1


@kills("the released slots of every name", ReleasedSlots.add, without("self._slots.clear()"))
def test_the_slots_of_a_limited_number_of_names_are_remembered() -> None:
    released = ReleasedSlots()
    for number in range(MOST_NAMES + 1):
        released.add(f"r{number}", 1)
    assert released.take("r0") is None
    assert released.take(f"r{MOST_NAMES}") == 1
    assert released.take(f"r{MOST_NAMES}") is None


@kills("any open slot will do", SlotChoice.note, always("many == least"))
def test_the_slot_that_the_fewest_masters_show_as_taken_is_asked_for() -> None:
    slots = choice(refusal("110"), refusal("101"), refusal("110"), limit=3)
    assert slots.is_open
    assert chosen(slots) == 2


def test_no_slot_is_open_that_a_majority_shows_as_taken() -> None:
    assert not choice(refusal("110"), refusal("101"), refusal("011")).is_open
    assert not choice(refusal("11"), refusal("11"), granted(0, (1,)), limit=2).is_open
    assert chosen(choice(*[refusal("111")] * 3), 1) == 1, "a waiter asks for any"


@kills("a slot is free on a master that failed", SlotChoice.note, without("failed |= 1 << master"))
def test_a_master_that_failed_has_no_free_slot() -> None:
    down = failed("did not answer")
    assert not choice(refusal("10"), refusal("11"), down, limit=2).is_open
    assert choice(refusal("10"), refusal("10"), down, limit=2).is_open


@kills("a slot is taken on a master that granted", SlotChoice.note,
       never("vote.ballot is Ballot.GRANTED"))  # fmt: skip
def test_a_master_that_granted_or_has_not_answered_may_have_a_free_slot() -> None:
    for other in (granted(0, (1,)), None):
        slots = choice(refusal("10"), refusal("11"), other, limit=2)
        assert slots.is_open
        assert chosen(slots) == 1


@kills("all slots are free where none is shown", SlotChoice.note,
       instead("... != b'0'", "vote.taken[slot:slot + 1] == b'1'"))  # fmt: skip
def test_a_refusal_without_an_occupancy_shows_all_slots_as_taken() -> None:
    assert not choice(refusal(""), refusal(""), refusal("10")).is_open
    slots = choice(refusal(""), refusal("10"), refusal("10"), limit=2)
    assert slots.is_open
    assert chosen(slots) == 1


@kills("a taken slot is asked for again", SlotChoice.note, never("throughout"))
def test_a_call_that_does_not_wait_asks_for_no_slot_again_that_was_taken() -> None:
    """Each slot is free at some moment, and none throughout the call."""
    slots = choice(refusal("10"), refusal("10"), refusal("10"), limit=2)
    assert chosen(slots) == 1
    slots.note(lost(*[refusal("01")] * 3), throughout=True)
    assert not slots.is_open


@kills("a waiter asks for no taken slot again", SlotChoice.note, always("throughout"))
def test_a_waiter_asks_for_a_slot_that_came_free_during_its_wait() -> None:
    slots = SlotChoice("r", 2, ReleasedSlots())
    for taken in ("10", "01"):
        slots.note(lost(*[refusal(taken)] * 3), throughout=False)
        assert slots.is_open
    assert chosen(slots) == 0


# Grants and refusals.


def test_a_slot_is_free_as_long_as_fewer_clients_hold_one(masters: Masters) -> None:
    first, second = taken(masters, 0), taken(masters, 1)
    assert (first.resources, second.resources) == (("r",), ("r[1]",))
    assert first.limit == second.limit == 2
    with pytest.raises(LimitReached, match="r: its 2 slots are held"):
        masters.run(masters.acquire(limit=2))
    free(masters, second)
    assert masters.run(masters.acquire(limit=2)).slot == 1


@kills("refused beside a free slot", Wait._may_take_another, never("self.slots.is_open"))
@kills("a refusal beside a free slot does not show it", "refuse",
       lua("(holder and '1' or '0')", "'1'"))  # fmt: skip
def test_a_client_asks_for_the_slot_that_a_refusal_shows_as_free(masters: Masters) -> None:
    taken(masters, 0, 3)
    taken(masters, 1, 3)
    lease = masters.run(masters.acquire(limit=3, tokens=aiming(0)))
    assert (lease.slot, lease.attempts) == (2, 2)


@kills("refused after a stall", Wait.goes_on, never("not attempt.split"))
def test_a_client_asks_for_the_free_slot_also_after_a_stall(masters: Masters) -> None:
    taken(masters, 0, 3)
    taken(masters, 1, 3)
    protocol = masters.acquire(limit=3, tokens=aiming(0), overrun=0.1)
    masters.hear(next(protocol))
    masters.now += 5.0  # as in a process that was stopped
    lease = masters.carry(protocol, protocol.send(masters.now))
    assert (lease.slot, lease.attempts) == (2, 2)


@kills("a waiter pauses beside a free slot", Wait.pause, never("self._may_take_another(attempt)"))
@kills("all slots are shown as free", "refuse", lua("holder and '1' or '0'", "'0'"))
def test_it_asks_at_once_also_where_it_waits(masters: Masters) -> None:
    taken(masters, 0)
    waiting = waits(masters, A)
    assert paused(waiting.step).seconds == 0.0
    assert waiting.won().slot == 1
    assert masters.queues() == [[], [], []]


@kills("a slot taken on one master is taken", SlotChoice.note,
       instead("tally.majority(...)", "not least"))  # fmt: skip
def test_a_client_is_refused_only_if_a_majority_shows_each_slot_as_taken(masters: Masters) -> None:
    """Slot 0 is held on all masters, slot 1 on one that another client has reached alone."""
    taken(masters, 0)
    masters.hear(next(masters.acquire(limit=2, tokens=aiming(1))), down=(1, 2))
    lease = masters.run(masters.acquire(limit=2, tokens=aiming(0)))
    assert lease.slot == 1


@kills("a wrong guess is a wait", Wait._waited, always("self.paused"))
def test_a_wrong_guess_of_a_slot_is_no_wait(masters: Masters) -> None:
    taken(masters, 0, 2)
    for guesses in ((0, 1), (0,)):
        protocol = masters.acquire(limit=2, tokens=aiming(*guesses))
        step = next(protocol)
        masters.now += 0.1
        masters.hear(step)
        if len(guesses) == 1:
            with pytest.raises(LimitReached) as refused:
                protocol.send(masters.now)
            assert refused.value.waited == 0.0
        else:
            step = masters.after_undo(protocol)
            lease = masters.carry(protocol, step)
            assert (lease.attempts, lease.waited) == (2, 0.0)
    waiting = waits(masters, A)
    masters.now += 0.1
    free(masters, lease)
    assert waiting.won(1).waited > 0.1


@kills("a few attempts for slots, as for a lock", Wait.goes_on,
       instead("self._may_take_another(attempt)",
               "self._may_take_another(attempt) and self.lost < SPLIT_ROUNDS"))  # fmt: skip
def test_a_call_asks_for_each_slot_that_may_be_free() -> None:
    """Another client is faster each time; the last slot is free throughout the call."""
    limit = SPLIT_ROUNDS + 2
    masters = Masters(3)
    protocol = masters.acquire(limit=limit)
    step = next(protocol)
    for _ in range(limit - 1):
        ask = asked(step).commands[0]
        assert ask is not None
        taken(masters, slot_of(ask.resources[0]), limit)
        masters.hear(step)
        assert paused(masters.after_undo(protocol)).seconds == 0.0
        step = protocol.send(masters.now)
    assert masters.carry(protocol, step).attempts == limit


@kills("asked again although all are taken", Wait._may_take_another, always("self.slots.is_open"))
def test_a_refusal_needs_one_round_where_all_are_taken(masters: Masters) -> None:
    taken(masters, 0)
    taken(masters, 1)
    protocol = masters.acquire(limit=2)
    masters.hear(next(protocol))
    with pytest.raises(LimitReached) as refused:
        protocol.send(masters.now)
    assert refused.value.attempts == 1


@kills("asked again without a quorum", Wait._may_take_another, always("not attempt.unreachable"))
def test_a_waiter_without_a_quorum_pauses(masters: Masters) -> None:
    protocol = masters.acquire(limit=2, wait=60.0, ttl=1.0)
    step = next(protocol)
    masters.now += 1.0
    masters.hear(step)
    assert paused(masters.after_undo(protocol)).seconds > 0.0


@kills("the slot that is free last says when", "refuse", lua("lasts < left", "lasts > left"))
def test_the_soonest_slot_says_when_to_try_again(masters: Masters) -> None:
    taken(masters, 0, ttl=8.0)
    taken(masters, 1, ttl=3.0)
    with pytest.raises(LimitReached) as refused:
        masters.run(masters.acquire(limit=2))
    assert refused.value.retry_after == pytest.approx(3.0)


# The script.


def test_a_refusal_where_all_slots_are_taken_is_that_of_a_lock(master: Masters) -> None:
    for resource, token in (("r", "a"), ("r[1]", "c")):
        master.say(master.ask(token * 32, resource, limit=2))
    refused = master.say(master.ask("b" * 32, limit=2))
    assert refused[2:] == [1, 10_000, refused[4], -1, b"a" * 32 + b"11"]
    waiting = master.ask("b" * 32, limit=2, waiter=A)
    assert master.say(waiting)[6] == b"a" * 32 + b"11"


def test_a_refusal_shows_which_slots_are_taken(master: Masters) -> None:
    master.say(master.ask("a" * 32, "r[1]", limit=3))
    other = master.ask("b" * 32, "r[1]", limit=3)
    status, _, index, left, _, ahead, text = master.say(other)
    assert (status, index, left, ahead) == (Status.REFUSED, 1, 10_000, -1)
    assert text == b"a" * 32 + b"010"


def test_a_slot_without_expiry_does_not_say_when_it_is_free(master: Masters) -> None:
    master.memories[0].keyspace.set(master.deployment.lock("r"), b"foreign")
    master.memories[0].keyspace.set(master.deployment.lock("r[1]"), b"foreign")
    assert master.say(master.ask("b" * 32, limit=2))[3] == -1
    master.memories[0].keyspace.set(master.deployment.lock("r"), b"foreign", 5_000)
    assert master.say(master.ask("b" * 32, limit=2))[3] == 5_000, "the other slot says it"


# The queue.


@kills("a granted waiter of a slot stays queued", "acquire",
       lua("redis.pcall('ZREM', KEYS[queues + index], waiter)"))  # fmt: skip
@kills("a call names no slot", "release", lua("nil, #free, free", "nil, #free"))
@kills("a queue for each slot", Deployment.queue, instead("name_of(resource)", "resource"))
@kills("a release of a slot calls no waiter", "release",
       lua("call_first(queue, now, '', nil, #free, free)"))  # fmt: skip
def test_waiters_for_several_slots_are_served_in_order(masters: Masters) -> None:
    leases = [taken(masters, 0), taken(masters, 1)]
    first, second, third = (waits(masters, n, slot=s) for n, s in ((A, 0), (B, 1), (C, 1)))
    assert masters.queues() == [[A, B, C]] * 3, "one queue for all slots"
    for slot, waiting, name in ((1, first, A), (1, second, B), (0, third, C)):
        free(masters, leases[slot])
        assert masters.called == calls(masters, name, slot)
        leases[slot] = waiting.won(slot)
        assert (leases[slot].slot, leases[slot].attempts) == (slot, 2)
    assert masters.queues() == [[], [], []]


@kills("more turns than free slots", "release", lua("nil, #free, free", "nil, #free + 1, free"))
@kills("a second release calls no second waiter", "release",
       lua("nil, #free, free", "nil, 1, free"))  # fmt: skip
@kills("a call names the slot of an earlier call", "release",
       lua("is_ours and #free + 1 or 1", "#free + 1"))  # fmt: skip
@kills("a release does not know the limit", rounds.release, argument(Release, limit="1"))
def test_as_many_waiters_have_a_turn_as_slots_are_free(masters: Masters) -> None:
    leases = [taken(masters, 0), taken(masters, 1)]
    first, second, third = (waits(masters, name) for name in (A, B, C))
    free(masters, leases[1])
    free(masters, leases[0])
    assert masters.called == calls(masters, B, 0), "the next one, with the slot that is released"
    masters.called.clear()
    third.refused_again()
    with pytest.raises(LimitReached, match="r: a slot is reserved for a waiter"):
        masters.run(masters.acquire(limit=2))
    assert masters.called == [], "no third waiter has a turn"
    assert {second.won(0).slot, first.won(1).slot} == {0, 1}


@kills("a grant calls no other waiter", "acquire", lua("#others > 0", "false"))
@kills("a grant calls a waiter for its own slot", "acquire",
       lua("KEYS[7 + slot] ~= KEYS[4]", "true"))  # fmt: skip
def test_a_waiter_that_takes_a_slot_calls_the_next_for_an_expired_one(masters: Masters) -> None:
    taken(masters, 0, ttl=2.0)
    taken(masters, 1, ttl=2.0)
    first, second, third = (waits(masters, name) for name in (A, B, C))
    masters.now += 2.1
    masters.called.clear()
    assert first.won(1).slot == 1
    assert masters.called == calls(masters, B, 0)
    masters.called.clear()
    assert second.won(0).slot == 0
    assert masters.called == [], "no slot is free for the third one"
    third.give_up()


@kills("one turn reserves all slots", "queue", lua("turns >= (free or 1)", "turns >= 1"))
def test_a_client_takes_a_slot_that_no_waiter_needs(masters: Masters) -> None:
    leases = [taken(masters, 0), taken(masters, 1)]
    waiting = waits(masters, A)
    free(masters, leases[0])
    free(masters, leases[1])
    assert masters.called == [], "the only waiter has its turn"
    lease = masters.run(masters.acquire(limit=2, tokens=aiming(0)))
    assert waiting.won(1 - lease.slot).slot == 1 - lease.slot


@kills("a turn ends with its process alone", "release",
       lua("(is_free or slots > 0)",
           "(slots <= 0 and is_free or slots > 0 and lock == value)"))  # fmt: skip
@kills("an undo does not know the limit", undo.undo_of, argument(Release, limit="1"))
def test_the_turn_of_a_waiter_that_leaves_passes_on(masters: Masters) -> None:
    """Also where another client holds the slot that it has asked for last."""
    taken(masters, 0)
    lease = taken(masters, 1)
    first, _ = waits(masters, A, slot=0), waits(masters, B)
    free(masters, lease)
    assert masters.called == calls(masters, A, 1)
    masters.called.clear()
    first.give_up()
    assert masters.called == calls(masters, B, 1)


def test_a_release_of_a_slot_never_granted_calls_no_waiter_for_a_held_one(masters: Masters) -> None:
    taken(masters, 0)
    taken(masters, 1)
    waits(masters, A)
    masters.called.clear()
    release = Release(masters.deployment, ("r",), f"{'a' * 32} {{}}", limit=2)
    for memory in masters.memories:
        assert memory.say(release, 7)[1] == Status.REFUSED
    assert masters.called == []


@kills("a reserved slot is shown as free", "refuse", lua(", string.rep('1', slots)", ", taken"))
def test_a_reserved_slot_shows_no_slot_as_free(master: Masters) -> None:
    lease = taken(master, 0)
    taken(master, 1)
    waits(master, A)
    free(master, lease)
    reply = master.say(master.ask("b" * 32, limit=2))
    assert (reply[0], reply[6]) == (Status.RESERVED, A.encode() + b"11")
    assert reply[3] <= TURN / 1000

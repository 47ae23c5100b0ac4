"""Rules of names that several clients may hold at once."""

from __future__ import annotations

from redlock_django.engine import rounds, undo
from redlock_django.engine.attempt import Wait
from redlock_django.engine.protocol.commands import Release
from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.engine.slot_choice import ReleasedSlots, SlotChoice
from redlock_django.wire.links.waiters import Waiter, Waiters
from tests.engine import test_script_rules, test_slot_rounds
from tests.engine.lua_mutation import lua
from tests.engine.mutants.mutant import Mutant
from tests.engine.mutation import (
    always,
    argument,
    instead,
    never,
    without,
)
from tests.wire import test_waiters_for_slots

MUTANTS: tuple[Mutant, ...] = (
    # The scripts.
    Mutant(
        "a slot is taken from its holder", "slots: each has one holder",
        "acquire", lua("if lock ~= value then", "if not lock then"),
        test_slot_rounds.test_a_refusal_needs_one_round_where_all_are_taken,
    ),
    Mutant(
        "compare the token of a slot only", "slots: acquire compares the whole value",
        "acquire", lua(
            "if lock ~= value then", "if (lock or ''):sub(1, 32) ~= value:sub(1, 32) then"
        ),
        test_slot_rounds.test_a_slot_whose_value_only_begins_with_the_token_is_another_clients,
    ),
    Mutant(
        "a slot of any deployment", "slots: the marker is the expected one",
        "acquire", lua("seen[1] ~= ARGV[#ARGV - 1] or now < tonumber(ARGV[#ARGV])", "false"),
        test_slot_rounds.test_a_slot_is_not_granted_where_a_lock_would_not_be,
    ),
    Mutant(
        "an overlong slot stays", "slots: a TTL above MAX_TTL is cut",
        "refuse", lua("lasts > MAX_TTL and", "false and"),
        test_slot_rounds.test_a_slot_that_lasts_longer_than_max_ttl_is_cut_if_it_is_ours,
    ),
    Mutant(
        "the slot that is free last says when", "slots: the PTTL is that of the first free slot",
        "refuse", lua("lasts < left", "lasts > left"),
        test_slot_rounds.test_the_soonest_slot_says_when_to_try_again,
    ),
    Mutant(
        "a reserved slot is shown as free", "slots: a reserved slot is not free",
        "refuse", lua(", string.rep('1', slots)", ", taken"),
        test_slot_rounds.test_a_reserved_slot_shows_no_slot_as_free,
    ),
    Mutant(
        "a granted waiter of a slot stays queued", "slots: a grant removes its waiter",
        "acquire", lua("redis.pcall('ZREM', KEYS[queues + index], waiter)"),
        test_slot_rounds.test_waiters_for_several_slots_are_served_in_order,
    ),
    Mutant(
        "a grant calls no other waiter", "slots: a granted waiter calls the next for another slot",
        "acquire", lua("#others > 0", "false"),
        test_slot_rounds.test_a_waiter_that_takes_a_slot_calls_the_next_for_another_that_has_expired,
    ),
    Mutant(
        "a grant calls a waiter for its own slot",
        "slots: a granted waiter calls the next for another slot",
        "acquire", lua("KEYS[7 + slot] ~= KEYS[4]", "true"),
        test_slot_rounds.test_a_waiter_that_takes_a_slot_calls_the_next_for_another_that_has_expired,
    ),
    # Turns.
    Mutant(
        "one turn reserves all slots", "slots: as many turns as free slots",
        "queue", lua("turns >= (free or 1)", "turns >= 1"),
        test_slot_rounds.test_a_client_takes_a_slot_that_no_waiter_needs,
    ),
    Mutant(
        "more turns than free slots", "slots: as many turns as free slots",
        "release", lua("nil, #free, free", "nil, #free + 1, free"),
        test_slot_rounds.test_as_many_waiters_have_a_turn_as_slots_are_free,
    ),
    Mutant(
        "a second release calls no second waiter", "slots: a release calls the next without a turn",
        "release", lua("nil, #free, free", "nil, 1, free"),
        test_slot_rounds.test_as_many_waiters_have_a_turn_as_slots_are_free,
    ),
    Mutant(
        "a call names no slot", "slots: a call names the slot that was released",
        "release", lua("nil, #free, free", "nil, #free"),
        test_slot_rounds.test_waiters_for_several_slots_are_served_in_order,
    ),
    Mutant(
        "a call names the slot of an earlier call",
        "slots: a call names the slot that was released",
        "release", lua("is_ours and #free + 1 or 1", "#free + 1"),
        test_slot_rounds.test_as_many_waiters_have_a_turn_as_slots_are_free,
    ),
    Mutant(
        "a turn ends with its process alone", "slots: a waiter that leaves passes its turn on",
        "release", lua(
            "(is_free or slots > 0)",
            "(slots <= 0 and is_free or slots > 0 and lock == value)",
        ),
        test_slot_rounds.test_the_turn_of_a_waiter_that_leaves_passes_on,
    ),
    Mutant(
        "a queue for each slot", "slots: one queue for all slots of a name", Deployment.queue,
        instead("name_of(resource)", "resource"),
        test_slot_rounds.test_waiters_for_several_slots_are_served_in_order,
    ),
    Mutant(
        "a release does not know the limit", "slots: a release calls the next without a turn",
        rounds.release, argument(Release, limit="1"),
        test_slot_rounds.test_as_many_waiters_have_a_turn_as_slots_are_free,
    ),
    Mutant(
        "an undo does not know the limit", "slots: a waiter that leaves passes its turn on",
        undo.undo_of, argument(Release, limit="1"),
        test_slot_rounds.test_the_turn_of_a_waiter_that_leaves_passes_on,
    ),
    # Which slot is asked for, and when none is.
    Mutant(
        "a slot is free on a master that failed", "slots: none is free on a master that failed",
        SlotChoice.note, without("failed |= 1 << master"),
        test_slot_rounds.test_a_master_that_failed_has_no_free_slot,
    ),
    Mutant(
        "a slot is taken on a master that granted",
        "slots: others may be free where one is granted",
        SlotChoice.note, never("vote.ballot is Ballot.GRANTED"),
        test_slot_rounds.test_a_master_that_granted_or_has_not_answered_may_have_a_free_slot,
    ),
    Mutant(
        "a slot taken on one master is taken", "slots: taken on a majority", SlotChoice.note,
        instead("tally.majority(...)", "not least"),
        test_slot_rounds.test_a_client_is_refused_only_if_a_majority_shows_each_slot_as_taken,
    ),
    Mutant(
        "any open slot will do", "slots: the one that is taken least is asked for",
        SlotChoice.note, always("many == least"),
        test_slot_rounds.test_the_slot_that_the_fewest_masters_show_as_taken_is_asked_for,
    ),
    Mutant(
        "all slots are free where none is shown", "slots: a refusal without occupancy shows none",
        SlotChoice.note, instead("... != b'0'", "vote.taken[slot:slot + 1] == b'1'"),
        test_slot_rounds.test_a_refusal_without_an_occupancy_shows_all_slots_as_taken,
    ),
    Mutant(
        "a taken slot is asked for again", "slots: taken once is taken throughout the call",
        SlotChoice.note, never("throughout"),
        test_slot_rounds.test_a_call_that_does_not_wait_asks_for_no_slot_again_that_was_taken,
    ),
    Mutant(
        "a waiter asks for no taken slot again",
        "slots: taken throughout a call, not a wait",
        SlotChoice.note, always("throughout"),
        test_slot_rounds.test_a_waiter_asks_for_a_slot_that_came_free_during_its_wait,
    ),
    Mutant(
        "a known slot is asked for again and again", "slots: the one released last is tried once",
        SlotChoice.note, without("self._known = None"),
        test_slot_rounds.test_the_slot_that_the_process_released_last_is_asked_for_first,
    ),
    Mutant(
        "a slot beyond the limit", "slots: none beyond the limit of this client",
        SlotChoice.resource, never("slot >= self.limit"),
        test_slot_rounds.test_a_slot_beyond_a_smaller_limit_is_not_asked_for,
    ),
    Mutant(
        "the released slots of every name", "slots: those of 1,000 names are remembered",
        ReleasedSlots.add, without("self._slots.clear()"),
        test_slot_rounds.test_the_slots_of_a_limited_number_of_names_are_remembered,
    ),
    Mutant(
        "refused beside a free slot", "slots: asked again at once while one is open",
        Wait._may_take_another, never("self.slots.is_open"),
        test_slot_rounds.test_a_client_asks_for_the_slot_that_a_refusal_shows_as_free,
    ),
    Mutant(
        "a few attempts for slots, as for a lock", "slots: each that may be free is asked for",
        Wait.goes_on,
        instead(
            "self._may_take_another(attempt)",
            "self._may_take_another(attempt) and self.lost < SPLIT_ROUNDS",
        ),
        test_slot_rounds.test_a_call_asks_for_each_slot_that_may_be_free,
    ),
    Mutant(
        "refused after a stall", "slots: attempts for other slots are bounded by their number",
        Wait.goes_on, never("not attempt.split"),
        test_slot_rounds.test_a_client_asks_for_the_free_slot_also_after_a_stall,
    ),
    Mutant(
        "asked again although all are taken", "slots: refused once all are taken on a majority",
        Wait._may_take_another, always("self.slots.is_open"),
        test_slot_rounds.test_a_refusal_needs_one_round_where_all_are_taken,
    ),
    Mutant(
        "asked again without a quorum", "slots: without a quorum, no slot is known to be open",
        Wait._may_take_another, always("not attempt.unreachable"),
        test_slot_rounds.test_a_waiter_without_a_quorum_pauses,
    ),
    Mutant(
        "a wrong guess is a wait", "slots: a wrong guess is no wait", Wait._waited,
        always("self.paused"), test_slot_rounds.test_a_wrong_guess_of_a_slot_is_no_wait,
    ),
    Mutant(
        "a waiter pauses beside a free slot", "slots: asked again at once while one is open",
        Wait.pause, never("self._may_take_another(attempt)"),
        test_slot_rounds.test_it_asks_at_once_also_where_it_waits,
    ),
    # Calls.
    Mutant(
        "a call with a slot is not heard", "slots: a call names the slot", Waiters.call,
        always("waiter is None or not slot.isdigit()"),
        test_waiters_for_slots.test_a_call_names_a_slot,
    ),
    Mutant(
        "a called slot is asked for twice", "slots: a call is about the next round",
        Waiter.ask, without("self.called_slot = None"),
        test_waiters_for_slots.test_a_round_ends_what_a_call_has_named,
    ),
    Mutant(
        "foreign slots are cut", "slots: only a value of ours is cut",
        "refuse", lua("lasts > MAX_TTL and is_known", "lasts > MAX_TTL"),
        test_slot_rounds.test_a_slot_that_lasts_longer_than_max_ttl_is_cut_if_it_is_ours,
    ),
    Mutant(
        "all slots are shown as free", "slots: a refusal shows which are taken",
        "refuse", lua("holder and '1' or '0'", "'0'"),
        test_slot_rounds.test_it_asks_at_once_also_where_it_waits,
    ),
    Mutant(
        "a refusal beside a free slot does not show it", "slots: a refusal shows which are taken",
        "refuse", lua("(holder and '1' or '0')", "'1'"),
        test_slot_rounds.test_a_client_asks_for_the_slot_that_a_refusal_shows_as_free,
    ),
    Mutant(
        "a waiter for a slot is refused as if it did not wait", "slots: waiters have one queue",
        "refuse", lua("has_waiters or waiter ~= ''", "has_waiters"),
        test_script_rules.a_waiter_for_a_slot_stands_in_the_queue,
    ),
    Mutant(
        "a release of a slot calls no waiter", "slots: a release calls the next without a turn",
        "release", lua("call_first(queue, now, '', nil, #free, free)"),
        test_slot_rounds.test_waiters_for_several_slots_are_served_in_order,
    ),
)  # fmt: skip

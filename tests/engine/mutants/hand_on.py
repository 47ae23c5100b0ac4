"""Rules of locks that are handed on."""

from __future__ import annotations

from functools import partial

from redlock_django.engine import hand_on, validity
from redlock_django.engine.hand_on import _Swapping
from redlock_django.engine.protocol.commands import Release, Swap
from tests.engine import test_script_rules, test_swaps
from tests.engine.lua_mutation import lua
from tests.engine.mutants.mutant import Mutant
from tests.engine.mutation import always, argument, instead, never, without

MUTANTS: tuple[Mutant, ...] = (
    # The script.
    Mutant(
        "a swap compares no token", "hand-on: only the lock with the old token is replaced",
        "ownership", lua("if lock and lock:sub(1, length) ~= own then", "if false then"),
        test_swaps.test_the_token_is_compared_whole,
    ),
    Mutant(
        "a swap compares the token without its end", "hand-on: the whole token is compared",
        "swap", lua("not_held(4, old .. ' ', 33)", "not_held(4, old, 32)"),
        test_swaps.test_the_token_is_compared_whole,
    ),
    Mutant(
        "a swap creates a lock", "hand-on: no lock is set where none is",
        "swap", lua("if absent > 0 then", "if false then", (".. seen[5]", ".. (seen[5] or '')")),
        test_swaps.test_a_ticket_of_a_lock_that_has_ended_is_too_late,
    ),
    Mutant(
        "a used ticket looks late", "hand-on: a tombstone shows who has used a ticket",
        "swap", lua(
            "redis.call('SET', KEYS[3], ARGV[2]:sub(1, 32) .. ends .. seen[5], 'PX', ARGV[6])"
        ),
        test_swaps.test_a_ticket_is_used_once,
    ),
    Mutant(
        "a late swap sets a released token", "hand-on: no swap to a token that was released",
        "swap", lua("seen[3] or seen[4]", "seen[3]"),
        test_swaps.test_a_swap_that_arrives_after_the_release_of_its_token_sets_nothing,
    ),
    Mutant(
        "an undo leaves the ticket used", "hand-on: an undo makes the ticket good again",
        "restore", lua("redis.call('DEL', KEYS[1])"),
        test_swaps.test_a_taker_without_a_quorum_restores_the_ticket,
    ),
    Mutant(
        "a swap shortens", "hand-on: a hand-on never shortens a lock",
        "swap", lua("ARGV[5] == '1' and", "true and"),
        test_swaps.test_a_hand_on_never_shortens_a_lock,
    ),
    Mutant(
        "a taker has the TTL of its ticket", "hand-on: a lock that was taken has the taker's TTL",
        "swap", lua("ARGV[5] == '1' and", "false and"),
        test_swaps.test_the_lock_of_a_taker_that_dies_ends_with_its_ttl,
    ),
    Mutant(
        "a taker that failed shortens the ticket", "hand-on: an undo restores the ticket's time",
        "restore", lua("tonumber(ends) - now_ms", "redis.call('PTTL', key)"),
        test_swaps.test_a_taker_that_fails_does_not_shorten_the_ticket,
    ),
    Mutant(
        "an undo undoes the swap of another client", "hand-on: an undo is of its own swap",
        "restore", lua("if by ~= value:sub(1, 32) then", "if false then"),
        test_swaps.test_an_undo_leaves_what_another_client_has_taken,
    ),
    Mutant(
        "an undo takes a lock", "hand-on: an undo restores only its own token",
        "restore", lua("lock == value and before", "lock and before"),
        test_swaps.test_an_undo_restores_only_its_own_token,
    ),
    Mutant(
        "a late swap follows its undo", "hand-on: an undo buries its token",
        "restore", lua("redis.call('SET', KEYS[3], '1', 'PX', ARGV[3])"),
        test_swaps.test_a_swap_that_arrives_after_its_undo_sets_nothing,
    ),
    Mutant(
        "an undo is not in the index", "hand-on: the index shows when it ends",
        "restore", lua("add_to_index(now_ms, left, ARGV[3 + index], 'CH')"),
        test_swaps.test_the_index_shows_when_what_was_restored_ends,
    ),
    Mutant(
        "a swap is not in the index", "hand-on: the index shows when it ends",
        "swap", lua("add_to_index(now_ms, left, ARGV[6 + index], 'CH')"),
        test_swaps.test_the_index_shows_when_what_was_handed_on_ends,
    ),
    Mutant(
        "a swap without a marker", "hand-on: only trusted masters count",
        "swap", lua("seen[1] ~= ARGV[#ARGV - 1] or now < tonumber(ARGV[#ARGV])", "false"),
        test_swaps.test_a_swap_is_no_vote_of_a_master_that_is_not_trusted,
    ),
    Mutant(
        "a tombstone is no answer", "hand-on: a used ticket is refused by a majority", Swap.vote,
        never("status == BURIED"), test_swaps.test_a_ticket_is_used_once,
    ),
    # The giver.
    Mutant(
        "the giver and the taker have one token", "hand-on: the giver's token is worth nothing",
        hand_on.hand_on, instead(
            "replace(lease, token=token, holder=holder, ttl=ttl, started=now)",
            "replace(lease, holder=holder, ttl=ttl, started=now)",
        ),
        test_swaps.test_the_taker_has_the_fence_of_the_giver,
    ),
    Mutant(
        "a giver without a quorum has lost its lock", "hand-on: an undone hand-on leaves the lock",
        hand_on.hand_on, without("yield from swap.undo()", nth=2),
        test_swaps.test_without_a_quorum_the_giver_keeps_its_lease,
    ),
    Mutant(
        "an interrupted giver keeps nothing", "hand-on: an interrupt undoes the swap",
        hand_on.hand_on, without("yield from swap.undo()", nth=1),
        test_swaps.test_an_interrupt_of_the_giver_leaves_it_its_lease,
    ),
    Mutant(
        "handed on by a minority", "hand-on: a majority must have the new token",
        hand_on.hand_on, always("swap.won and ..."),
        test_swaps.test_without_a_quorum_the_giver_keeps_its_lease,
    ),
    Mutant(
        "a lost lock is handed on", "hand-on: a majority must have the old token",
        hand_on.hand_on, never("swap.denied"),
        test_swaps.test_a_lost_lease_is_not_handed_on,
    ),
    Mutant(
        "a lease that has ended is still held", "hand-on: only before the end of the giver's lease",
        hand_on.hand_on, never("now >= lease.until", nth=2),
        test_swaps.test_an_answer_after_the_end_of_the_lease_hands_nothing_on,
    ),
    Mutant(
        "handed on after its end", "hand-on: only before the end of the giver's lease",
        hand_on.hand_on, always("now < lease.until"),
        test_swaps.test_an_answer_after_the_end_of_the_lease_hands_nothing_on,
    ),
    Mutant(
        "a giver leaves its token on a minority", "hand-on: nothing of the giver is left",
        hand_on.hand_on, without("yield left"),
        test_swaps.test_the_giver_leaves_nothing_where_its_token_was_not_replaced,
    ),
    Mutant(
        "a giver on other links writes no tombstone", "hand-on: a late acquire sets nothing",
        _Swapping.left, argument(Release, bury="False"),
        partial(
            test_swaps.test_an_acquire_that_arrives_after_a_hand_on_on_other_links_sets_nothing,
            bury=True,
        ),
    ),
    Mutant(
        "a slot that was handed on passes no turn on", "hand-on: its waiter leaves as any other",
        _Swapping.left, argument(Release, limit="1"),
        test_swaps.test_a_waiter_that_hands_its_slot_on_passes_its_turn_on,
    ),
    # The taker.
    Mutant(
        "a minimum hold begins again", "hand-on: the rest of a minimum hold goes with the lock",
        validity.end_of_min_hold, instead("max(0.0, handed.until - left)", "0.0"),
        test_swaps.test_a_minimum_hold_goes_on_at_the_time_that_the_masters_show,
    ),
    Mutant(
        "a minority takes the lock", "hand-on: a majority must have the taker's token",
        hand_on.resume, always("swap.won and ..."),
        test_swaps.test_a_taker_without_a_quorum_restores_the_ticket,
    ),
    Mutant(
        "taken after its end", "hand-on: only before the end of the taker's lease",
        hand_on.resume, always("now < taken.until"),
        test_swaps.test_a_taker_whose_answers_come_after_its_ttl_holds_nothing,
    ),
    Mutant(
        "a taker that failed keeps what it has", "hand-on: a minority is undone",
        hand_on.resume, without("yield from swap.undo()", nth=2),
        test_swaps.test_a_taker_without_a_quorum_restores_the_ticket,
    ),
    Mutant(
        "two takers give up together", "hand-on: takers that split the masters try again",
        hand_on.resume, never("swap.is_split"),
        test_swaps.test_takers_that_split_the_masters_try_again_some_times,
    ),
    Mutant(
        "two takers are one", "hand-on: a ticket is used if one taker has a majority",
        _Swapping.is_refused, instead("tally.rival_won", "tally.denied"),
        test_swaps.test_a_taker_between_two_others_tries_again,
    ),
    Mutant(
        "a lock that ended is tried again", "hand-on: no more rounds for a lock that has ended",
        _Swapping.is_refused, never("not tally.majority(...)"),
        test_swaps.test_a_ticket_whose_lock_is_left_on_a_minority_is_too_late,
    ),
    Mutant(
        "a taker that lost leaves the ticket's token", "hand-on: nothing is in the holder's way",
        hand_on.resume, without("yield swap.release()"),
        test_swaps.test_a_taker_that_lost_leaves_nothing_in_the_way_of_the_holder,
    ),
    Mutant(
        "links that were closed while idle refuse", "hand-on: stale links are asked again",
        hand_on.resume, never("swap.tally.only_stale"),
        test_swaps.test_a_taker_whose_links_were_closed_while_idle_tries_again,
    ),
    Mutant(
        "an interrupted taker keeps what it has", "hand-on: an interrupt undoes the swap",
        hand_on.resume, without("yield from swap.undo()", nth=1),
        test_swaps.test_an_interrupt_of_a_taker_restores_the_ticket,
    ),
    Mutant(
        "a taker of a slot that lost frees no slot", "hand-on: a release of a slot names it",
        _Swapping.release, argument(Release, limit="1"),
        test_swaps.test_a_taker_of_a_slot_that_lost_calls_a_waiter_for_it,
    ),
    Mutant(
        "swap is ready at once", "hand-on: only trusted masters count",
        "swap", lua(" or now < tonumber(ARGV[#ARGV])"),
        test_script_rules.no_script_counts_a_master_before_its_time,
    ),
    Mutant(
        "a swap compares the beginning of a token", "hand-on: the whole token is compared",
        "swap", lua("not_held(4, old .. ' ', 33)", "not_held(4, old:sub(1, 31), 31)"),
        test_swaps.test_the_token_is_compared_whole,
    ),
    Mutant(
        "a swap ignores that the token was used", "hand-on: a ticket is used once",
        "swap", lua("seen[3] or seen[4]", "seen[4]"),
        test_swaps.test_a_ticket_is_used_once,
    ),
    Mutant(
        "a swap does not say who used the token", "hand-on: a tombstone shows who used a ticket",
        "swap", lua("seen[3] and seen[3]:sub(1, 32) or ''", "''"),
        test_swaps.test_a_taker_between_two_others_tries_again,
    ),
    Mutant(
        "an undo prolongs the lock", "hand-on: an undo restores the ticket's time",
        "restore", lua("tonumber(ends) - now_ms", "100000"),
        test_swaps.test_an_undo_restores_what_the_lock_had_before,
    ),
)  # fmt: skip

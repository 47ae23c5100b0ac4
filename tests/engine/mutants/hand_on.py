"""Rules of locks that are handed on."""

from __future__ import annotations

from redlock_django.engine import refusal, rounds, validity
from redlock_django.engine.attempt import Attempt, Wait
from redlock_django.engine.protocol.commands import Take
from redlock_django.engine.validity import RedlockLease
from tests.engine import test_hand_on_rounds, test_script_rules
from tests.engine.lua_mutation import lua
from tests.engine.mutants.mutant import Mutant
from tests.engine.mutation import always, argument, instead, never, together, without

MUTANTS: tuple[Mutant, ...] = (
    # The script.
    Mutant(
        "a hand-on compares no token", "hand-on: only the lock with the expected token is set",
        "ownership", lua("if lock and lock:sub(1, length) ~= own then", "if false then"),
        test_hand_on_rounds.test_the_token_is_compared_whole,
    ),
    Mutant(
        "a hand-on compares the token without its end", "hand-on: the whole token is compared",
        "take", lua("ARGV[3] .. ' ', 33", "ARGV[3], 32"),
        test_hand_on_rounds.test_the_token_is_compared_whole,
    ),
    Mutant(
        "a hand-on compares the beginning of a token", "hand-on: the whole token is compared",
        "take", lua("ARGV[3] .. ' ', 33", "ARGV[3]:sub(1, 31), 31"),
        test_hand_on_rounds.test_the_token_is_compared_whole,
    ),
    Mutant(
        "a ticket sets a lock that has ended", "hand-on: no lock is set where none is",
        "take", lua("if absent > 0 then", "if false then", (".. seen[5]", ".. (seen[5] or '')")),
        test_hand_on_rounds.test_a_ticket_of_a_lock_that_has_ended_is_too_late,
    ),
    Mutant(
        "a used ticket looks late", "hand-on: a tombstone shows who has used a ticket",
        "take", lua(
            "redis.call('SET', KEYS[4], ARGV[2]:sub(1, 32) .. ends .. seen[5], 'PX', FENCE_TTL)"
        ),
        test_hand_on_rounds.test_a_ticket_is_used_once,
    ),
    Mutant(
        "a released token is set", "hand-on: no token is set after its release",
        "take", lua("if seen[3] then", "if false then"),
        test_hand_on_rounds.test_a_token_that_arrives_after_its_release_is_not_set,
    ),
    Mutant(
        "a ticket is used twice", "hand-on: a ticket is used once",
        "take", lua("if seen[4] then", "if false then"),
        test_hand_on_rounds.test_a_ticket_is_used_once,
    ),
    Mutant(
        "a master does not name the taker", "hand-on: a tombstone shows who has used a ticket",
        "take", lua("seen[4]:sub(1, 32)", "''"),
        test_hand_on_rounds.test_a_taker_between_two_others_tries_again,
    ),
    Mutant(
        "a taker has the TTL of its ticket", "hand-on: a lock that was taken has the taker's TTL",
        "take", lua("redis.call('SET', KEYS[4 + index], ARGV[2], 'PX', ARGV[4])",
                    "redis.call('SET', KEYS[4 + index], ARGV[2], 'PX', rest)"),
        test_hand_on_rounds.test_the_lock_of_a_taker_that_dies_ends_with_its_ttl,
    ),
    Mutant(
        "a lock that is handed on is not in the index", "hand-on: the index shows when it ends",
        "take", lua("add_to_index(tonumber(ARGV[4]), KEYS[4 + index])"),
        test_hand_on_rounds.test_the_index_shows_when_what_was_handed_on_ends,
    ),
    Mutant(
        "a hand-on without a marker", "hand-on: only trusted masters count",
        "take", lua("seen[1] ~= ARGV[#ARGV - 1] or now < tonumber(ARGV[#ARGV])", "false"),
        test_hand_on_rounds.test_a_master_that_is_not_trusted_hands_nothing_on,
    ),
    Mutant(
        "a hand-on is ready at once", "hand-on: only trusted masters count",
        "take", lua(" or now < tonumber(ARGV[#ARGV])"),
        test_script_rules.no_script_counts_a_master_before_its_time,
    ),
    # The script of its undo.
    Mutant(
        "an undo leaves the ticket used", "hand-on: an undo makes the ticket good again",
        "restore", lua("redis.call('DEL', KEYS[1])"),
        test_hand_on_rounds.test_a_taker_without_a_quorum_restores_the_ticket,
    ),
    Mutant(
        "a taker that failed shortens the ticket", "hand-on: an undo restores the ticket's time",
        "restore", lua("tonumber(ends) - math.floor(now / 1000)", "redis.call('PTTL', key)"),
        test_hand_on_rounds.test_a_taker_that_fails_does_not_shorten_the_ticket,
    ),
    Mutant(
        "an undo prolongs the lock", "hand-on: an undo restores the ticket's time",
        "restore", lua("tonumber(ends) - math.floor(now / 1000)", "100000"),
        test_hand_on_rounds.test_an_undo_restores_what_the_lock_had_before,
    ),
    Mutant(
        "an undo restores the token of another taker", "hand-on: an undo is of its own token",
        "restore", lua("if by ~= value:sub(1, 32) then", "if false then"),
        test_hand_on_rounds.test_an_undo_leaves_what_another_client_has_taken,
    ),
    Mutant(
        "an undo takes a lock", "hand-on: an undo restores only its own lock",
        "restore", lua("lock == value and before", "lock and before"),
        test_hand_on_rounds.test_an_undo_restores_only_its_own_token,
    ),
    Mutant(
        "a late token follows its undo", "hand-on: an undo buries its token",
        "restore", lua("redis.call('SET', KEYS[3], '1', 'PX', MAX_TTL)"),
        test_hand_on_rounds.test_a_token_that_arrives_after_its_undo_is_not_set,
    ),
    Mutant(
        "an undo is not in the index", "hand-on: the index shows when it ends",
        "restore", lua("add_to_index(left, key)"),
        test_hand_on_rounds.test_the_index_shows_when_what_was_restored_ends,
    ),
    # The votes.
    Mutant(
        "a used ticket has no taker", "hand-on: a used ticket is refused by a majority", Take.vote,
        instead("rest", "ENDED", nth=2), test_hand_on_rounds.test_a_ticket_is_used_once,
    ),
    Mutant(
        "a lock that ended has no rival", "hand-on: no more rounds for a lock that has ended",
        Take.vote, instead("vote._replace(rival=ENDED)", "vote._replace(rival=None)"),
        test_hand_on_rounds.test_a_ticket_whose_lock_is_left_on_a_minority_is_too_late,
    ),
    Mutant(
        "two takers are one", "hand-on: a ticket is used if one taker has a majority",
        Attempt.split, instead("last.rival_won", "last.denied"),
        test_hand_on_rounds.test_a_taker_between_two_others_tries_again,
    ),
    Mutant(
        "a taker that took a minority has used the ticket",
        "hand-on: a ticket is used if one taker has a majority",
        refusal.refusal_of_ticket, together(
            instead("tally.rival_won", "tally.denied", nth=1),
            instead("tally.rival_won", "tally.denied"),
        ),
        test_hand_on_rounds.test_takers_that_split_the_masters_try_again_some_times,
    ),
    Mutant(
        "a ticket of a lock that ended is used", "hand-on: a ticket is used if a taker had it",
        refusal.refusal_of_ticket, always("not tally.majority(ended) and ..."),
        test_hand_on_rounds.test_a_ticket_of_a_lock_that_has_ended_is_too_late,
    ),
    Mutant(
        "a lock that ended on half of the masters is in transit",
        "hand-on: no more rounds for a lock that has ended",
        refusal.refusal_of_ticket, never("not tally.majority(tally.masters - ended)"),
        test_hand_on_rounds.test_takers_that_split_the_masters_try_again_some_times,
    ),
    Mutant(
        "the giver hears of a ticket", "hand-on: a lost lock is not handed on",
        refusal.refused_ticket, never("expected.home is not None"),
        test_hand_on_rounds.test_a_lost_lease_is_not_handed_on,
    ),
    # The rounds.
    Mutant(
        "what failed keeps the new token", "hand-on: an undo restores the expected token",
        Attempt.undo, never("isinstance(ask, Take)"),
        test_hand_on_rounds.test_without_a_quorum_the_giver_keeps_its_lease,
    ),
    Mutant(
        "a taker that lost leaves the ticket's token", "hand-on: nothing is in the holder's way",
        Attempt.undo, always("not tally.rival_won"),
        test_hand_on_rounds.test_a_taker_that_lost_leaves_nothing_in_the_way_of_the_holder,
    ),
    Mutant(
        "a taker of a slot that lost frees no slot", "hand-on: a release of a slot names it",
        Wait.next_attempt, argument(Take, limit="1"),
        test_hand_on_rounds.test_a_taker_of_a_slot_that_lost_calls_a_waiter_for_it,
    ),
    Mutant(
        "a taker of a slot chooses one", "hand-on: the slot of the ticket is taken",
        rounds.acquire, always("expected is None"),
        test_hand_on_rounds.test_a_taker_of_a_slot_chooses_none,
    ),
    Mutant(
        "a slot that was taken has no limit", "hand-on: the slot of the ticket is taken",
        Wait.lease, argument(RedlockLease, limit="1"),
        test_hand_on_rounds.test_a_slot_is_taken_with_its_limit,
    ),
    Mutant(
        "a lock that was taken has no givers", "hand-on: a lock shows who has handed it on",
        Wait.lease, without("lease.givers = expected.givers"),
        test_hand_on_rounds.test_a_lock_shows_who_has_handed_it_on,
    ),
    Mutant(
        "a minimum hold ends with its ticket", "hand-on: the rest of a minimum hold is kept",
        Wait.lease, without("lease.earliest_end = ..."),
        test_hand_on_rounds.test_a_minimum_hold_goes_on_at_the_time_that_the_masters_show,
    ),
    Mutant(
        "a minimum hold begins again", "hand-on: the rest of a minimum hold goes with the lock",
        validity.end_of_min_hold, instead("max(0.0, handed.until - left)", "0.0"),
        test_hand_on_rounds.test_a_minimum_hold_goes_on_at_the_time_that_the_masters_show,
    ),
    Mutant(
        "a hand-on prolongs a minimum hold", "hand-on: a giver keeps its minimum hold",
        validity.end_of_min_hold, never("handed.home is not None"),
        test_hand_on_rounds.test_a_giver_keeps_its_minimum_hold,
    ),
    Mutant(
        "distant takers have no time", "hand-on: takers that split the masters try again",
        Wait.limit, always("self.expected is None"),
        test_hand_on_rounds.test_distant_takers_try_again_as_often_and_pause_longer,
    ),
    Mutant(
        "a giver asks as long as a taker", "hand-on: a giver gives up before its lease ends",
        Wait.limit, never("self.expected.home is not None"),
        test_hand_on_rounds.test_a_giver_without_a_quorum_gives_up_before_its_lease_ends,
    ),
    Mutant(
        "masters that forgot the lock are other takers", "hand-on: an error shows what is wrong",
        refusal.refusal_of_ticket, never("ended == len(tally.refusals)"),
        test_hand_on_rounds.test_a_ticket_that_no_other_client_has_used_shows_which_masters_fail,
    ),
    Mutant(
        "distant takers pause as near ones", "hand-on: takers undo as far apart as they are",
        Wait.pause, instead("(now - started) / NEAR", "0.0"),
        test_hand_on_rounds.test_distant_takers_try_again_as_often_and_pause_longer,
    ),
    Mutant(
        "a pause has no end", "hand-on: takers pause at most two seconds",
        Wait.pause, instead("LONGEST_PAUSE", "999.0"),
        test_hand_on_rounds.test_distant_takers_try_again_as_often_and_pause_longer,
    ),
    Mutant(
        "two takers give up together", "hand-on: takers that split the masters try again",
        Attempt.split, instead("not (self.late or ...)", "False"),
        test_hand_on_rounds.test_takers_that_split_the_masters_try_again_some_times,
    ),
    Mutant(
        "a closed undo sends", "rounds: after GeneratorExit nothing can be undone",
        rounds.acquire, instead("GeneratorExit", "ZeroDivisionError", nth=2),
        test_hand_on_rounds.test_a_taker_that_is_closed_during_its_undo_asks_nothing_more,
    ),
    Mutant(
        "a second interrupt keeps what was taken", "hand-on: an interrupt of an undo repeats it",
        rounds.acquire, without("yield replace(undo, ...)"),
        test_hand_on_rounds.test_an_interrupt_of_the_giver_leaves_it_its_lease,
    ),
)  # fmt: skip

"""Rules of when a client asks again, and its place in the queues."""

from __future__ import annotations

from redlock_django.engine import (
    pauses,
)
from redlock_django.engine.attempt import Wait
from tests.engine import (
    schedules,
    test_queue,
    test_rounds,
    test_safety,
)
from tests.engine.mutants.mutant import Mutant
from tests.engine.mutation import (
    always,
    instead,
    never,
)

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "a split vote is a refusal", "quorum: a split vote is asked again", Wait.goes_on,
        never("attempt.split", nth=1), test_rounds.test_a_split_vote_that_is_over_is_won,
    ),
    Mutant(
        "split votes without end", "quorum: a split vote is asked again for a limited time",
        Wait.goes_on,
        always("now < self.limit"),
        test_rounds.test_split_votes_are_asked_again_until_their_time_is_over,
    ),
    Mutant(
        "a pause past the end", "rounds: a pause ends in time", Wait.pause,
        instead("min(delay, end - now)", "delay"),
        test_rounds.test_a_pause_between_split_votes_ends_in_time,
    ),
    Mutant(
        "one token for all rounds", "rounds: a fresh token for each", Wait.next_attempt,
        instead("next(client.tokens)", "'0' * 32"),
        test_safety.test_a_late_undo_cannot_free_the_round_after_it,
    ),
    Mutant(
        "one proposal for all rounds", "rounds: a proposal is the present wall clock",
        Wait.next_attempt,
        instead("next(client.proposals)", "(self.ticket or next(client.proposals))"),
        test_rounds.test_every_round_has_a_fresh_token_and_a_new_proposal,
    ),
    Mutant(
        "cancelled without an undo", "rounds: a cancelled round releases",
        Wait.undo_interrupted, always("self.resting"),
        schedules.interrupted_after_the_grants_nothing_is_left,
    ),
    Mutant(
        "pauses are only random", "rounds: retry when the refusal's PTTL has passed",
        pauses._until_expiry,
        always("left is None"), test_rounds.test_no_pause_is_longer_than_the_lock_in_the_way,
    ),
    Mutant(
        "the ticket is by the client's own clock", "queue: every master has the same order",
        pauses.clock_lag,
        instead("least if ... else 0", "0"),
        test_queue.test_a_place_that_a_wrong_clock_gains_within_the_skew_is_lost_in_the_next_round,
    ),
    Mutant(
        "a clock near the skew is near", "queue: every master has the same order",
        pauses.clock_lag,
        instead("tally.skew / 2", "tally.skew * 2"),
        test_queue.test_a_place_that_a_clock_off_by_less_than_the_skew_gains_is_lost_as_well,
    ),
    Mutant(
        "a stopped waiter has a wrong clock", "queue: the ticket is the first proposal",
        pauses.clock_lag,
        instead("most - round(...)", "most"),
        test_queue.test_a_waiter_that_was_stopped_in_a_round_does_not_have_a_wrong_clock,
    ),
    Mutant(
        "a minority decides that a clock is wrong", "queue: a majority tells the time",
        pauses.clock_lag,
        never("not tally.majority(...)"),
        test_queue.test_a_minority_does_not_decide_that_a_clock_is_wrong,
    ),
    Mutant(
        "all that share the votes ask at once", "queue: a waiter in most queues asks seldom",
        Wait.pause,
        never("queueing and attempt.queued"),
        test_queue.test_waiters_that_share_the_votes_do_not_ask_again_at_once,
    ),
    Mutant(
        "a waiter in no queue asks seldom", "queue: a waiter in few queues asks at once if split",
        Wait.pause,
        always("attempt.queued"),
        test_queue.test_waiters_that_share_the_votes_do_not_ask_again_at_once,
    ),
    Mutant(
        "a crowd that is not answered asks at once", "queue: without a quorum, pauses are long",
        pauses.retry_delays,
        never("tally.unreachable"),
        test_queue.test_without_a_queue_the_pause_is_random,
    ),
    Mutant(
        "a turn that was begun is watched late", "queue: each turn is watched closely",
        pauses._until_expiry,
        never("tally.majority(sum(...))"),
        test_queue.test_turns_that_follow_each_other_unused_cost_little_more_than_a_turn_each,
    ),
    Mutant(
        "a crowd watches each turn", "queue: few waiters ask when a watched turn is over",
        pauses._until_expiry,
        never("tally.majority(len(turns))"),
        test_queue.test_a_turn_that_another_waiter_watches_is_not_watched_by_a_crowd,
    ),
    Mutant(
        "a crowd asks at the same moment", "queue: waiters that came together ask one by one",
        pauses._prolonged,
        instead("(longest - pause) * ahead / (ahead + CROWD)", "min(ahead / 50, longest - pause)"),
        lambda: test_queue.test_waiters_that_came_at_the_same_moment_ask_one_after_the_other(False),
    ),
    Mutant(
        "waiters poll", "queue: a waiter that will be called asks seldom", pauses.retry_delays,
        never("tally.majority(len(queued))"),
        test_queue.test_a_waiter_that_will_be_called_asks_again_in_seconds,
    ),
    Mutant(
        "a minority will call", "queue: a waiter in too few queues asks often",
        pauses.retry_delays,
        always("tally.majority(len(queued))"),
        test_queue.test_a_waiter_that_only_a_minority_has_in_its_queue_will_not_be_called,
    ),
)  # fmt: skip

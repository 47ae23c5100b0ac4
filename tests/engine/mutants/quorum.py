"""Rules of how votes are counted, for how long a lock is valid, and its fence."""

from __future__ import annotations

from functools import partial

from redlock_django.engine import (
    fencing,
    quorum,
    validity,
)
from redlock_django.engine.quorum import Tally
from tests.engine import (
    schedules,
    test_fencing,
    test_minimum_hold,
    test_quorum,
    test_rounds,
)
from tests.engine.mutants.mutant import Mutant
from tests.engine.mutation import (
    always,
    at_start,
    instead,
    never,
    returns,
)

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "quorum of half", "quorum: more than half of the masters", quorum.quorum,
        returns("max(1, masters // 2)"), schedules.two_halves_do_not_both_hold,
    ),
    Mutant(
        "quorum of those that are up", "quorum: N is the configured number of masters",
        Tally._judge,
        at_start("self.need = quorum(self.masters - self.failed)"),
        schedules.masters_that_are_down_count_in_the_number,
    ),
    Mutant(
        "a master votes twice", "quorum: the first vote of a master counts", Tally.cast,
        instead(
            "self.votes[master] is None",
            "vote.ballot is not Ballot.FAILED or not self.votes[master]",
        ),
        test_quorum.test_the_first_vote_of_a_master_counts,
    ),
    Mutant(
        "any clock votes", "quorum: a clock too far from the median has no vote", Tally._near,
        always("abs(...) <= self.skew"),
        schedules.a_master_whose_clock_ran_ahead_makes_no_second_holder,
    ),
    Mutant(
        "one stale connection is enough", "quorum: asked again only if a quorum is possible",
        vars(Tally)["only_stale"].fget, instead("len(lasting)", "0"),
        test_rounds.test_a_majority_that_failed_for_other_reasons_is_not_asked_again,
    ),
    Mutant(
        "failed masters refused", "quorum: an undo where the reply to a refused round failed",
        vars(Tally)["unsure"].fget, instead("self.reached.difference(...)", "frozenset()"),
        test_quorum.test_what_a_refused_round_may_have_reached,
    ),
    Mutant(
        "silent masters are unsure", "quorum: no undo where a late grant is released by the links",
        vars(Tally)["unsure"].fget, never("vote is None"),
        test_quorum.test_what_a_refused_round_may_have_reached,
    ),
    Mutant(
        "masters not asked are reached", "quorum: no undo where nothing was sent",
        vars(Tally)["asked"].fget, always("vote.sent"),
        test_quorum.test_what_a_refused_round_may_have_reached,
    ),
    Mutant(
        "any fences are unanimous", "fence: other fences take the long way",
        vars(Tally)["unanimous"].fget, always("len(said) == 1"),
        test_fencing.test_unanimous_fences_are_the_highest_and_stored_by_a_majority,
    ),
    Mutant(
        "unanimous in spite of a refusal", "fence: above those of refusals, too",
        vars(Tally)["unanimous"].fget, never("self.refused"),
        test_fencing.test_unanimous_fences_are_the_highest_and_stored_by_a_majority,
    ),
    Mutant(
        "unanimous with any clocks", "fence: a clock off the median has no say",
        vars(Tally)["unanimous"].fget, never("not self._clocks_agree"),
        test_fencing.test_unanimous_fences_are_the_highest_and_stored_by_a_majority,
    ),
    Mutant(
        "an interrupted count stays", "quorum: a vote that was stored before an interrupt counts",
        Tally.cast, instead("self._recount()", "None"),
        test_quorum.test_a_vote_counts_though_an_interrupt_struck_before,
    ),
    Mutant(
        "the earliest clock is forgotten", "quorum: clocks agree if all of them do", Tally.cast,
        never("time < self.earliest"), test_quorum.test_the_counters_are_those_of_the_votes,
    ),
    Mutant(
        "the latest clock is forgotten", "quorum: clocks agree if all of them do", Tally.cast,
        never("time > self.latest"), test_quorum.test_the_counters_are_those_of_the_votes,
    ),
    Mutant(
        "judged only by grants", "quorum: a round is lost once no quorum can grant", Tally.cast,
        never("self.refused + self.failed > self.spare"),
        partial(test_quorum.test_every_ballot_in_every_order, 4),
    ),
    Mutant(
        "a verdict waits for all", "quorum: a round returns at its verdict", Tally._judge,
        instead("self.granted >= self.need", "not self.outstanding and self.granted >= self.need"),
        test_rounds.test_a_round_is_won_before_the_slowest_master_has_answered,
    ),
    Mutant(
        "a verdict waits for no denial", "quorum: what a majority denies is lost, not unknown",
        Tally._judge, always("not self.may_be_denied"),
        partial(test_quorum.test_every_ballot_in_every_order, 3),
    ),
    Mutant(
        "no drift", "validity: 1 % and 2 ms less than the TTL", validity.drift,
        returns("0.0"), schedules.clocks_that_run_apart_make_no_second_holder,
    ),
    Mutant(
        "undo only what was granted", "rounds: an undo goes to all that may have granted",
        vars(Tally)["asked"].fget,
        instead("vote is None or ...", "vote is not None and vote.ballot is _GRANTED"),
        partial(
            test_rounds.test_an_interrupted_round_is_undone_where_it_may_be_granted,
            SystemExit,
        ),
    ),
    Mutant(
        "undo also what was refused", "rounds: no undo where it was surely refused",
        vars(Tally)["reached"].fget,
        always("not self.refused"),
        partial(
            test_rounds.test_an_interrupted_round_is_undone_where_it_may_be_granted,
            SystemExit,
        ),
    ),
    Mutant(
        "one master confirms for all", "fence: a majority has stored it",
        fencing.stored_by_majority,
        instead("tally.majority(...)", "any(numbers[index] >= fence for numbers in stored)"),
        schedules.a_fence_of_a_crashed_writer_is_written_to_a_majority,
    ),
    Mutant(
        "refusals have no say", "fence: above those of refusals, too", fencing.highest,
        never("vote.ballot is Ballot.REFUSED and ..."), test_fencing.test_refusals_count_plus_one,
    ),
    Mutant(
        "a poisoned refusal has a say", "fence: a refusal's is at most TIME + 2 skew",
        fencing._honest,
        always("skew is None"), test_fencing.test_a_refusal_far_ahead_of_its_own_clock_has_no_say,
    ),
    Mutant(
        "a wrong clock lifts the fence", "fence: a clock off the median has no say",
        fencing.highest,
        instead("tally.agreeing", "filter(None, tally.votes)"),
        test_fencing.test_a_clock_off_the_median_has_no_say,
    ),
    Mutant(
        "a minimum hold without drift", "minimum hold: clocks run apart", validity.with_drift,
        returns("seconds"),
        test_minimum_hold.test_the_lock_stays_long_enough_on_masters_whose_clocks_run_faster,
    ),
)  # fmt: skip

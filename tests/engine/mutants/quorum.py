"""Rules of how votes are counted, for how long a lock is valid, and its fence."""

from __future__ import annotations

from functools import partial

from redlock_django.engine import (
    fencing,
    quorum,
    validity,
)
from redlock_django.engine.quorum import Account, Tally
from tests.engine import (
    schedules,
    test_fast_path,
    test_fencing,
    test_minimum_hold,
    test_quorum,
    test_rounds,
)
from tests.engine.mutants.mutant import EVERY_ANSWER, Mutant, slowly
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
        at_start("self.need = quorum(self.masters - account.count(Ballot.FAILED))"),
        schedules.masters_that_are_down_count_in_the_number,
    ),
    Mutant(
        "a master votes twice", "quorum: the first vote of a master counts", Tally.cast,
        instead(
            "self._votes[master] is None",
            "vote.ballot is not Ballot.FAILED or not self._votes[master]",
        ),
        test_quorum.test_the_first_vote_of_a_master_counts,
    ),
    Mutant(
        "any clock votes", "quorum: a clock too far from the median has no vote", Account._near,
        always("abs(...) <= self.skew"),
        schedules.a_master_whose_clock_ran_ahead_makes_no_second_holder,
    ),
    Mutant(
        "one stale connection is enough", "quorum: asked again only if a quorum is possible",
        vars(Account)["only_stale"].fget, instead("lasting", "0"),
        test_rounds.test_a_majority_that_failed_for_other_reasons_is_not_asked_again,
    ),
    Mutant(
        "plain grants wait for all", "fast path: won with a quorum", Tally.grant,
        instead("not self._missing", "None not in self._votes"),
        partial(test_fast_path.test_fewer_grants_than_a_quorum_are_not_unanimous, 5),
    ),
    Mutant(
        "any fences are plain", "fast path: other fences take the long way", Tally.grant,
        instead("fences == self._shared", "type(self._shared) is tuple"), EVERY_ANSWER,
    ),
    Mutant(
        "any clocks are plain", "fast path: clocks that are off take the long way",
        Tally.grant, always("self._earliest <= time <= self._latest"),
        EVERY_ANSWER,
    ),
    Mutant(
        "a plain vote counts twice", "fast path: the first vote of a master counts",
        Tally.grant, always("self._votes[master] is None"),
        test_fast_path.test_random_answers_are_the_same_verdict,
    ),
    Mutant(
        "any rival is plain", "fast path: another rival takes the long way", Tally.refuse,
        instead("rival == self._shared", "type(self._shared) is bytes"), EVERY_ANSWER,
    ),
    Mutant(
        "a refusal after a grant is plain",
        "fast path: both a grant and a refusal take the long way",
        Tally.refuse, instead("self._shared is None", "type(self._shared) is not bytes"),
        EVERY_ANSWER,
    ),
    Mutant(
        "any clocks refuse plainly", "fast path: refusing clocks that are off take the long way",
        Tally.refuse, always("self._earliest <= time <= self._latest"), EVERY_ANSWER,
    ),
    Mutant(
        "a plain refusal counts twice", "fast path: the first vote of a master counts",
        Tally.refuse, always("self._votes[master] is None"),
        test_fast_path.test_random_answers_are_the_same_verdict,
    ),
    Mutant(
        "plain refusals wait for all", "fast path: lost once one rival has a majority",
        Tally.refuse, instead("not self._missing", "None not in self._votes"),
        test_fast_path.test_a_round_that_one_rival_wins_builds_no_votes,
    ),
    Mutant(
        "plain refusals deny nothing", "fast path: without rivals, a denied round is lost",
        Tally.refuse, always("self.rivals"),
        partial(test_fast_path.test_every_answer_of_many_masters_is_the_same_verdict, 6),
    ),
    Mutant(
        "plain refusals are grants", "fast path: no grant among plain refusals",
        vars(Tally)["grants"].fget, never("type(self._shared) is bytes"), EVERY_ANSWER,
    ),
    Mutant(
        "failed masters refused", "fast path: an undo where the reply to a refused round failed",
        vars(Tally)["unsure"].fget, always("... == self.masters"), EVERY_ANSWER,
    ),
    Mutant(
        "masters that refused plainly are reached", "fast path: no undo where it was refused",
        vars(Tally)["reached"].fget, never("type(vote) is tuple"), EVERY_ANSWER,
    ),
    Mutant(
        "a lost quorum is plain", "fast path: too few masters take the long way",
        Tally._is_spared, always("... >= self.need"), EVERY_ANSWER,
    ),
    Mutant(
        "a refusal is plain", "fast path: a refusal takes the long way", Tally._is_spared,
        always("vote.ballot is Ballot.FAILED"), EVERY_ANSWER,
    ),
    Mutant(
        "masters not asked are reached", "fast path: no undo where nothing was sent",
        Tally.cast, never("not vote.sent"), EVERY_ANSWER,
    ),
    Mutant(
        "a verdict waits for all", "quorum: a round returns at its verdict", Tally._judge,
        instead("granting >= self.need", "not outstanding and granting >= self.need"),
        partial(slowly, test_rounds.test_a_round_is_won_before_the_slowest_master_has_answered),
    ),
    Mutant(
        "a verdict waits for no denial", "quorum: what a majority denies is lost, not unknown",
        Tally._judge, always("not account.may_be_denied"),
        partial(test_quorum.test_every_ballot_in_every_order, 3),
    ),
    Mutant(
        "no drift", "validity: 1 % and 2 ms less than the TTL", validity.drift,
        returns("0.0"), schedules.clocks_that_run_apart_make_no_second_holder,
    ),
    Mutant(
        "undo only what was granted", "rounds: an undo goes to all that may have granted",
        vars(Account)["reached"].fget,
        instead("vote is None or ...", "vote is not None and vote.ballot is Ballot.GRANTED"),
        partial(
            test_rounds.test_an_interrupted_round_is_undone_where_it_may_be_granted,
            SystemExit,
        ),
    ),
    Mutant(
        "undo also what was refused", "rounds: no undo where it was surely refused",
        vars(Account)["reached"].fget,
        always("vote.ballot is not Ballot.REFUSED"),
        partial(
            test_rounds.test_an_interrupted_round_is_undone_where_it_may_be_granted,
            SystemExit,
        ),
    ),
    Mutant(
        "one master confirms for all", "fence: a majority has stored it",
        fencing.stored_by_majority,
        instead("account.majority(...)", "any(vote.fences[index] >= fence for vote in votes)"),
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
        instead("account.agreeing", "filter(None, account.votes)"),
        test_fencing.test_a_clock_off_the_median_has_no_say,
    ),
    Mutant(
        "a minimum hold without drift", "minimum hold: clocks run apart", validity.with_drift,
        returns("seconds"),
        test_minimum_hold.test_the_lock_stays_long_enough_on_masters_whose_clocks_run_faster,
    ),
)  # fmt: skip

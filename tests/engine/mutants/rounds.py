"""Rules of the rounds of acquire, extend and release."""

from __future__ import annotations

from functools import partial

from redlock_django.engine import (
    renewal,
    rounds,
    undo,
)
from redlock_django.engine.attempt import Attempt, Wait
from redlock_django.engine.quorum import Tally
from redlock_django.engine.steps import Round
from redlock_django.engine.validity import valid_until
from tests.engine import (
    schedules,
    test_minimum_hold,
    test_queue,
    test_rounds,
)
from tests.engine.mutants.mutant import Mutant
from tests.engine.mutation import (
    always,
    argument,
    instead,
    never,
    returns,
    without,
)
from tests.wire import (
    link_schedules,
)

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "rivals are not distinguished", "quorum: one other holder, or a split vote",
        Attempt.__init__,
        argument(Tally, rivals="False"), schedules.a_proven_holder_ends_the_round,
    ),
    Mutant(
        "stale connections refuse a lock", "quorum: asked again on new connections",
        Attempt.split, never("last.only_stale"),
        test_rounds.test_a_round_that_failed_for_stale_connections_is_asked_again,
    ),
    Mutant(
        "validity from the answer", "validity: starts before the first byte is sent",
        Attempt.end,
        argument(valid_until, started="now"),
        schedules.the_duration_of_a_round_shortens_the_validity,
    ),
    Mutant(
        "elapsed time is ignored", "validity: won only if some is left", Attempt.end,
        never("now >= self.until"), schedules.a_round_longer_than_the_ttl_holds_nothing,
    ),
    Mutant(
        "elapsed time is read before the confirm round",
        "validity: checked after the confirm round", rounds.acquire,
        instead("yield confirm", "((yield confirm), now)[1]"),
        test_rounds.test_validity_is_judged_after_the_confirm_round,
    ),
    Mutant(
        "no undo", "rounds: a lost round releases", Attempt.undo,
        instead("tally.unsure if is_left else tally.reached", "_NONE"),
        test_rounds.test_a_round_that_is_won_too_late_is_undone_everywhere,
    ),
    Mutant(
        "a closed protocol sends", "rounds: after GeneratorExit nothing can be undone",
        rounds.acquire,
        instead("GeneratorExit", "ZeroDivisionError", nth=1),
        partial(test_rounds.test_a_closed_protocol_sends_nothing, lambda m: m.acquire()),
    ),
    Mutant(
        "a release cut off by Ctrl-C", "rounds: an interrupted release is sent again",
        rounds.release,
        without("yield Round(..., awaited=False)"),
        partial(test_rounds.test_a_release_that_was_interrupted_is_sent_again, RuntimeError),
    ),
    Mutant(
        "too few answers are a success", "rounds: released, lost and unknown differ",
        rounds.release,
        instead("... if tally.denied else None", "not tally.denied"),
        test_rounds.test_a_release_is_none_where_too_few_answer,
    ),
    Mutant(
        "no confirm round", "fence: a confirm round unless a majority has it", Attempt.judge,
        instead("stored_by_majority(...)", "True"),
        schedules.a_fence_of_a_crashed_writer_is_written_to_a_majority,
    ),
    Mutant(
        "extended after the deadline", "extension: not asked after the old deadline", rounds.extend,
        never("now >= lease.until", nth=1),
        test_rounds.test_an_extension_sends_nothing_after_the_deadline,
    ),
    Mutant(
        "extended by a late answer", "extension: not answered after the old deadline",
        rounds.extend,
        never("now >= lease.until", nth=2),
        test_rounds.test_an_extension_answered_after_the_old_deadline_is_lost,
    ),
    Mutant(
        "extended from the answer", "extension: starts before the first byte is sent",
        rounds.extend,
        argument(valid_until, started="now"),
        test_rounds.test_an_extension_is_valid_from_before_its_first_byte,
    ),
    Mutant(
        "renewed into the past", "extension: won only if validity is left", rounds.extend,
        always("now < until"), test_rounds.test_an_extension_used_up_by_its_own_round_is_unknown,
    ),
    Mutant(
        "any clock extends", "extension: a clock off the median does not count", rounds.extend,
        argument(Tally, skew="None"), schedules.an_extension_counts_no_clock_off_the_median,
    ),
    Mutant(
        "no master is healed", "extension: masters that forgot the lock are healed", rounds.extend,
        never("master in forgot"),
        test_rounds.test_a_master_that_forgot_is_healed_by_the_next_extension_and_counts_from_the_one_after,
    ),
    Mutant(
        "a release skips masters being healed", "extension: a release goes to healed masters, too",
        rounds.release,
        instead("lease.reached | lease.tally.forgot", "lease.reached"),
        test_rounds.test_a_release_goes_to_masters_that_may_have_the_lock_and_to_those_being_healed,
    ),
    Mutant(
        "what an overlapped extension healed is forgotten",
        "extension: a release goes to what any overlapping extension healed", rounds.merged,
        instead("held.reached | extended.reached | healed", "later.reached | healed"),
        schedules.a_release_reaches_what_an_overlapped_extension_healed,
    ),
    Mutant(
        "what an overlapped extension is healing is forgotten",
        "extension: a release goes to what an extension under way may be healing", rounds.merged,
        instead("held.tally.forgot | extended.tally.forgot", "frozenset()"),
        schedules.a_release_reaches_what_an_overlapped_extension_healed,
    ),
    Mutant(
        "the earlier deadline counts", "extension: the latest deadline counts", rounds.merged,
        instead("extended if ... else held", "extended"),
        schedules.a_release_reaches_what_an_overlapped_extension_healed,
    ),
    Mutant(
        "renewed beyond the hold", "extension: never beyond hold_until", renewal.next_extension,
        instead("min(ttl, ...)", "ttl"), schedules.no_extension_reaches_beyond_the_hold,
    ),
    Mutant(
        "a client that gives up stays queued", "queue: a client that gives up leaves it",
        undo.undo_of,
        instead("ask.waiter if leave else ...", "''"),
        test_queue.test_a_waiter_that_gives_up_leaves_every_queue_and_the_next_one_is_served,
    ),
    Mutant(
        "an undo calls nobody", "queue: an undo without a quorum calls a waiter",
        Attempt.undo,
        instead("leave or self.unreachable", "leave"),
        test_queue.test_an_undo_without_a_quorum_calls_the_next_waiter,
    ),
    Mutant(
        "a waiter that has a vote asks seldom", "queue: a waiter that has a vote asks at once",
        vars(Attempt)["queued"].fget,
        always("not last.granted"),
        test_queue.test_waiters_that_share_the_votes_do_not_ask_again_at_once,
    ),
    Mutant(
        "a waiter asks again without an answer", "link: a waiter's round waits for late answers",
        Round.waits_on,
        never("now < self.patient"), link_schedules.a_patient_round_counts_late_replies,
    ),
    Mutant(
        "a waiter waits for a minority", "link: a round with a quorum of answers is not patient",
        Round.waits_on,
        always("not self.tally.answered"),
        link_schedules.a_patient_round_does_not_wait_for_a_minority,
    ),
    Mutant(
        "a release ends the minimum hold", "minimum hold: a release leaves the lock for the rest",
        rounds.release,
        never("held_for > 0"),
        test_minimum_hold.test_a_released_lock_stays_held_until_its_minimum_hold_is_over,
    ),
    Mutant(
        "late grants are left to the links", "rounds: only once another holder is proved",
        undo.leaves_late_grants, returns("isinstance(ask, Acquire)"),
        partial(
            test_rounds.test_an_interrupted_round_is_undone_where_it_may_be_granted,
            SystemExit,
        ),
    ),
    Mutant(
        "a late grant is in the way", "queue: a waiter that asks again releases silent grants",
        Wait.undo_silent, always("not silent"),
        test_queue.test_a_waiter_that_asks_again_releases_what_silent_masters_may_grant,
    ),
    Mutant(
        "an undo where all have refused", "queue: only where the answer has not come",
        Wait.undo_silent, instead("last.left & last.tally.reached", "last.left"),
        test_queue.test_a_waiter_releases_nothing_where_all_have_answered,
    ),
    Mutant(
        "the release of a late grant leaves the queue", "queue: a waiter stays in it",
        undo.undo_of_late_grant, argument(undo.undo_of, leave="True"),
        test_queue.test_the_release_of_a_late_grant_leaves_the_waiter_in_the_queue,
    ),
)  # fmt: skip

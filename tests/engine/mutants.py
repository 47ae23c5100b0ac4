"""One mutant for each rule: the rule removed or changed, and the schedule that then fails.

The same schedule passes on the function as it is. How a mutant names what it changes is in
`tests/engine/mutation.py`; code that only moves, or whose names change, leaves it valid.

`uv run python -m tests.engine.mutants` runs them all and prints each with its rule and the
failure that detects it.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple

import django
import pytest

from redlock_django.backends.memory import scripts
from redlock_django.backends.memory.keyspace import Keyspace
from redlock_django.backends.memory.queue import Queues
from redlock_django.backends.redis import RedisBackend
from redlock_django.engine import (
    attempt,
    fencing,
    membership,
    quorum,
    refusal,
    renewal,
    rounds,
    validity,
    waiting,
)
from redlock_django.engine.attempt import Attempt
from redlock_django.engine.errors import RedlockError
from redlock_django.engine.membership import Membership
from redlock_django.engine.protocol.commands import Heal, Release
from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.engine.quorum import Account, Tally
from redlock_django.engine.steps import Round
from redlock_django.engine.validity import valid_until
from redlock_django.engine.waiting import Wait
from redlock_django.locking.held_lease import HeldLease
from redlock_django.wire.drivers.loop import LoopDriver
from redlock_django.wire.judging.clock_steps import StepWatch
from redlock_django.wire.judging.late_masters import Lateness, LateWatch, RunningTime
from redlock_django.wire.link.link import Link, _in_order
from redlock_django.wire.link.master import Master
from redlock_django.wire.links import dialer, inbox
from redlock_django.wire.links.dialer import Dialer
from redlock_django.wire.links.dialing import Pace
from redlock_django.wire.links.inbox import Inbox
from redlock_django.wire.links.links import Links
from redlock_django.wire.links.outbox import Outbox, Planner
from redlock_django.wire.servers import handshake as join
from redlock_django.wire.servers import info as server_info
from redlock_django.wire.waiting.waiters import Crowd, LocalQueues, Waiter, Waiters
from tests.engine import (
    schedules,
    test_commands,
    test_fast_path,
    test_fencing,
    test_index,
    test_membership,
    test_minimum_hold,
    test_queue,
    test_quorum,
    test_rounds,
    test_safety,
)
from tests.engine.mutation import (
    Mutation,
    always,
    argument,
    at_start,
    instead,
    mutated,
    never,
    returns,
    together,
    without,
)
from tests.engine.schedules import HOUR
from tests.wire import (
    link_schedules,
    test_hand_off,
    test_lateness,
    test_link,
    test_plain_rounds,
)

Schedule = Callable[[], object]

# What a schedule raises when it fails; anything else means that the mutant itself is broken.
FAILURES = (AssertionError, pytest.fail.Exception, RedlockError, StopIteration, RuntimeError)


class Mutant(NamedTuple):
    """A rule, after its topic, that `mutation` removes from `function`, and its schedule."""

    name: str
    rule: str
    function: Any
    mutation: Mutation
    schedule: Schedule

    def active(self) -> AbstractContextManager[None]:
        """Return a context manager in which the mutant replaces the function."""
        return mutated(self.function, self.mutation, self.name)

    def failure(self) -> str:
        """Return how the schedule fails on the mutant; "" if the mutant survives."""
        with self.active():
            try:
                self.schedule()
            except FAILURES as failure:
                return str(failure).strip().partition("\n")[0] or type(failure).__name__
        return ""


def slowly(schedule: Schedule) -> None:
    """Run a schedule without the fast path, which would not reach the rule."""
    with test_fast_path.fast_path(on=False):
        schedule()


EVERY_ANSWER = partial(test_fast_path.every_answer, 3)  # one object, which is run once

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
        "rivals are not distinguished", "quorum: one other holder, or a split vote",
        Attempt.__init__,
        argument(Tally, rivals="False"), schedules.a_proven_holder_ends_the_round,
    ),
    Mutant(
        "a split vote is a refusal", "quorum: a split vote is asked again", Wait.goes_on,
        never("split and ..."), test_rounds.test_a_split_vote_that_is_over_is_won,
    ),
    Mutant(
        "stale connections refuse a lock", "quorum: asked again on new connections",
        Attempt.split, never("account.only_stale"),
        test_rounds.test_a_round_that_failed_for_stale_connections_is_asked_again,
    ),
    Mutant(
        "one stale connection is enough", "quorum: asked again only if a quorum is possible",
        vars(Account)["only_stale"].fget, instead("lasting", "0"),
        test_rounds.test_a_majority_that_failed_for_other_reasons_is_not_asked_again,
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
        "plain grants wait for all", "fast path: won with a quorum", Tally.grant,
        instead("not self._missing", "None not in votes"),
        partial(test_fast_path.test_fewer_grants_than_a_quorum_are_not_unanimous, 5),
    ),
    Mutant(
        "any fences are plain", "fast path: other fences take the long way", Tally.grant,
        instead("fences == self._fences", "self._fences is not None"), EVERY_ANSWER,
    ),
    Mutant(
        "any clocks are plain", "fast path: clocks that are off take the long way",
        Tally.grant, always("self._earliest <= time <= self._latest"),
        EVERY_ANSWER,
    ),
    Mutant(
        "a plain vote counts twice", "fast path: the first vote of a master counts",
        Tally.grant, always("votes[master] is None"),
        test_fast_path.test_random_answers_are_the_same_verdict,
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
        "a doubtful master is asked", "fast path: a doubt ends it at once", Master.__setattr__,
        never("name in DOUBTFUL"),
        partial(test_plain_rounds.test_a_doubt_ends_the_fast_path_at_once, "suspect"),
    ),
    Mutant(
        "a plan outlives its links", "fast path: a change of any master ends the plan",
        Master.look_closer, without("self.plan.until = 0.0"),
        partial(test_plain_rounds.test_a_doubt_ends_the_fast_path_at_once, "no marker"),
    ),
    Mutant(
        "a plan without a quorum", "fast path: it asks a quorum at least",
        Planner._may_plan, never("len(links) < self._quorum"),
        test_plain_rounds.test_the_fast_path_asks_a_quorum_at_least,
    ),
    Mutant(
        "a plan without a doubtful master", "fast path: only masters that are away are left out",
        Planner._may_plan, always("master.late or master in behind or not link"),
        partial(test_plain_rounds.test_a_doubt_ends_the_fast_path_at_once, "suspect"),
    ),
    Mutant(
        "a plan without a master to dial", "fast path: a master to be dialed needs a closer look",
        Planner._may_plan, always("not master.unfinished"),
        partial(
            test_plain_rounds.test_a_doubt_ends_the_fast_path_at_once,
            "lost for want of a thread",
        ),
    ),
    Mutant(
        "a master that is left out is reached", "fast path: no release to masters left out",
        Planner._may_plan, instead("failed(..., sent=False)", "failed(master.fault(now))"),
        partial(
            test_plain_rounds.test_the_fast_path_leaves_out_a_master_that_is_known_not_to_answer,
            "late",
        ),
    ),
    Mutant(
        "a release of a master left out is dropped", "fast path: a release is sent or kept",
        Planner.leave_out, never("not other.trusted"),
        partial(test_plain_rounds.test_the_fast_path_keeps_a_master_that_a_release_is_for, "lost"),
    ),
    Mutant(
        "a faulty master is asked", "fast path: masters with a fault take the long way",
        Planner._is_sound, never("master.fault(now)"),
        partial(test_plain_rounds.test_a_doubt_ends_the_fast_path_at_once, "suspect"),
    ),
    Mutant(
        "a release passes an unanswered acquire", "fast path: such a release must bury",
        Planner._is_sound, never("master.unanswered"),
        partial(test_plain_rounds.test_a_doubt_ends_the_fast_path_at_once, "an unanswered acquire"),
    ),
    Mutant(
        "another deployment's masters are asked", "fast path: acquires nothing in a conflict",
        Planner.asks_plainly, never("self._membership.conflict"),
        partial(test_plain_rounds.test_a_doubt_ends_the_fast_path_at_once, "another deployment"),
    ),
    Mutant(
        "all masters are asked the same", "fast path: each master is sent its own command",
        Planner.leave_out, never("alike != len(commands)"),
        test_plain_rounds.test_the_fast_path_is_not_taken_where_masters_are_asked_differently,
    ),
    Mutant(
        "a plain grant of any round", "fast path: every reply has its round's number",
        inbox._grant_of, instead("[owed.number, GRANTED]", "[reply[0], GRANTED]"),
        link_schedules.a_reply_of_another_round_is_not_a_vote,
    ),
    Mutant(
        "an unparsed grant of any round", "fast path: every reply has its round's number",
        inbox._grant_in, always("prefix == owed.grant"),
        test_plain_rounds.test_a_grant_of_another_round_is_not_a_vote,
    ),
    Mutant(
        "bytes inside a reply grant", "fast path: a reply that is parsed in part is no other",
        Inbox._count, always("not link.parsing"),
        test_plain_rounds.test_bytes_inside_a_refusal_do_not_grant,
    ),
    Mutant(
        "a healed master grants", "fast path: heal counts from the next extension",
        Outbox._begin_plainly, never("not command.votes"),
        test_plain_rounds.test_a_healed_master_does_not_count,
    ),
    Mutant(
        "a stepped clock grants", "fast path: no vote from the step on", Inbox._believes,
        always("self._steps.note(...)"),
        test_plain_rounds.test_a_clock_step_ends_the_fast_path,
    ),
    Mutant(
        "a step ends with its reply", "fast path: no vote that comes together with a step",
        Inbox._parse, always("heard < master.sound_until"),
        test_plain_rounds.test_no_reply_that_comes_together_with_a_clock_step_counts,
    ),
    Mutant(
        "an old look at the clock", "fast path: clocks that drift are noted", Inbox._believes,
        always("heard < until"),
        test_plain_rounds.test_bounds_of_clocks_are_not_old,
    ),
    Mutant(
        "our clock never goes back a little", "fast path: our clock that goes back is noted",
        Inbox._believes, always("heard >= sent"),
        test_plain_rounds.test_our_clock_that_goes_back_a_little_within_a_round_is_noted,
    ),
    Mutant(
        "our clock's latest time is lost", "fast path: our own step voids what began before",
        StepWatch.saw, without("self._latest = now"),
        test_plain_rounds.test_our_clock_that_goes_back_voids_a_lease_that_began_since,
    ),
    Mutant(
        "a verdict waits for all", "quorum: a round returns at its verdict", Tally._judge,
        instead("granting >= self.need", "not outstanding and granting >= self.need"),
        partial(slowly, test_rounds.test_won_before_the_slowest_has_answered),
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
        "validity from the answer", "validity: starts before the first byte is sent",
        Attempt._end,
        argument(valid_until, started="now"),
        schedules.the_duration_of_a_round_shortens_the_validity,
    ),
    Mutant(
        "elapsed time is ignored", "validity: won only if some is left", Attempt._end,
        never("now >= self.until"), schedules.a_round_longer_than_the_ttl_holds_nothing,
    ),
    Mutant(
        "elapsed time is read before the confirm round",
        "validity: checked after the confirm round", Attempt.judge,
        together(
            instead("tally.account", "(heard := now) and tally.account", nth=1),
            instead("self._end(now)", "self._end(heard)"),
        ),
        test_rounds.test_validity_is_judged_after_the_confirm_round,
    ),
    Mutant(
        "one token for all rounds", "rounds: a fresh token for each", Wait.begin,
        instead("next(client.tokens)", "'0' * 32"),
        test_safety.test_a_late_undo_cannot_free_the_round_after_it,
    ),
    Mutant(
        "one proposal for all rounds", "rounds: a proposal is the present wall clock", Wait.begin,
        instead("next(client.proposals)", "(self.ticket or next(client.proposals))"),
        test_rounds.test_every_round_has_a_fresh_token_and_a_new_proposal,
    ),
    Mutant(
        "no undo", "rounds: a lost round releases", Attempt.undo,
        instead("tally.reached | queued", "queued"),
        test_rounds.test_won_too_late_is_undone_everywhere,
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
        "cancelled without an undo", "rounds: a cancelled round releases",
        Wait.undo_interrupted, never("not self.resting"),
        schedules.interrupted_after_the_grants_nothing_is_left,
    ),
    Mutant(
        "a closed protocol sends", "rounds: after GeneratorExit nothing can be undone",
        rounds.acquire,
        instead("GeneratorExit", "ZeroDivisionError"),
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
        instead("... if tally.account.denied else None", "not tally.account.denied"),
        test_rounds.test_a_release_is_none_where_too_few_answer,
    ),
    Mutant(
        "pauses are only random", "rounds: retry when the refusal's PTTL has passed",
        waiting.retry_delays,
        always("left is None"), test_rounds.test_no_pause_is_longer_than_the_lock_in_the_way,
    ),
    Mutant(
        "no tombstone", "master: a release may leave a tombstone", Release.arguments,
        never("self.bury"), test_rounds.test_a_release_can_bury_and_need_not_be_awaited,
    ),
    Mutant(
        "acquire ignores tombstones", "master: no acquire after a tombstone", scripts.acquire,
        without("return [BURIED, ...]"),
        test_rounds.test_a_release_can_bury_and_need_not_be_awaited,
    ),
    Mutant(
        "heal ignores tombstones", "master: no heal after a tombstone", scripts.heal,
        without("return [BURIED, ...]"), schedules.a_heal_never_brings_back_what_was_released,
    ),
    Mutant(
        "any marker will do", "master: the marker is the expected one", scripts.is_trusted,
        always("keyspace.get(keys[0]) == ..."), schedules.a_master_that_was_flushed_has_no_vote,
    ),
    Mutant(
        "extend without a marker", "master: every script checks the marker", scripts.extend,
        without("return [NOT_READY, ...]"),
        schedules.a_master_that_was_flushed_confirms_and_extends_nothing,
    ),
    Mutant(
        "an overlong lock stays", "master: a PTTL above MAX_TTL is cut", scripts.acquire,
        never("left > max_ttl and ..."), schedules.a_lock_from_a_clock_gone_back_is_cut,
    ),
    Mutant(
        "foreign locks are cut", "master: only a value of ours is cut", scripts.acquire,
        always("_OURS.match(lock) is not None"), schedules.a_foreign_lock_is_never_cut,
    ),
    Mutant(
        "acquire overwrites", "master: each lock is absent or has this value",
        scripts.acquire,
        never("lock is not None and lock != value"), schedules.a_late_release_frees_no_other_holder,
    ),
    Mutant(
        "compare the token only", "master: acquire compares the whole value", scripts.acquire,
        instead("lock != value", "lock[:32] != value[:32]"),
        schedules.a_value_that_only_begins_with_our_token_is_not_ours,
    ),
    Mutant(
        "free by the token only", "master: release compares the whole value", scripts.release,
        instead("lock in (None, value)", "(lock or value)[:32] == value[:32]"),
        schedules.a_value_that_only_begins_with_our_token_is_not_ours,
    ),
    Mutant(
        "plain DEL", "master: release deletes only this value", scripts.release,
        always("lock in (None, value)"),
        schedules.a_late_release_frees_no_other_holder,
    ),
    Mutant(
        "a resend is a new grant", "master: the same value again gets the same fence",
        scripts.acquire,
        always("lock is None or fence is None"), schedules.the_same_acquire_twice_is_one_grant,
    ),
    Mutant(
        "fences from the clock alone", "fence: higher than the stored one", scripts.acquire,
        instead("max(stored + 1, proposal)", "proposal"),
        partial(test_fencing.test_fences_grow_whatever_the_clocks_of_clients_say, -0.3),
    ),
    Mutant(
        "fences from the counter alone", "fence: at least the wall clock", scripts.acquire,
        instead("max(stored + 1, proposal)", "stored + 1"),
        schedules.fences_grow_after_all_masters_lost_their_memory,
    ),
    Mutant(
        "no clamp above", "fence: a proposal is at most TIME + skew", scripts.acquire,
        instead("min(..., now + skew)", "max(proposal, now - skew)"),
        partial(test_fencing.test_fences_grow_whatever_the_clocks_of_clients_say, HOUR),
    ),
    Mutant(
        "no clamp below", "fence: a proposal is at least TIME - skew", scripts.acquire,
        instead("max(proposal, now - skew)", "proposal"),
        schedules.fences_grow_after_all_masters_lost_their_memory,
    ),
    Mutant(
        "acquire counts a poisoned fence", "fence: acquire takes none above TIME + 2 skew",
        scripts.acquire,
        without("return [FENCE_AHEAD, ...]"),
        schedules.a_fence_far_ahead_of_its_clock_is_not_counted,
    ),
    Mutant(
        "confirm stores a poisoned fence", "fence: confirm stores none above TIME + 2 skew",
        scripts.confirm,
        without("return [FENCE_AHEAD, ...]"), schedules.no_confirmation_stores_a_fence_far_ahead,
    ),
    Mutant(
        "heal stores a poisoned fence", "fence: heal stores none above TIME + 2 skew",
        scripts.heal,
        without("return [FENCE_AHEAD, ...]"), schedules.no_heal_stores_a_fence_far_ahead,
    ),
    Mutant(
        "any string is a fence", "fence: 1 to 16 digits", scripts.acquire,
        never("fence is not None and ..."), schedules.a_fence_that_is_not_a_number_is_not_counted,
    ),
    Mutant(
        "no confirm round", "fence: a confirm round unless a majority has it", Attempt.judge,
        instead("stored_by_majority(...)", "True"),
        schedules.a_fence_of_a_crashed_writer_is_written_to_a_majority,
    ),
    Mutant(
        "one master confirms for all", "fence: a majority has stored it",
        fencing.stored_by_majority,
        instead("account.majority(...)", "any(vote.fences[index] >= fence for vote in votes)"),
        schedules.a_fence_of_a_crashed_writer_is_written_to_a_majority,
    ),
    Mutant(
        "confirmed by anybody", "fence: confirmed only where the lock is ours",
        scripts.confirm,
        never("lock != argv[1]"),
        schedules.a_confirmation_counts_only_on_masters_that_have_the_lock,
    ),
    Mutant(
        "confirmed where it is gone", "fence: confirmed only where the lock still is",
        scripts.confirm,
        together(
            never("lock is None"), instead("lock != argv[1]", "lock not in (None, argv[1])"),
        ),
        test_rounds.test_not_held_where_the_lock_has_gone_meanwhile,
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
        "extended after the deadline", "extension: not asked after the old deadline", rounds.extend,
        never("now >= lease.until", nth=1),
        test_rounds.test_an_extension_sends_nothing_after_the_deadline,
    ),
    Mutant(
        "extended by a late answer", "extension: not answered after the old deadline",
        rounds.extend,
        never("now >= lease.until", nth=2),
        test_rounds.test_answers_after_the_old_deadline_are_too_late,
    ),
    Mutant(
        "extended from the answer", "extension: starts before the first byte is sent",
        rounds.extend,
        argument(valid_until, started="now"), test_rounds.test_renewed_from_before_its_first_byte,
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
        "heal without a marker", "master: heal writes to no other deployment", scripts.heal,
        without("return [NOT_READY, ...]"),
        schedules.no_heal_writes_to_a_master_of_another_deployment,
    ),
    Mutant(
        "an extension re-creates", "extension: never creates a lock again", scripts.extend,
        without("return [ABSENT, ...]"),
        test_safety.test_an_extension_counts_no_master_that_has_forgotten,
    ),
    Mutant(
        "an extension takes over", "extension: refused where another client holds it",
        scripts.extend,
        never("lock is not None and ..."),
        test_rounds.test_taken_by_another_is_a_loss_and_left_to_the_other,
    ),
    Mutant(
        "an extension shortens", "extension: never shortens a lock", scripts.extend,
        always("keyspace.pttl(key) < ttl"), schedules.an_unanswered_extension_shortens_nothing,
    ),
    Mutant(
        "a heal counts at once", "extension: a healed master counts from the next one", Heal.vote,
        never("vote.ballot is Ballot.GRANTED"), schedules.a_healed_master_does_not_count_at_once,
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
        "a turn never ends", "queue: a turn lasts 0.1 s", Queues.call_first,
        always("now < -score"),
        test_queue.test_a_turn_that_passes_unused_is_over_and_the_next_one_has_it,
    ),
    Mutant(
        "last come, first served", "queue: the first waiter is called", Queues.call_first,
        instead("min", "max"), test_queue.test_first_come_first_served,
    ),
    Mutant(
        "dead waiters are called", "queue: a waiter that hears no call is skipped",
        Queues.call_first,
        instead(
            "self._keyspace.publish(...)", "(1, self._keyspace.publish(channel.decode(), name))"
        ),
        test_queue.test_the_dead_are_skipped_at_once,
    ),
    Mutant(
        "a client that does not wait overtakes", "queue: a free lock is reserved for the first",
        scripts.acquire,
        instead("first is not None", "first is not None and waiter"),
        test_queue.test_a_client_that_comes_while_others_wait_does_not_overtake,
    ),
    Mutant(
        "the ticket is the last proposal", "queue: the ticket is the first proposal",
        scripts.acquire,
        instead("proposal - age", "proposal"),
        test_queue.test_a_master_that_forgot_its_queue_gets_the_same_order_again,
    ),
    Mutant(
        "equal tickets both go first", "queue: every master has the same order",
        Queues.call_first,
        instead("(ticket, waiter) < ...", "ticket <= score"),
        test_queue.test_of_two_equal_tickets_the_first_by_name_is_served,
    ),
    Mutant(
        "the ticket is by the client's own clock", "queue: every master has the same order",
        waiting.clock_lag,
        instead("least if ... else 0", "0"),
        test_queue.test_a_place_that_a_wrong_clock_gains_within_the_skew_is_lost_in_the_next_round,
    ),
    Mutant(
        "a clock near the skew is near", "queue: every master has the same order",
        waiting.clock_lag,
        instead("account.skew / 2", "account.skew * 2"),
        test_queue.test_a_place_that_a_clock_off_by_less_than_the_skew_gains_is_lost_as_well,
    ),
    Mutant(
        "a stopped waiter has a wrong clock", "queue: the ticket is the first proposal",
        waiting.clock_lag,
        instead("most - round(...)", "most"),
        test_queue.test_a_waiter_that_was_stopped_in_a_round_does_not_have_a_wrong_clock,
    ),
    Mutant(
        "a minority decides that a clock is wrong", "queue: a majority tells the time",
        waiting.clock_lag,
        never("not account.majority(...)"),
        test_queue.test_a_minority_does_not_decide_that_a_clock_is_wrong,
    ),
    Mutant(
        "a client that gives up stays queued", "queue: a client that gives up leaves it",
        attempt.undo_of,
        instead("ask.waiter if leave else ...", "''"),
        test_queue.test_giving_up_leaves_every_queue_and_the_next_waiter_goes,
    ),
    Mutant(
        "an undo calls", "queue: an undo before the next round calls nobody", Release.keys,
        always("self.calls"), test_queue.test_an_undo_on_the_way_to_the_next_round_calls_no_waiter,
    ),
    Mutant(
        "a holder stays queued", "queue: a release that calls nobody removes its own waiter",
        Release.keys, never("self.waiter"),
        test_queue.test_a_holder_whose_release_is_followed_leaves_every_queue,
    ),
    Mutant(
        "a release that is followed calls", "queue: a release that is followed calls nobody",
        Release.arguments, instead("self.calls", "True"),
        test_queue.test_a_release_that_is_followed_calls_no_waiter,
    ),
    Mutant(
        "a release of two locks calls no waiter of one",
        "queue: a release is followed if the next waiters of all its locks are here", Outbox.begin,
        instead("len(waiters) == len(frees)", "True"),
        test_hand_off.test_a_release_calls_if_one_of_its_locks_has_no_waiter_here,
    ),
    Mutant(
        "a waiter that has asked follows a release", "queue: a release is followed after it",
        Outbox._begin_plainly, never("any(...)"),
        test_hand_off.test_a_release_calls_a_waiter_that_has_asked_before_it,
    ),
    Mutant(
        "no release is followed", "queue: a release whose next waiter follows it calls nobody",
        Outbox._begin_plainly, never("isinstance(command, Release)"),
        test_hand_off.test_a_release_calls_no_waiter_if_the_next_one_follows_it,
    ),
    Mutant(
        "a release that is sent again calls nobody", "queue: what is sent again calls",
        Outbox._begin_plainly,
        instead("packed = replace(...)", "packed = command = replace(command, calls=False)"),
        test_hand_off.test_a_release_that_is_sent_again_calls,
    ),
    Mutant(
        "an undo calls nobody", "queue: an undo without a quorum calls a waiter",
        Attempt.undo,
        instead("leave or self.unreachable", "leave"),
        test_queue.test_an_undo_without_a_quorum_calls_the_next_waiter,
    ),
    Mutant(
        "all that share the votes ask at once", "queue: a waiter in most queues asks seldom",
        waiting.Wait.pause,
        never("queueing and attempt.queued"),
        test_queue.test_waiters_that_share_the_votes_do_not_ask_again_at_once,
    ),
    Mutant(
        "a waiter that has a vote asks seldom", "queue: a waiter that has a vote asks at once",
        vars(Attempt)["queued"].fget,
        always("not account.count(Ballot.GRANTED)"),
        test_queue.test_waiters_that_share_the_votes_do_not_ask_again_at_once,
    ),
    Mutant(
        "a waiter in no queue asks seldom", "queue: a waiter in few queues asks at once if split",
        waiting.Wait.pause,
        always("attempt.queued"),
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
        always("not self.tally.account.answered"),
        link_schedules.a_patient_round_does_not_wait_for_a_minority,
    ),
    Mutant(
        "a patient round never ends", "link: a patient round ends", LateWatch.waited,
        without("self.fail_late(...)"), link_schedules.a_patient_round_ends,
    ),
    Mutant(
        "a patient round asks no late master", "link: without a quorum late masters are asked",
        Outbox._fit_for,
        never("exchange.asked.waits_on(now) and ..."),
        link_schedules.only_a_patient_round_without_a_quorum_asks_late_masters,
    ),
    Mutant(
        "a patient round asks all late masters", "link: a late minority is not asked",
        Outbox._fit_for,
        always("self._planner.usable() < quorum(...)"),
        link_schedules.only_a_patient_round_without_a_quorum_asks_late_masters,
    ),
    Mutant(
        "no waiter is called", "queue: a release wakes the next waiter", scripts.release,
        without(Queues.call_first), test_queue.test_first_come_first_served,
    ),
    Mutant(
        "a turn that cannot be used is kept", "queue: a turn that cannot be used is passed on",
        scripts.pass_on,
        never("another != index"),
        test_queue.test_a_waiter_that_cannot_take_everything_passes_its_turn_on,
    ),
    Mutant(
        "a queue never expires", "queue: it lives a little longer than its lock",
        Queues.stand,
        instead("self._keyspace.script_ms + lasts + LINGER", "9e99"),
        test_queue.test_a_queue_lives_a_little_longer_than_the_lock,
    ),
    Mutant(
        "a release ends the minimum hold", "minimum hold: a release leaves the lock for the rest",
        rounds.release,
        never("held_for > 0"),
        test_minimum_hold.test_a_released_lock_stays_held_until_its_minimum_hold_is_over,
    ),
    Mutant(
        "a minimum hold without drift", "minimum hold: clocks run apart", validity.with_drift,
        returns("seconds"),
        test_minimum_hold.test_the_lock_stays_long_enough_on_masters_whose_clocks_run_faster,
    ),
    Mutant(
        "a late release prolongs the lock", "minimum hold: a release never prolongs a lock",
        scripts.release,
        always("keyspace.pttl(key) > left"),
        test_minimum_hold.test_a_release_that_arrives_late_or_twice_prolongs_nothing,
    ),
    Mutant(
        "any lock is shortened", "minimum hold: only the lock of this token is shortened",
        scripts.release,
        instead("lock == value and left", "lock and left"),
        test_minimum_hold.test_only_the_lock_of_this_token_is_shortened,
    ),
    Mutant(
        "the index keeps the old expiry", "index: it shows when a shortened lock ends",
        scripts.shorten,
        never("resource in listed"), test_minimum_hold.test_the_index_shows_when_the_lock_ends,
    ),
    Mutant(
        "a waiter sleeps by the old TTL", "queue: the first waiter learns a shorter TTL",
        scripts.ask_to_try,
        without("keyspace.publish(...)"),
        test_minimum_hold.test_the_first_waiter_is_asked_to_try_again_so_that_it_learns_the_new_ttl,
    ),
    Mutant(
        "an early release leaves its waiter", "queue: every release removes its waiter",
        scripts.release,
        without("keyspace.remove(queue, waiter)"),
        test_minimum_hold.test_a_release_removes_its_waiter_from_the_queues,
    ),
    Mutant(
        "the index has no end", "index: it expires after its last entry",
        Keyspace.add_to_index,
        never("self.ends.get(...) - self.script_ms < left"),
        test_index.test_a_foreign_lock_without_expiry_is_listed_while_clients_contend_for_it,
    ),
    Mutant(
        "a grant gives the index no end", "index: it expires after its last entry",
        Keyspace.add_grant, never("all(...)"),
        test_index.test_a_killed_process_leaves_nothing_in_the_index,
    ),
    Mutant(
        "a grant prolongs a new index only", "index: a grant prolongs it once in each MAX_TTL",
        Keyspace.add_grant, instead("-(self.script_ms // max_ttl)", "-1"),
        test_index.test_every_period_of_max_ttl_prolongs_the_index,
    ),
    Mutant(
        "the index ends with its period", "index: it lasts until the next period ends",
        Keyspace.add_grant, instead("2 * max_ttl", "max_ttl"),
        test_index.test_every_period_of_max_ttl_prolongs_the_index,
    ),
    Mutant(
        "the trim ends the period", "index: a grant prolongs it once in each MAX_TTL",
        Keyspace.trim_index, instead("0 <= e < now_ms", "e < now_ms"),
        test_index.test_the_last_release_leaves_the_index_to_the_next_grant,
    ),
    Mutant(
        "an extension does not prolong the index", "index: it expires after its last entry",
        scripts.extend,
        without(Keyspace.add_to_index), test_index.test_an_extended_lock_stays_listed,
    ),
    Mutant(
        "a foreign lock is listed for ever", "index: foreign locks are listed while they contend",
        scripts.acquire,
        instead("max_ttl if left < 0 else left", "2**60 if left < 0 else left", nth=1),
        test_index.test_a_foreign_lock_without_expiry_is_listed_while_clients_contend_for_it,
    ),
    Mutant(
        "a foreign lock is listed once", "index: foreign locks are listed while they contend",
        scripts.acquire,
        argument(Keyspace.add_to_index, new_only="True"),
        test_index.test_a_foreign_lock_that_its_owner_extends_stays_listed,
    ),
    Mutant(
        "one call is enough", "queue: called by a majority", Waiter.decided,
        instead("self._need", "1"), schedules.a_minority_that_calls_is_not_enough,
    ),
    Mutant(
        "a call ends a pause in which the round was sent",
        "queue: a waiter sleeps on until the round that was sent for it is decided",
        Waiter.decided, always("sent is None"),
        schedules.a_call_does_not_end_a_pause_in_which_the_round_was_sent,
    ),
    Mutant(
        "a round is sent for a waiter that does not sleep",
        "queue: after a pause, its waiter sends its rounds itself", Waiters.end_pause,
        without("waiter.pause = None"), schedules.after_a_pause_no_round_is_sent_for_its_waiter,
    ),
    Mutant(
        "a call ends two pauses", "queue: what ended a pause does not end the next one",
        Waiters.end_pause, without("waiter.rested()"),
        schedules.what_ended_a_pause_does_not_end_the_next_one,
    ),
    Mutant(
        "a waiter asks again although a round was sent for it",
        "queue: a round that was sent in a pause is not sent again", Wait.begin,
        always("self.begun is None"),
        schedules.a_round_that_was_begun_in_the_pause_before_it_is_not_begun_again,
    ),
    Mutant(
        "an interrupt forgets the round that was sent in a pause",
        "queue: an interrupted pause releases what was sent meanwhile",
        Wait.undo_interrupted, instead("self.begun or self.attempt", "self.attempt"),
        schedules.interrupted_in_a_pause_the_round_that_was_sent_is_undone,
    ),
    Mutant(
        "a release wakes the last waiter of its process", "queue: a release wakes the next waiter",
        LocalQueues.next_waiters, instead("min", "max"),
        schedules.a_release_wakes_the_next_waiter_of_its_process,
    ),
    Mutant(
        "a release wakes a waiter behind others",
        "queue: a release leaves a waiter of another process its turn",
        LocalQueues.next_waiters, always("others <= 0"),
        schedules.a_release_wakes_no_waiter_behind_one_of_another_process,
    ),
    Mutant(
        "a waiter of the same process is one of others",
        "queue: a release wakes a waiter behind those of its own process",
        LocalQueues.join, instead("pause.ahead - ours", "pause.ahead"),
        schedules.a_waiter_behind_those_of_its_process_is_the_next_one_after_them,
    ),
    Mutant(
        "all of a crowd ask", "queue: of the waiters of a process, only the first ask",
        Crowd.join, always("waiter in self._first()"),
        schedules.of_a_crowd_only_the_first_may_ask,
    ),
    Mutant(
        "a waiter that leaves lets no other ask",
        "queue: when a waiter is served, the next one of its process asks",
        Crowd.leave, never("other.behind"),
        schedules.a_waiter_whose_call_is_over_lets_the_next_one_ask,
    ),
    Mutant(
        "a waiter that leaves wakes all who may ask",
        "queue: when a waiter is served, only the next one of its process asks",
        Crowd.leave, always("other.behind"),
        schedules.a_waiter_whose_call_is_over_lets_the_next_one_ask,
    ),
    Mutant(
        "a waiter is behind as soon as it has looked",
        "queue: a waiter that leaves meanwhile lets the newest one ask",
        Crowd.join,
        instead(
            "if len(self._waiters) <= MOST_ASKING or waiter in self._first():\n"
            "    waiter.behind = False",
            "waiter.behind = waiter not in self._first()",
        ),
        schedules.a_waiter_that_comes_while_another_leaves_may_ask,
    ),
    Mutant(
        "a waiter behind others has a later ticket",
        "queue: a waiter that may not ask yet has the ticket of its coming",
        Wait.follow_crowd, without("self.ticket = next(self.client.proposals)"),
        test_queue.test_a_waiter_behind_others_of_its_process_asks_later_with_its_first_ticket,
    ),
    Mutant(
        "a waiter behind others joins a queue to leave it",
        "queue: a waiter behind others whose wait is over joins no queue",
        Wait.follow_crowd, never("now >= self.give_up", nth=2),
        test_queue.test_a_waiter_behind_others_whose_wait_is_over_asks_and_joins_no_queue,
    ),
    Mutant(
        "a crowd asks when its waits end",
        "queue: a waiter behind others whose wait is over is refused as they were",
        refusal.CrowdRefusal.note, never("account.rival_won"),
        test_queue.test_a_waiter_behind_others_whose_wait_is_over_is_refused_as_they_were,
    ),
    Mutant(
        "a crowd without an answer is refused",
        "queue: a waiter behind others asks itself if they had no answer",
        refusal.CrowdRefusal.note, always("account.rival_won"),
        partial(
            test_queue.test_a_waiter_behind_others_asks_itself_if_they_had_no_answer,
            {"mute": (1, 2)},
        ),
    ),
    Mutant(
        "a waiter asks in the last moment", "queue: many waits that end make few questions",
        Wait.follow_crowd, never("0 < (left := self.give_up - now) < LAST_MOMENT"),
        test_queue.test_a_waiter_that_may_ask_in_the_last_moment_of_its_wait_is_refused_at_its_end,
    ),
    Mutant(
        "a stopped process has a turn for each of its waiters",
        "queue: a turn that passes unused removes the waiters of its process",
        Queues.call_first,
        never("channel != channel_of(waiter)"),
        test_queue.test_a_stopped_process_costs_one_turn_however_many_waiters_it_has,
    ),
    Mutant(
        "a process that asks is removed", "queue: a process that asks has not stopped",
        Queues.call_first,
        always("channel != channel_of(waiter)"),
        test_queue.test_a_process_that_asks_has_not_stopped,
    ),
    Mutant(
        "a late waiter waits for the turns of others",
        "queue: a late waiter may take the lock in another's turn", Queues.call_first,
        never("queue.get(...) >= LATE"),
        test_queue.test_a_waiter_that_comes_late_takes_the_lock_in_the_turn_of_another,
    ),
    Mutant(
        "a late waiter has turn after turn", "queue: nothing is reserved for a late waiter",
        Queues.call_first,
        never("score >= LATE"),
        test_queue.test_a_late_waiter_has_no_second_turn_before_it_has_asked_again,
    ),
    Mutant(
        "no turn is watched", "queue: another waiter watches a turn", Queues.call_first,
        without(Queues._ask_to_watch),
        test_queue.test_a_waiter_of_another_process_is_asked_to_watch_a_turn,
    ),
    Mutant(
        "a stopped process watches itself", "queue: if possible, another process watches a turn",
        Queues._ask_to_watch,
        instead("(*others, *newest)", "newest"),
        test_queue.test_a_waiter_of_another_process_is_asked_to_watch_a_turn,
    ),
    Mutant(
        "a crowd that is not answered asks at once", "queue: without a quorum, pauses are long",
        waiting.retry_delays,
        never("account.unreachable"),
        test_queue.test_without_a_queue_the_pause_is_random,
    ),
    Mutant(
        "a turn that was begun is watched late", "queue: each turn is watched closely",
        waiting.retry_delays,
        never("account.majority(sum(left >= TURN for left in turns))"),
        test_queue.test_turns_that_follow_each_other_unused_cost_little_more_than_a_turn_each,
    ),
    Mutant(
        "a crowd watches each turn", "queue: few waiters ask when a watched turn is over",
        waiting.retry_delays,
        never("account.majority(len(turns))"),
        test_queue.test_a_turn_that_another_waiter_watches_is_not_watched_by_a_crowd,
    ),
    Mutant(
        "a crowd asks at the same moment", "queue: waiters that came together ask one by one",
        waiting._prolonged,
        instead("(longest - pause) * ahead / (ahead + CROWD)", "min(ahead / 50, longest - pause)"),
        lambda: test_queue.test_waiters_that_came_at_the_same_moment_ask_one_after_the_other(False),
    ),
    Mutant(
        "waiters poll", "queue: a waiter that will be called asks seldom", waiting.retry_delays,
        never("account.majority(len(queued))"),
        test_queue.test_a_waiter_that_will_be_called_asks_again_in_seconds,
    ),
    Mutant(
        "a minority will call", "queue: a waiter in too few queues asks often",
        waiting.retry_delays,
        always("account.majority(len(queued))"),
        test_queue.test_a_waiter_that_only_a_minority_has_in_its_queue_will_not_be_called,
    ),
    Mutant(
        "calls over lost links are expected",
        "queue: a waiter that too few masters can call asks often", Waiter.rest,
        always("len(self._listening) >= self._need"),
        schedules.a_waiter_that_too_few_masters_can_call_polls,
    ),
    Mutant(
        "a lost link goes unnoticed", "queue: after a lost link a waiter asks soon", Waiters.lose,
        without(Waiter.doubt), schedules.after_a_lost_link_a_waiter_asks_soon,
    ),
    Mutant(
        "a link lost during a round goes unnoticed", "queue: after a lost link a waiter asks soon",
        Waiter.rest,
        always("not self._doubted"),
        schedules.a_link_lost_during_a_round_shortens_the_pause_after_it,
    ),
    Mutant(
        "a new link goes unnoticed", "queue: after a new link a waiter asks soon", Waiters.listen,
        without(Waiter.join), schedules.after_a_new_link_a_waiter_asks_soon,
    ),
    Mutant(
        "a request to watch is a call", "queue: a waiter that watches asks after the turn",
        Waiters.call,
        never("name.startswith(...)"), schedules.a_waiter_that_watches_a_turn_asks_after_it,
    ),
    Mutant(
        "a pause ends in the past", "queue: after a long round a waiter asks at once", Waiter.rest,
        instead("max(..., self.until - now)", "self.until - now"),
        schedules.after_a_round_longer_than_the_turn_it_watches_a_waiter_asks_at_once,
    ),
    Mutant(
        "an old call counts", "queue: only calls since the last round count", Waiter.ask,
        without("self._callers.clear()"), schedules.calls_before_a_round_do_not_count_after_it,
    ),
    Mutant(
        "a reply of any round counts", "link: every reply has its round's number",
        Inbox._handle_vote, never("reply[0] != owed.number"),
        link_schedules.a_reply_of_another_round_is_not_a_vote,
    ),
    Mutant(
        "an unexpected reply is ignored", "link: replies are counted", Inbox._answer,
        instead("raise ProtocolDesync('a reply without a command')", "return"),
        link_schedules.an_unexpected_reply_drops_the_link,
    ),
    Mutant(
        "half a command is sent on", "link: closed after an interrupted send", _in_order,
        never("is_sending"),
        test_link.test_an_interrupted_send_drops_the_link,
    ),
    Mutant(
        "a release overtakes", "link: a release travels after its acquire", Link.write,
        instead("self.out += data", "self.out[:0] = data"),
        partial(slowly, link_schedules.a_release_is_sent_after_its_acquire),
    ),
    Mutant(
        "a plain release overtakes", "fast path: a release travels after its acquire",
        Outbox._begin_plainly,
        instead("link.out += ...", "link.out[:0] = data"),
        link_schedules.a_release_is_sent_after_its_acquire,
    ),
    Mutant(
        "a release without a clock is a step", "link: 0 in a reply is no time of a master",
        inbox._grant_of,
        instead("reply[2], tuple(...)", "reply[2] or 1, ()"),
        link_schedules.a_release_without_the_time_is_no_clock_step,
    ),
    Mutant(
        "a failed release without a clock is a step", "link: 0 in a refusal is no time of a master",
        Inbox._handle_vote,
        always("reply[2] != 0"), link_schedules.a_release_without_the_time_is_no_clock_step,
    ),
    Mutant(
        "a master without a thread stays lost",
        "link: every round dials masters that no thread could be started for", Outbox._begin_each,
        without("self._redial()"),
        link_schedules.a_master_that_no_thread_connects_to_is_dialled_by_the_next_round,
    ),
    Mutant(
        "a release with no link is lost", "link: a release without a link is kept",
        Outbox._fit_for,
        without(Master.keep_release),
        link_schedules.a_release_for_a_lost_link_is_sent_first_and_buries,
    ),
    Mutant(
        "a late grant stays", "fast path: a grant after the refusal is released",
        Inbox._grant, without("self._outbox.undo_late(...)"),
        link_schedules.a_grant_after_the_refusal_is_released,
    ),
    Mutant(
        "a grant of a doubtful master stays", "link: a grant after the refusal is released",
        Inbox._handle_vote, without("self._outbox.undo_late(...)"),
        link_schedules.a_grant_of_a_late_or_doubtful_master_is_released,
    ),
    Mutant(
        "a grant on a lost link stays", "link: what may be granted is released on the next link",
        dialer._fail_owed, without(Master.keep_release, nth=2),
        link_schedules.a_link_that_is_lost_after_the_refusal_brings_the_release_later,
    ),
    Mutant(
        "closed links leave a grant", "link: what may be granted is released before the end",
        Links.shut, without("self.outbox.undo_late(...)"),
        link_schedules.links_that_close_after_the_refusal_send_the_release,
    ),
    Mutant(
        "late grants are left to the links", "rounds: only once another holder is proved",
        attempt.leaves_late_grants, always("tally.account.rival_won"),
        partial(
            test_rounds.test_an_interrupted_round_is_undone_where_it_may_be_granted,
            SystemExit,
        ),
    ),
    Mutant(
        "a waiter leaves late grants", "queue: a waiter releases what may be granted at once",
        attempt.leaves_late_grants, always("not ask.waiter"),
        test_queue.test_a_waiter_releases_what_silent_masters_may_have_granted,
    ),
    Mutant(
        "late replies are read at once", "link: replies that come too late are read in parts",
        Inbox.read_all, never("link.expired"),
        link_schedules.replies_that_come_too_late_are_read_in_parts,
    ),
    Mutant(
        "an unanswered release is lost", "link: an unanswered release is kept",
        dialer._fail_owed, without(Master.keep_release, nth=1),
        link_schedules.a_release_that_was_not_answered_is_sent_again,
    ),
    Mutant(
        "an interrupted loss stays unfinished", "link: a link is lost to the end",
        Dialer.redial, without(Dialer.finish_losing),
        link_schedules.a_link_whose_loss_was_interrupted_is_lost_by_the_next_round,
    ),
    Mutant(
        "a refused release is forgotten", "link: a release that a master refused is repeated",
        Inbox._handle_error,
        without(Master.refuse_release),
        link_schedules.a_release_that_a_master_refused_is_sent_again,
    ),
    Mutant(
        "a repeated release never ends", "link: an answered release is not repeated",
        Inbox._handle_vote,
        without("master.refused_releases.pop(...)"),
        link_schedules.a_release_that_a_master_refused_is_sent_again,
    ),
    Mutant(
        "a refused release is repeated for ever", "link: repeated while its lock may stand",
        Master.due_releases,
        never("until < now"),
        link_schedules.a_release_that_a_master_refuses_for_ever_is_given_up,
    ),
    Mutant(
        "a kept release does not bury", "link: a kept release leaves a tombstone",
        Master.keep_release,
        instead("replace(release, bury=True)", "release"),
        link_schedules.a_release_for_a_lost_link_is_sent_first_and_buries,
    ),
    Mutant(
        "a token on a lost link is forgotten", "link: an acquire may arrive after its link is lost",
        dialer._fail_owed,
        without(Master.remember_unanswered),
        link_schedules.a_release_after_an_acquire_that_may_still_arrive_buries,
    ),
    Mutant(
        "every release buries", "link: a tombstone only where an acquire may be late",
        Outbox._begin_each,
        together(
            always("command.token in master.unanswered"),
            without("del master.unanswered[command.token]"),
        ),
        partial(slowly, link_schedules.an_ordinary_release_leaves_no_tombstone),
    ),
    Mutant(
        "a cancelled round of a loop is sent again", "link: a cancelled round is abandoned",
        LoopDriver._take,
        without("exchange.abandon()"),
        link_schedules.a_round_that_was_cancelled_in_a_loop_is_not_sent_again,
    ),
    Mutant(
        "a release over other links does not bury", "link: a release over other links buries",
        RedisBackend.post_release,
        instead("protocol if driver is lease.home else bury", "protocol"),
        link_schedules.a_release_over_other_links_buries,
    ),
    Mutant(
        "a decided round is sent again", "link: a decided round is not sent by EVAL", Inbox._retry,
        always("owed.undecided is not None"),
        link_schedules.a_decided_round_is_not_sent_again,
    ),
    Mutant(
        "an undo by EVAL", "link: a master that lacks acquire learns release with it",
        Inbox._retry, never("isinstance(command, Acquire)"),
        link_schedules.an_undo_is_known_to_a_master_that_learns_to_acquire,
    ),
    Mutant(
        "NOSCRIPT is a failure", "link: NOSCRIPT is answered by EVAL", Inbox._handle_error,
        never("word == 'NOSCRIPT'"), link_schedules.a_script_that_was_flushed_is_sent_at_once,
    ),
    Mutant(
        "a round waits for a late reply", "link: a late reply costs its vote", Lateness.has_expired,
        returns("False"), link_schedules.a_late_reply_costs_its_vote,
    ),
    Mutant(
        "one late reply fails all", "link: a late reply costs no other vote", LateWatch._judge,
        never("not (late or ...)"), link_schedules.a_late_reply_costs_no_vote_after_it,
    ),
    Mutant(
        "replies of decided rounds end polls", "link: a decided round need not be judged at once",
        LateWatch._left, always("owed.undecided is not None"),
        link_schedules.no_poll_ends_for_a_reply_of_a_decided_round,
    ),
    Mutant(
        "no poll ends for a vote behind others", "link: each vote expires in time",
        LateWatch._left, never("owed.undecided is not None"),
        link_schedules.a_reply_behind_those_of_decided_rounds_costs_its_vote_in_time,
    ),
    Mutant(
        "late grants take the long way", "fast path: late grants of decided rounds are removed",
        Inbox._parse, never("not owed[0].undecided"),
        link_schedules.late_grants_of_decided_rounds_are_only_removed,
    ),
    Mutant(
        "removed replies are not counted off", "fast path: late grants are counted off",
        Inbox._grant, without("link.expired -= 1"),
        link_schedules.late_grants_of_decided_rounds_are_only_removed,
    ),
    Mutant(
        "any late grant counts", "fast path: a late grant of an open round takes the long way",
        Inbox._parse, always("not owed[0].undecided"),
        link_schedules.a_late_grant_of_a_doubtful_master_has_no_vote,
    ),
    Mutant(
        "expired replies are not counted off", "link: each reply has its own age", Inbox._pop_owed,
        never("link.expired"),
        link_schedules.an_expired_reply_that_has_come_is_not_counted_for_the_next,
    ),
    Mutant(
        "a master is never late", "link: late at twice MASTER_TIMEOUT", Lateness.is_late,
        returns("False"), link_schedules.no_release_waits_for_a_late_master,
    ),
    Mutant(
        "a late reply costs its link", "link: a late reply never costs its link", LateWatch._judge,
        instead("self._mark_late(...)", "self.lose(master, 'late')"),
        link_schedules.a_late_reply_never_costs_its_link,
    ),
    Mutant(
        "any broken link was idle", "link: stale only after a pause", dialer._fail_owed,
        always("owed.sent - link.heard > IDLE"),
        link_schedules.a_link_that_breaks_in_use_is_not_stale,
    ),
    Mutant(
        "no link is stale", "link: stale if it ends after a pause", dialer._fail_owed,
        never("ended and ..."), link_schedules.a_link_that_ends_after_a_pause_is_stale,
    ),
    Mutant(
        "a silent link is stale", "link: a late master is not stale", dialer._fail_owed,
        always("ended"), link_schedules.a_link_that_is_given_up_is_not_stale,
    ),
    Mutant(
        "a link is never given up", "link: given up after a long silence", Lateness.is_over,
        never("silent >= longest"), link_schedules.a_master_that_never_answers_loses_its_link,
    ),
    Mutant(
        "a starved host connects again", "link: kept longer while most masters are late",
        Lateness.longest_silence,
        never("late > masters // 2"), link_schedules.links_are_kept_longer_while_most_are_late,
    ),
    Mutant(
        "a silent minority is kept", "link: a minority is given up soon", Lateness.longest_silence,
        always("late > masters // 2"), link_schedules.links_are_kept_longer_while_most_are_late,
    ),
    Mutant(
        "replies without limit", "link: given up for many replies", Lateness.is_over,
        never("owed > MOST_OWED"), link_schedules.a_master_that_owes_too_much_loses_its_link,
    ),
    Mutant(
        "a long queue costs the link", "link: not given up while answers come", LateWatch._silent,
        returns("self._age(link.owed[0], now)"),
        link_schedules.a_master_that_works_off_a_queue_keeps_its_link,
    ),
    Mutant(
        "any answer is in time", "link: the oldest owed reply is judged", LateWatch._judge,
        instead("link.owed[0]", "link.owed[-1]"),
        link_schedules.a_master_that_always_answers_late_is_late,
    ),
    Mutant(
        "a late master is waited for", "link: no round waits for a late master", Outbox._begin_each,
        never("master.late", nth=1), link_schedules.no_release_waits_for_a_late_master,
    ),
    Mutant(
        "a late master is asked", "link: a late master is sent no acquire", Master.fault,
        never("self.late", nth=1), link_schedules.a_late_master_is_sent_releases_only,
    ),
    Mutant(
        "late for ever", "link: counted again once it has answered", Inbox._count,
        never("master.late and ..."), link_schedules.a_late_master_that_has_answered_votes_again,
    ),
    Mutant(
        "in time after one answer", "link: counted again once it has answered all", Inbox._count,
        always("not owed"), link_schedules.a_late_master_must_answer_all_that_it_owes,
    ),
    Mutant(
        "a late master is not read first", "link: a late master is read before a round",
        Outbox._fit_for,
        without("self._read(...)"), link_schedules.a_late_master_is_read_before_it_is_left_out,
    ),
    Mutant(
        "a link is judged without a last read", "link: the socket is read before it is judged",
        LateWatch.waited,
        without("self._read_all(...)"),
        link_schedules.received_replies_are_read_before_they_are_judged,
    ),
    Mutant(
        "our stall makes masters late", "link: a stall of our own does not count",
        RunningTime.polled,
        instead("max(asked / 4, ...)", "took"),
        link_schedules.a_stall_of_our_own_makes_no_master_late,
    ),
    Mutant(
        "a busy host is out of time", "link: patience where all replies take long",
        Lateness.patience, instead("USUAL * usual", "0"),
        link_schedules.no_vote_is_lost_where_all_replies_take_long,
    ),
    Mutant(
        "patience without end", "link: patience has a bound",
        Lateness.patience, instead("LONGEST * self.master_timeout", "100"),
        link_schedules.no_reply_is_waited_for_without_end,
    ),
    Mutant(
        "patience for one slow master", "link: the median master shows how long replies take",
        LateWatch.patience, instead("median(took)", "max(took)"),
        link_schedules.a_few_slow_masters_are_not_waited_for,
    ),
    Mutant(
        "plain grants take no time", "fast path: it notes how long replies take",
        Inbox._grant,
        without("link.took = heard - exchange.sent"),
        link_schedules.no_vote_is_lost_where_all_replies_take_long,
    ),
    Mutant(
        "a handshake takes no time", "link: a new link shows how long replies take",
        Dialer.arrived, without("master.link.took = high - low"),
        link_schedules.a_new_link_shows_how_long_replies_take,
    ),
    Mutant(
        "computing takes no time", "link: short times between two polls count",
        RunningTime.polled, instead("took + SHORT", "took"),
        test_lateness.test_short_times_between_two_polls_count,
    ),
    Mutant(
        "a stall between polls is lateness", "link: a stall between two polls does not count",
        RunningTime.polled, instead("took + SHORT", "9e9"),
        test_lateness.test_a_stall_between_two_polls_does_not_count,
    ),
    Mutant(
        "a rest too small to add", "link: a poll counts as a millisecond at least",
        RunningTime.polled, never("asked < SHORTEST"),
        test_lateness.test_a_reply_gets_late_however_the_numbers_are_rounded,
    ),
    Mutant(
        "a master that hangs is asked on", "link: a master that is behind is not asked",
        Lateness.behind, never("replies >= most"),
        partial(test_lateness.test_a_master_is_behind_that_owes_more_than_a_quorum_of_others,
                (64, 64, 0, 0, 0), [0, 1]),
    ),
    Mutant(
        "behind one other master", "link: a master is behind a quorum of others",
        Lateness.behind, instead("need - 1", "0"),
        partial(test_lateness.test_a_master_is_behind_that_owes_more_than_a_quorum_of_others,
                (100, 0, 37, 37, 37), []),
    ),
    Mutant(
        "a quorum is not asked", "link: masters that are behind are asked for a quorum",
        LateWatch.behind, never("others < quorum(...)"),
        test_lateness.test_masters_that_are_behind_are_asked_if_there_is_no_quorum_without_them,
    ),
    Mutant(
        "lost without those that are behind", "link: asked again if another master fails meanwhile",
        Planner._may_plan, instead("why == BEHIND", "False"),
        test_lateness.test_masters_that_are_behind_are_asked_if_there_is_no_quorum_without_them,
    ),
    Mutant(
        "each attempt spares masters", "link: an attempt that follows asks every master",
        Wait.begin, instead("not self.lost", "True"),
        test_rounds.test_only_the_first_attempt_spares_masters,
    ),
    Mutant(
        "an extension spares masters", "link: only a first attempt leaves out those behind",
        Planner.leave_out, never("vote.stale and not exchange.asked.spares"),
        test_lateness.test_only_a_first_attempt_leaves_out_masters_that_are_behind,
    ),
    Mutant(
        "answers of masters behind are not read", "link: read before it is left out again",
        LateWatch.behind, without("self.read(master)"),
        test_lateness.test_a_master_whose_answer_is_unread_is_not_behind,
    ),
    Mutant(
        "a far master is behind", "link: a master that answers is not behind",
        Lateness.is_quiet, always("silent >= max(...)"),
        test_lateness.test_a_master_is_behind_only_if_it_is_quiet,
    ),
    Mutant(
        "idle is quiet", "link: a master is quiet since its oldest command",
        LateWatch.look, instead("max(link.heard, ...)", "link.heard"),
        test_lateness.test_a_master_that_was_idle_is_not_quiet,
    ),
    Mutant(
        "a decision waits for a late master", "clock step: no check of a late master is awaited",
        StepWatch.decide,
        always("not m.late"), link_schedules.a_late_master_does_not_hold_up_a_decision,
    ),
    Mutant(
        "all attempts at once", "link: attempts to connect are paced", Pace.turn,
        without("self._next = ..."), link_schedules.attempts_to_connect_are_paced,
    ),
    Mutant(
        "asked without a majority", "link: refused at once if no majority is open",
        Outbox._begin_each,
        never("exchange.decided and ..."), link_schedules.with_a_majority_down_no_master_is_asked,
    ),
    Mutant(
        "ready before its time", "trust: no vote before ready-at", scripts.is_trusted,
        always("now >= ..."), schedules.a_master_is_not_counted_before_its_time,
    ),
    Mutant(
        "a restart goes unnoticed", "trust: run_id is compared with the marker", scripts.join,
        never("match[1] != run"), schedules.a_restarted_master_waits_for_its_time,
    ),
    Mutant(
        "no quarantine", "trust: ready-at is RESTART_DELAY from now", scripts.join,
        instead("now if ... else now + delay", "now"),
        schedules.a_restarted_master_waits_for_its_time,
    ),
    Mutant(
        "any deployment may write", "trust: the deployment's fingerprint is compared",
        scripts.join,
        never("match[3] != fingerprint"), schedules.another_deployment_is_refused,
    ),
    Mutant(
        "a fingerprint without the skew", "trust: the fingerprint has N, MAX_TTL and the skew",
        Deployment.fingerprint,
        instead("ms(self.max_clock_skew)", "0"),
        test_commands.test_a_fingerprint_differs_where_a_number_differs,
    ),
    Mutant(
        "ready-at has no limit", "trust: ready-at is at most RESTART_DELAY away",
        scripts.join,
        always("int(...) <= now + delay"), schedules.a_ready_at_from_a_clock_gone_back_is_cut,
    ),
    Mutant(
        "one server, two votes", "trust: two masters never have one run_id", Dialer._find_twins,
        never("other is not master"), link_schedules.one_server_under_two_names_has_no_vote,
    ),
    Mutant(
        "a lost link still has a name", "trust: a server with one name left votes again",
        Dialer.finish_losing,
        without("self._find_twins()"),
        link_schedules.a_server_votes_again_once_it_has_one_name_left,
    ),
    Mutant(
        "asked before it is trusted", "trust: no vote before ready-at", Master.fault,
        never("now < self.trust.ready"), link_schedules.a_master_has_no_vote_before_it_is_trusted,
    ),
    Mutant(
        "NOT_READY is ignored", "trust: FLUSHALL is noticed", Inbox._handle_vote,
        never("reply[1] == NOT_READY"), link_schedules.a_master_that_is_not_ready_is_asked_why,
    ),
    Mutant(
        "a fingerprint without the masters", "trust: the fingerprint has the masters",
        Deployment.fingerprint,
        instead("members[:16]", "''"),
        test_commands.test_a_fingerprint_differs_where_a_number_differs,
    ),
    Mutant(
        "a marker without evidence", "trust: a fresh master is marked if no other can have it",
        Membership.may_mark,
        always("self._count(group, now) >= quorum(len(group))"),
        test_membership.test_every_group_must_answer_before_the_first_marker_is_written,
    ),
    Mutant(
        "old evidence", "trust: evidence for a marker is recent", Membership._recent,
        always("abs(...) <= RECENT"),
        test_membership.test_a_quorum_that_was_seen_long_ago_is_no_evidence,
    ),
    Mutant(
        "another deployment stops nothing", "trust: a conflict stops all new locks",
        Planner.conflict,
        instead("self._membership.conflict", "''"),
        link_schedules.a_master_of_another_deployment_stops_all_new_locks,
    ),
    Mutant(
        "a conflict is forgotten", "trust: a conflict lasts until the master shows otherwise",
        Membership._is_foreign,
        instead("self._seen.get(name)", "self._seen.pop(name, None)"),
        test_membership.test_a_master_of_another_deployment_is_a_conflict_until_it_shows_otherwise,
    ),
    Mutant(
        "other names without proof", "trust: other names only with the proof of all servers",
        Membership.saw,
        always("len(recent) == len(self._names)"),
        test_membership.test_the_same_servers_under_other_names_are_the_same_deployment,
    ),
    Mutant(
        "two names of one server prove it", "trust: other names are those of different servers",
        membership.same_servers,
        always("len(servers) == len(sights)"),
        test_membership.test_one_server_with_two_names_proves_nothing,
    ),
    Mutant(
        "a copied marker proves it", "trust: other names need the marker of the server's run",
        membership.same_servers,
        always("all(...)"), test_membership.test_a_copied_marker_proves_nothing,
    ),
    Mutant(
        "other numbers prove it", "trust: other names with the same numbers only",
        membership.same_servers,
        always("numbers_of(other) == numbers_of(fingerprint)"),
        test_membership.test_other_numbers_prove_nothing,
    ),
    Mutant(
        "a mismatch is ignored", "trust: ConfigMismatch", join.read_trust,
        never("status == MISMATCH"), link_schedules.a_master_of_another_deployment_is_given_up,
    ),
    Mutant(
        "clocks may step", "clock step: two intervals prove it", StepWatch.note,
        never("apart > self.deployment.max_clock_skew"),
        link_schedules.a_clock_that_steps_is_marked_on_its_master,
    ),
    Mutant(
        "a stepped master still votes", "clock step: the vote is not counted", Inbox._handle_vote,
        instead("master.doubt(read) if command.trusted else ''", "''"),
        link_schedules.a_clock_that_steps_is_marked_on_its_master,
    ),
    Mutant(
        "votes after a step count", "clock step: no vote from the step on", Inbox._handle_vote,
        never("command.trusted"),
        link_schedules.a_command_sent_before_a_step_was_noticed_has_no_vote,
    ),
    Mutant(
        "a release after a step is unknown", "clock step: a release is counted", Inbox._handle_vote,
        always("command.trusted"),
        link_schedules.a_release_is_counted_although_its_reply_shows_a_step,
    ),
    Mutant(
        "a mark is forgotten", "clock step: marked as soon as there is a link", StepWatch.must_mark,
        returns("False"),
        link_schedules.a_step_is_marked_although_another_master_steps_and_the_link_breaks,
    ),
    Mutant(
        "a check replaces a mark", "clock step: no check while a mark is owed", Outbox.check,
        never("mode == 'join' and ..."),
        link_schedules.a_mark_is_settled_although_another_master_steps_meanwhile,
    ),
    Mutant(
        "a master that must be marked is settled", "clock step: settled by the mark",
        StepWatch.checked,
        always("master.check_mode == 'join'"),
        link_schedules.a_step_that_a_check_shows_is_marked_although_no_other_master_answers,
    ),
    Mutant(
        "any answer settles a mark", "clock step: an answer settles only what it answers",
        Inbox._handle_check,
        always("owed.mode == master.check_mode"),
        link_schedules.an_answer_to_an_older_check_does_not_settle_the_mark,
    ),
    Mutant(
        "a mark is sent again as a check", "clock step: a check keeps its mode",
        Inbox._retry,
        instead("owed.mode", "'join'", nth=1),
        link_schedules.a_mark_whose_script_was_flushed_is_sent_again_as_a_mark,
    ),
    Mutant(
        "a lost link holds up a decision", "clock step: no check on a lost link is awaited",
        Dialer.finish_losing,
        without("self._steps.decide()"),
        link_schedules.a_step_is_marked_although_the_last_master_to_be_checked_is_lost,
    ),
    *(
        Mutant(
            f"a steady range that is wide {where}", "clock step: every reply narrows the bounds",
            StepWatch._keep,
            instead("master.steady = ...", f"master.steady = ({least}, {most}, now + KNOWN_FOR)"),
            link_schedules.a_step_is_noticed_soon_after_replies_that_narrow_the_bounds,
        )
        for where, least, most in (
            ("on both sides", "low - little", "high + little"),
            ("below", "low - little", "low + little"),
            ("above", "high - little", "high + little"),
        )
    ),
    Mutant(
        "a clock that goes back within a round is not noticed",
        "clock step: our own, within a round", StepWatch.note,
        never("high < low"), link_schedules.a_clock_that_goes_back_within_a_round_voids_its_lease,
    ),
    Mutant(
        "a clock that goes back between two replies is not noticed",
        "clock step: our own, while replies are read", Inbox.read_all, never("now < heard"),
        link_schedules.a_clock_that_goes_back_between_replies_voids_the_leases_before,
    ),
    Mutant(
        "a check that failed is not made again", "clock step: a failed mark is made again",
        Inbox._handle_error,
        never("command is None"),
        link_schedules.a_step_is_marked_although_the_master_refuses_the_mark_at_first,
    ),
    Mutant(
        "voided by the clock that went back", "clock step: our own, leases are lost",
        StepWatch._blame_ourselves,
        instead("max(now, self._latest)", "now"),
        link_schedules.a_clock_that_goes_back_voids_earlier_leases,
    ),
    Mutant(
        "the step is not marked", "clock step: marked on the master", StepWatch.decide,
        without("self.check(...)"), link_schedules.a_clock_that_steps_is_marked_on_its_master,
    ),
    Mutant(
        "another server has the same clock", "clock step: not measured against another server",
        Dialer.arrived,
        without("master.forget_clock()"),
        link_schedules.an_arriving_link_to_another_server_has_a_clock_of_its_own,
    ),
    Mutant(
        "our own step is the masters'", "clock step: our own if a majority stepped",
        StepWatch.decide,
        never("len(stepped) >= quorum(...)"),
        link_schedules.a_majority_that_steps_at_once_is_our_own_clock,
    ),
    Mutant(
        "drift is a step", "clock step: 1 % of the time between is allowed", StepWatch.note,
        instead("0.01 * abs(...)", "0.0"),
        link_schedules.a_clock_that_runs_a_little_fast_has_not_stepped,
    ),
    Mutant(
        "a child sends for its parent", "fork: no byte on inherited sockets", Links.abandon,
        instead("self.closed.set()", "self.outbox.flush()"),
        link_schedules.a_child_sends_nothing_that_its_parent_had_queued,
    ),
    Mutant(
        "a child holds its parent's lock", "fork: the child does not hold inherited locks",
        HeldLease.inherited,
        never("self.forks != locks.forks"), schedules.a_child_does_not_hold_what_its_parent_holds,
    ),
    Mutant(
        "a master that is not counted stays so", "trust: redlock_init takes effect soon",
        Outbox._fit_for,
        never("now - master.looked > LOOK_AGAIN"),
        link_schedules.a_master_that_was_declared_trusted_is_counted_soon,
    ),
    Mutant(
        "a repeated question hides the reason", "trust: the reason of a wait stays known",
        Dialer.trusted,
        never("... and master.trust.marker == trust.marker"),
        link_schedules.the_reason_of_a_wait_is_kept_while_the_marker_is_the_same,
    ),
    Mutant(
        "a reason outlives its marker", "trust: the reason of a wait belongs to one marker",
        Dialer.trusted,
        instead("master.trust.marker == trust.marker", "True"),
        link_schedules.the_reason_of_a_wait_is_kept_while_the_marker_is_the_same,
    ),
    Mutant(
        "a live link is never inspected", "safe servers: INFO is read again", Outbox._begin_each,
        never("now - master.link.inspected > INSPECTED"),
        link_schedules.a_policy_that_changes_on_a_live_link_is_noticed,
    ),
    Mutant(
        "a handshake hides what INFO is now", "safe servers: INFO is as old as its question",
        Dialer.arrived,
        without("master.link.inspected = ..."),
        link_schedules.what_was_reported_before_a_long_handshake_is_asked_again,
    ),
    Mutant(
        "an old copy is trusted", "safe servers: no old copy of the data by replication",
        Dialer.inspected,
        never("run_of(info) != master.run_id"),
        link_schedules.an_old_copy_by_replication_on_a_live_link_is_noticed,
    ),
    Mutant(
        "a copy has the run of its server", "safe servers: a copy is another run",
        server_info.run_of,
        instead("info.get('master_replid', '')", "''"),
        link_schedules.an_old_copy_by_replication_on_a_live_link_is_noticed,
    ),
    Mutant(
        "evicted keys are forgotten", "safe servers: evictions end a run", server_info.run_of,
        never("evicted.isdecimal()"),
        link_schedules.keys_that_were_evicted_are_noticed_after_the_policy_is_back,
    ),
    Mutant(
        "tolerated evictions count", "safe servers: evictions may be tolerated",
        server_info.run_of, never("may_evict(info)"),
        link_schedules.keys_that_were_evicted_are_noticed_after_the_policy_is_back,
    ),
    Mutant(
        "replicas vote", "safe servers: no replica", server_info.faults,
        never("info.get('role') != ..."), link_schedules.an_unsafe_server_is_not_counted,
    ),
    Mutant(
        "evicting servers vote", "safe servers: no eviction", server_info.faults,
        never("may_evict(info)"), link_schedules.an_unsafe_server_is_not_counted,
    ),
    Mutant(
        "cluster nodes vote", "safe servers: no cluster node", server_info.faults,
        never("info.get('cluster_enabled', ...) == ..."),
        link_schedules.an_unsafe_server_is_not_counted,
    ),
)  # fmt: skip


def main() -> int:
    """Run every mutant from the command line."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")
    django.setup()
    logging.disable()  # masters fail here all the time
    survivors = 0
    for mutant in MUTANTS:
        mutant.schedule()
        failure = mutant.failure()
        survivors += not failure
        sys.stdout.write(f"{mutant.name:40} {mutant.rule:60} {failure[:60] or 'SURVIVES'}\n")
    sys.stdout.write(f"{len(MUTANTS)} mutants, {survivors} survive\n")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())

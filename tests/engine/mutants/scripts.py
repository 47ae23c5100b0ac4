"""Rules of the Lua scripts, by their model in Python."""

from __future__ import annotations

from functools import partial

from redlock_django.backends.memory import scripts
from redlock_django.backends.memory.keyspace import Keyspace
from redlock_django.backends.memory.queue import Queues
from tests.engine import (
    schedules,
    test_fencing,
    test_index,
    test_minimum_hold,
    test_queue,
    test_rounds,
    test_safety,
)
from tests.engine.mutants.mutant import Mutant
from tests.engine.mutation import (
    always,
    argument,
    instead,
    never,
    together,
    without,
)
from tests.engine.schedules import HOUR

MUTANTS: tuple[Mutant, ...] = (
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
        test_rounds.test_a_lock_that_has_gone_before_its_confirmation_is_not_held,
    ),
    Mutant(
        "heal without a marker", "master: heal writes to no other deployment", scripts.heal,
        without("return [NOT_READY, ...]"),
        schedules.no_heal_writes_to_a_master_of_another_deployment,
    ),
    Mutant(
        "an extension re-creates", "extension: never creates a lock again", scripts.not_held,
        instead("[ABSENT, now, absent] if absent else None", "None"),
        test_safety.test_an_extension_counts_no_master_that_has_forgotten,
    ),
    Mutant(
        "an extension takes over", "extension: refused where another client holds it",
        scripts.not_held,
        never("lock is not None and ..."),
        test_rounds.test_a_lock_taken_by_another_client_is_lost_and_left_to_that_client,
    ),
    Mutant(
        "an extension shortens", "extension: never shortens a lock", scripts.extend,
        always("keyspace.pttl(key) < ttl"), schedules.an_unanswered_extension_shortens_nothing,
    ),
    Mutant(
        "a turn never ends", "queue: a turn lasts 0.1 s", Queues.call_first,
        always("now < -score"),
        test_queue.test_a_turn_that_passes_unused_is_over_and_the_next_one_has_it,
    ),
    Mutant(
        "last come, first served", "queue: the first waiter is called", Queues.call_first,
        instead("queue[name]", "-queue[name]"),
        test_queue.test_waiters_are_served_in_the_order_in_which_they_came,
    ),
    Mutant(
        "dead waiters are called", "queue: a waiter that hears no call is skipped",
        Queues.call_first,
        instead(
            "self._keyspace.publish(...)",
            "(1, self._keyspace.publish(channel.decode(), name + slot))",
        ),
        test_queue.test_dead_waiters_are_skipped_at_once,
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
        "no waiter is called", "queue: a release wakes the next waiter", scripts.release,
        without(Queues.call_first, nth=1),
        test_queue.test_waiters_are_served_in_the_order_in_which_they_came,
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
        "ready-at has no limit", "trust: ready-at is at most RESTART_DELAY away",
        scripts.join,
        always("int(...) <= now + delay"), schedules.a_ready_at_from_a_clock_gone_back_is_cut,
    ),
)  # fmt: skip

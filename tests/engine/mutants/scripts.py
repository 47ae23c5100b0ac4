"""Rules of the Lua scripts."""

from __future__ import annotations

from functools import partial

from tests.engine import (
    schedules,
    test_fencing,
    test_index,
    test_minimum_hold,
    test_queue,
    test_rounds,
    test_safety,
    test_script_rules,
)
from tests.engine.lua_mutation import lua
from tests.engine.mutants.mutant import Mutant
from tests.engine.schedules import HOUR

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "acquire ignores tombstones", "master: no acquire after a tombstone",
        "acquire", lua("if seen[3] then", "if false then"),
        test_rounds.test_a_release_can_bury_and_need_not_be_awaited,
    ),
    Mutant(
        "heal ignores tombstones", "master: no heal after a tombstone",
        "heal", lua("if seen[3] then", "if false then"),
        schedules.a_heal_never_brings_back_what_was_released,
    ),
    Mutant(
        "any marker will do", "master: the marker is the expected one",
        "acquire", lua("seen[1] ~= ARGV[#ARGV - 1] or"),
        schedules.a_master_that_was_flushed_has_no_vote,
    ),
    Mutant(
        "extend without a marker", "master: every script checks the marker",
        "extend", lua("seen[1] ~= ARGV[#ARGV - 1] or now < tonumber(ARGV[#ARGV])", "false"),
        schedules.a_master_that_was_flushed_confirms_and_extends_nothing,
    ),
    Mutant(
        "an overlong lock stays", "master: a PTTL above MAX_TTL is cut",
        "acquire", lua("lasts > MAX_TTL and", "false and"),
        schedules.a_lock_from_a_clock_gone_back_is_cut,
    ),
    Mutant(
        "foreign locks are cut", "master: only a value of ours is cut",
        "acquire", lua("lasts > MAX_TTL and is_known", "lasts > MAX_TTL"),
        schedules.a_foreign_lock_is_never_cut,
    ),
    Mutant(
        "acquire overwrites", "master: each lock is absent or has this value",
        "acquire", lua("if lock ~= value then", "if not lock then"),
        schedules.a_late_release_frees_no_other_holder,
    ),
    Mutant(
        "a plain acquire overwrites", "master: each lock is absent or has this value",
        "acquire", lua("and not seen[4]", "", (
            "redis.call('SET', KEYS[4], value, 'NX', 'PX', ttl)",
            "redis.call('SET', KEYS[4], value, 'PX', ttl)",
        )),
        schedules.a_late_release_frees_no_other_holder,
    ),
    Mutant(
        "a plain release deletes any lock", "master: release deletes only this value",
        "release", lua("and redis.pcall('GET', KEYS[2]) == value"),
        schedules.a_late_release_frees_no_other_holder,
    ),
    Mutant(
        "a plain acquire overtakes", "queue: a free lock is reserved for the first",
        "acquire", lua("and redis.call('PTTL', KEYS[6]) == -2"),
        test_queue.test_a_client_that_comes_while_others_wait_does_not_overtake,
    ),
    Mutant(
        "a plain release calls no waiter", "queue: a release wakes the next waiter",
        "release", lua("and redis.call('PTTL', KEYS[3]) == -2"),
        test_queue.test_waiters_are_served_in_the_order_in_which_they_came,
    ),
    Mutant(
        "compare the token only", "master: acquire compares the whole value",
        "acquire", lua(
            "if lock ~= value then", "if (lock or ''):sub(1, 32) ~= value:sub(1, 32) then"
        ),
        schedules.a_value_that_only_begins_with_our_token_is_not_ours,
    ),
    Mutant(
        "free by the token only", "master: release compares the whole value",
        "release", lua(
            "not lock or lock == value and left == 0",
            "not lock or lock:sub(1, 32) == value:sub(1, 32) and left == 0",
        ),
        schedules.a_value_that_only_begins_with_our_token_is_not_ours,
    ),
    Mutant(
        "plain DEL", "master: release deletes only this value",
        "release", lua(
            "not lock or lock == value and left == 0", "not (lock == value and left > 0)"
        ),
        schedules.a_late_release_frees_no_other_holder,
    ),
    Mutant(
        "a resend is a new grant", "master: the same value again gets the same fence",
        "acquire", lua("if not (lock and fence) then", "if true then"),
        schedules.the_same_acquire_twice_is_one_grant,
    ),
    Mutant(
        "fences from the clock alone", "fence: higher than the stored one",
        "acquire", lua(
            "math.max(stored + 1, proposal)", "proposal",
            ("math.max(fence + 1, proposal)", "proposal"),
        ),
        partial(test_fencing.test_fences_grow_whatever_the_clocks_of_clients_say, -0.3),
    ),
    Mutant(
        "fences from the counter alone", "fence: at least the wall clock",
        "acquire", lua(
            "math.max(stored + 1, proposal)", "stored + 1",
            ("math.max(fence + 1, proposal)", "fence + 1"),
        ),
        schedules.fences_grow_after_all_masters_lost_their_memory,
    ),
    Mutant(
        "no clamp above", "fence: a proposal is at most TIME + skew",
        "acquire", lua(
            "math.min(math.max(proposed, now - SKEW), now + SKEW)", "math.max(proposed, now - SKEW)"
        ),
        partial(test_fencing.test_fences_grow_whatever_the_clocks_of_clients_say, HOUR),
    ),
    Mutant(
        "no clamp below", "fence: a proposal is at least TIME - skew",
        "acquire", lua(
            "math.min(math.max(proposed, now - SKEW), now + SKEW)", "math.min(proposed, now + SKEW)"
        ),
        schedules.fences_grow_after_all_masters_lost_their_memory,
    ),
    Mutant(
        "acquire counts a poisoned fence", "fence: acquire takes none above TIME + 2 skew",
        "acquire", lua("> now + 2 *", "> 9e99 + now + 2 *", ("<= now + 2 * SKEW", "<= 9e99")),
        schedules.a_fence_far_ahead_of_its_clock_is_not_counted,
    ),
    Mutant(
        "confirm stores a poisoned fence", "fence: confirm stores none above TIME + 2 skew",
        "confirm", lua("> now + 2 *", "> 9e99 + now + 2 *"),
        schedules.no_confirmation_stores_a_fence_far_ahead,
    ),
    Mutant(
        "heal stores a poisoned fence", "fence: heal stores none above TIME + 2 skew",
        "heal", lua("> now + 2 *", "> 9e99 + now + 2 *"),
        schedules.no_heal_stores_a_fence_far_ahead,
    ),
    Mutant(
        "any string is a fence", "fence: 1 to 16 digits",
        "acquire", lua(
            "if fence and not (fence:find('^%d+$') and #fence <= 16)",
            "if fence and not tonumber(fence)",
            ("fence:find('^%d+$') and #fence <= 16 and", "tonumber(fence) and"),
        ),
        schedules.a_fence_that_is_not_a_number_is_not_counted,
    ),
    Mutant(
        "confirmed by anybody", "fence: confirmed only where the lock is ours",
        "confirm", lua("if lock ~= ARGV[2] then", "if false then"),
        schedules.a_confirmation_counts_only_on_masters_that_have_the_lock,
    ),
    Mutant(
        "confirmed where it is gone", "fence: confirmed only where the lock still is",
        "confirm", lua("if not lock then", "lock = lock or ARGV[2] if false then"),
        test_rounds.test_a_lock_that_has_gone_before_its_confirmation_is_not_held,
    ),
    Mutant(
        "heal without a marker", "master: heal writes to no other deployment",
        "heal", lua("seen[1] ~= ARGV[#ARGV - 1] or now < tonumber(ARGV[#ARGV])", "false"),
        schedules.no_heal_writes_to_a_master_of_another_deployment,
    ),
    Mutant(
        "an extension re-creates", "extension: never creates a lock again",
        "ownership", lua("if absent > 0 then", "if false then"),
        test_safety.test_an_extension_counts_no_master_that_has_forgotten,
    ),
    Mutant(
        "an extension takes over", "extension: refused where another client holds it",
        "ownership", lua("if lock and lock:sub(1, length) ~= own then", "if false then"),
        test_rounds.test_a_lock_taken_by_another_client_is_lost_and_left_to_that_client,
    ),
    Mutant(
        "an extension shortens", "extension: never shortens a lock",
        "extend", lua("if redis.call('PTTL', KEYS[2 + index]) < ttl then", "if true then"),
        schedules.an_unanswered_extension_shortens_nothing,
    ),
    Mutant(
        "a turn never ends", "queue: a turn lasts 0.1 s",
        "queue", lua("score < 0 and now < -score", "score < 0"),
        test_queue.test_a_turn_that_passes_unused_is_over_and_the_next_one_has_it,
    ),
    Mutant(
        "last come, first served", "queue: the first waiter is called",
        "queue", lua(
            "redis.pcall('ZRANGE', key, turns, turns, 'WITHSCORES')",
            "redis.pcall('ZRANGE', key, -1 - turns, -1 - turns, 'WITHSCORES')",
        ),
        test_queue.test_waiters_are_served_in_the_order_in_which_they_came,
    ),
    Mutant(
        "dead waiters are called", "queue: a waiter that hears no call is skipped",
        "queue", lua("type(heard) ~= 'number' or heard == 0", "false"),
        test_queue.test_dead_waiters_are_skipped_at_once,
    ),
    Mutant(
        "a client that does not wait overtakes", "queue: a free lock is reserved for the first",
        "acquire", lua(
            "(slots > 0 or not lock) and redis.call('PTTL', queue) ~= -2",
            "waiter ~= '' and not lock and redis.call('PTTL', queue) ~= -2",
        ),
        test_queue.test_a_client_that_comes_while_others_wait_does_not_overtake,
    ),
    Mutant(
        "the ticket is the last proposal", "queue: the ticket is the first proposal",
        "acquire", lua("ticket = proposal - (proposed - tonumber(ticket))", "ticket = proposal"),
        test_queue.test_a_master_that_forgot_its_queue_gets_the_same_order_again,
    ),
    Mutant(
        "equal tickets both go first", "queue: every master has the same order",
        "queue", lua("ticket == score and waiter < name", "ticket == score"),
        test_queue.test_of_two_equal_tickets_the_first_by_name_is_served,
    ),
    Mutant(
        "no waiter is called", "queue: a release wakes the next waiter",
        "release", lua("call_first(queue, now, '')\n    else", "else"),
        test_queue.test_waiters_are_served_in_the_order_in_which_they_came,
    ),
    Mutant(
        "a turn that cannot be used is kept", "queue: a turn that cannot be used is passed on",
        "acquire", lua("another ~= index and", "false and"),
        test_queue.test_a_waiter_that_cannot_take_everything_passes_its_turn_on,
    ),
    Mutant(
        "a queue never expires", "queue: it lives a little longer than its lock",
        "queue", lua("redis.call('PEXPIRE', key, lasts + LINGER)"),
        test_queue.test_a_queue_lives_a_little_longer_than_the_lock,
    ),
    Mutant(
        "a late release prolongs the lock", "minimum hold: a release never prolongs a lock",
        "release", lua("lock == value and redis.call('PTTL', key) > left", "lock == value"),
        test_minimum_hold.test_a_release_that_arrives_late_or_twice_prolongs_nothing,
    ),
    Mutant(
        "any lock is shortened", "minimum hold: only the lock of this token is shortened",
        "release", lua("elseif lock == value and", "elseif left > 0 and"),
        test_minimum_hold.test_only_the_lock_of_this_token_is_shortened,
    ),
    Mutant(
        "the index keeps the old expiry", "index: it shows when a shortened lock ends",
        "release", lua(
            "redis.pcall('ZADD', KEYS[1], 'XX', math.floor(now / 1000) + left, key:sub(NAME))"
        ),
        test_minimum_hold.test_the_index_shows_when_the_lock_ends,
    ),
    Mutant(
        "a waiter sleeps by the old TTL", "queue: the first waiter learns a shorter TTL",
        "release", lua("local channel = first and first:match('^(.*) ')", "local channel"),
        test_minimum_hold.test_the_first_waiter_is_asked_to_try_again_so_that_it_learns_the_new_ttl,
    ),
    Mutant(
        "an early release leaves its waiter", "queue: every release removes its waiter",
        "release", lua("redis.pcall('ZREM', queue, waiter)"),
        test_minimum_hold.test_a_release_removes_its_waiter_from_the_queues,
    ),
    Mutant(
        "the index has no end", "index: it expires after its last entry",
        "index", lua("type(added) == 'number' and added > 1", "false"),
        test_index.test_a_foreign_lock_without_expiry_is_listed_while_clients_contend_for_it,
    ),
    Mutant(
        "a grant prolongs a new index only", "index: a grant prolongs it once in each MAX_TTL",
        "index", lua("-math.floor(now_ms / MAX_TTL)", "-1"),
        test_index.test_every_period_of_max_ttl_prolongs_the_index,
    ),
    Mutant(
        "the index ends with its period", "index: it lasts until the next period ends",
        "index", lua("KEYS[2], 2 * MAX_TTL)", "KEYS[2], MAX_TTL)"),
        test_index.test_every_period_of_max_ttl_prolongs_the_index,
    ),
    Mutant(
        "the trim ends the period", "index: a grant prolongs it once in each MAX_TTL",
        "index", lua(
            "redis.call('ZRANGEBYSCORE', KEYS[2], 0,",
            "redis.call('ZRANGEBYSCORE', KEYS[2], '-inf',",
        ),
        test_index.test_the_last_release_leaves_the_index_to_the_next_grant,
    ),
    Mutant(
        "an extension does not prolong the index", "index: it expires after its last entry",
        "extend", lua("add_to_index(ttl, KEYS[2 + index])"),
        test_index.test_an_extended_lock_stays_listed,
    ),
    Mutant(
        "a foreign lock is listed for ever", "index: foreign locks are listed while they contend",
        "acquire", lua("lasts < 0 and MAX_TTL or lasts", "lasts < 0 and 2^60 or lasts"),
        test_index.test_a_foreign_lock_without_expiry_is_listed_while_clients_contend_for_it,
    ),
    Mutant(
        "a foreign lock is listed once", "index: foreign locks are listed while they contend",
        "index", lua("'CH', now_ms + left", "'NX', now_ms + left"),
        test_index.test_a_foreign_lock_that_its_owner_extends_stays_listed,
    ),
    Mutant(
        "a stopped process has a turn for each of its waiters",
        "queue: a turn that passes unused removes the waiters of its process",
        "queue", lua("if channel ~= channel_of(waiter) then", "if false then"),
        test_queue.test_a_stopped_process_costs_one_turn_however_many_waiters_it_has,
    ),
    Mutant(
        "a process that asks is removed", "queue: a process that asks has not stopped",
        "queue", lua("if channel ~= channel_of(waiter) then", "if true then"),
        test_queue.test_a_process_that_asks_has_not_stopped,
    ),
    Mutant(
        "a late waiter waits for the turns of others",
        "queue: a late waiter may take the lock in another's turn",
        "queue", lua("if ticket and is_late(key, waiter) then", "if false then"),
        test_queue.test_a_waiter_that_comes_late_takes_the_lock_in_the_turn_of_another,
    ),
    Mutant(
        "a late waiter has turn after turn", "queue: nothing is reserved for a late waiter",
        "queue", lua("elseif score >= LATE then", "elseif false then"),
        test_queue.test_a_late_waiter_has_no_second_turn_before_it_has_asked_again,
    ),
    Mutant(
        "no turn is watched", "queue: another waiter watches a turn",
        "queue", lua("if not ticket then", "if false then"),
        test_queue.test_a_waiter_of_another_process_is_asked_to_watch_a_turn,
    ),
    Mutant(
        "a stopped process watches itself", "queue: if possible, another process watches a turn",
        "queue", lua("if channel and channel ~= own then", "if channel then"),
        test_queue.test_a_waiter_of_another_process_is_asked_to_watch_a_turn,
    ),
    Mutant(
        "ready before its time", "trust: no vote before ready-at",
        "acquire", lua(" or now < tonumber(ARGV[#ARGV])"),
        schedules.a_master_is_not_counted_before_its_time,
    ),
    Mutant(
        "a restart goes unnoticed", "trust: run_id is compared with the marker",
        "join", lua("was ~= run", "false"),
        schedules.a_restarted_master_waits_for_its_time,
    ),
    Mutant(
        "no quarantine", "trust: ready-at is RESTART_DELAY from now",
        "join", lua("or now + delay", "or now"),
        schedules.a_restarted_master_waits_for_its_time,
    ),
    Mutant(
        "any deployment may write", "trust: the deployment's fingerprint is compared",
        "join", lua("other ~= print and mode ~= 'reconfigure'", "false"),
        schedules.another_deployment_is_refused,
    ),
    Mutant(
        "ready-at has no limit", "trust: ready-at is at most RESTART_DELAY away",
        "join", lua(" and tonumber(at) <= now + delay"),
        schedules.a_ready_at_from_a_clock_gone_back_is_cut,
    ),
    Mutant(
        "extend is ready at once", "trust: no vote before ready-at",
        "extend", lua(" or now < tonumber(ARGV[#ARGV])"),
        test_script_rules.no_script_counts_a_master_before_its_time,
    ),
    Mutant(
        "any client may mark", "trust: a client that does not know the masters marks none",
        "join", lua("mode == 'join' or mode == 'distrust'", "false"),
        test_script_rules.a_client_that_does_not_know_the_masters_marks_none,
    ),
    Mutant(
        "confirm goes down", "fence: a confirmation lowers none",
        "confirm", lua(
            "math.max(tonumber(fence or 0), tonumber(ARGV[2 + index]))",
            "tonumber(ARGV[2 + index])",
        ),
        test_script_rules.a_confirmation_lowers_no_fence,
    ),
    Mutant(
        "every resource at fault is the first", "master: a refusal names the resource at fault",
        "acquire", lua("now, index, left, stored", "now, 1, left, stored"),
        test_script_rules.a_refusal_names_the_resource_at_fault,
    ),
    Mutant(
        "a refusal has no TTL", "master: a refusal says how long the lock lasts",
        "acquire", lua("index, left, stored", "index, 0, stored"),
        test_minimum_hold.test_a_released_lock_stays_held_until_its_minimum_hold_is_over,
    ),
    Mutant(
        "a lock is set without its place in the index", "index: it has every lock that was granted",
        "acquire", lua(
            "add_to_index(ttl, KEYS[4])", "add_to_index(-1, KEYS[4])",
            ("add_to_index(ttl, KEYS[2 + 2 * index])", "add_to_index(-1, KEYS[2 + 2 * index])"),
        ),
        test_index.test_a_killed_process_leaves_nothing_in_the_index,
    ),
    Mutant(
        "every turn is ignored", "queue: a free lock is reserved for the first",
        "acquire", lua(
            "(slots > 0 or not lock) and redis.call('PTTL', queue) ~= -2", "false"
        ),
        test_queue.test_a_client_that_comes_while_others_wait_does_not_overtake,
    ),
    Mutant(
        "a release without a clock ends no turn", "queue: a release sees that a turn is over",
        "release", lua(
            "if now == 0 and (has_waiters or left > 0) then", "if now == 0 and left > 0 then"
        ),
        test_script_rules.a_release_sees_that_a_turn_is_over,
    ),
)  # fmt: skip

"""One mutant for each rule: the rule taken out or bent, and the schedule that finds it out.

A mutant is text put in place of text in one function, which is then compiled anew: the file
is never touched, and whoever has imported the function runs the mutant. The same schedule,
run on the function as it stands, must find nothing.

`uv run python -m tests.engine.mutants` runs them all and prints each with its rule and what
found it out.
"""

from __future__ import annotations

import inspect
import logging
import os
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import django
import pytest

from redlock_django.backends.memory_master import MemoryMaster
from redlock_django.engine import fencing, quorum, renewal, rounds, validity, waiting
from redlock_django.engine.commands import Deployment, Heal, Release
from redlock_django.engine.errors import RedlockError
from redlock_django.engine.quorum import Tally
from redlock_django.locking.renewal_service import HeldLease
from redlock_django.wire import join
from redlock_django.wire.link import Link
from redlock_django.wire.links import Links
from redlock_django.wire.master import Master
from redlock_django.wire.steps import StepWatch
from redlock_django.wire.waiters import Waiter
from tests.engine import (
    schedules,
    test_commands,
    test_fencing,
    test_queue,
    test_quorum,
    test_rounds,
    test_safety,
)
from tests.engine.schedules import HOUR
from tests.wire import quiet, test_link

Schedule = Callable[[], object]
Bent = tuple[str, str]  # the text that stands there, and what is put in its place

# What a schedule says when it finds something out; anything else is a broken mutant.
FOUND = (AssertionError, pytest.fail.Exception, RedlockError, StopIteration, RuntimeError)


class Mutant(NamedTuple):
    """A rule of the design (`rule`, with its paragraph) that `bends` take out of `function`."""

    name: str
    rule: str
    function: Any
    bends: tuple[Bent, ...]
    told_by: Schedule

    def living(self) -> AbstractContextManager[None]:
        """Let the mutant take the place of what it mutates."""
        return bent(self.name, self.function, self.bends)

    def found_out(self) -> str:
        """What its schedule says of it; "" where it survives."""
        with self.living():
            try:
                self.told_by()
            except FOUND as found:
                return str(found).strip().partition("\n")[0] or type(found).__name__
        return ""


@contextmanager
def bent(name: str, function: Any, bends: Iterable[Bent]) -> Iterator[None]:
    """Let a function have other text in places; `name` is what its file is called meanwhile."""
    plain = _plain(function)
    code = plain.__code__
    plain.__code__ = _compiled(name, plain, bends)
    try:
        yield
    finally:
        plain.__code__ = code


def _compiled(name: str, function: FunctionType, bends: Iterable[Bent]) -> CodeType:
    source = textwrap.dedent(inspect.getsource(function))
    for stands, put in bends:
        if source.count(stands) != 1:
            raise LookupError(f"{name}: {source.count(stands)} times {stands!r}")
        source = source.replace(stands, put)
    for free in function.__code__.co_freevars:
        # Only a function within another one has a free name, such as super()'s.
        source = f"def around({free}):\n{textwrap.indent(source, '    ')}"
        source += f"    return {function.__name__}\n{function.__name__} = around(None)\n"
    scope = dict(function.__globals__)
    head = "from __future__ import annotations\n"
    exec(compile(head + source, f"<{name}>", "exec"), scope)
    return _plain(scope[function.__name__]).__code__


def _plain(function: Any) -> FunctionType:
    plain = function.fget if isinstance(function, property) else inspect.unwrap(function)
    assert isinstance(plain, FunctionType)
    return plain


def _of(owner: type, name: str) -> Any:
    """A method or property, as it stands in its class."""
    return inspect.getattr_static(owner, name)


acquire, confirm, extend = MemoryMaster._acquire, MemoryMaster._confirm, MemoryMaster._extend
heal, free, joined = MemoryMaster._heal, MemoryMaster._release, MemoryMaster._join
call_first = MemoryMaster._call_first
OVER = "if now >= lease.until:\n        return LeaseState.LOST, lease"
FEWER = "self.need = quorum(self.masters - self.count(Ballot.FAILED))"

MUTANTS: tuple[Mutant, ...] = (
    # §6, who has won.
    Mutant(
        "quorum of half", "§6 a quorum is more than half", quorum.quorum,
        (("masters // 2 + 1", "max(1, masters // 2)"),), schedules.two_halves_do_not_both_hold,
    ),
    Mutant(
        "quorum of those that are up", "§6 N is the configured number", Tally._judge,
        (("yes = self._yes", f"{FEWER}\n    yes = self._yes"),),
        schedules.masters_that_are_down_count_in_the_number,
    ),
    Mutant(
        "a master votes twice", "§7.3 the first vote of a master stands", Tally.cast,
        (("is not None:", "is not None and vote.ballot is Ballot.FAILED:"),),
        test_quorum.test_the_first_vote_of_a_master_stands,
    ),
    Mutant(
        "any clock votes", "§5 a clock off the median is not counted", Tally._near,
        (("abs(vote.time - middle) <= self.skew", "True"),),
        schedules.a_master_whose_clock_ran_ahead_makes_no_second_holder,
    ),
    Mutant(
        "rivals are not told apart", "§6 held by someone, or a split vote", rounds.acquire,
        (("rivals=True", "rivals=False"),), schedules.a_proved_holder_is_not_asked_again,
    ),
    Mutant(
        "a split vote is a refusal", "§6 a split vote is asked again", rounds.acquire,
        (("(split and splits < SPLIT_ROUNDS)", "False"),),
        test_rounds.test_a_split_vote_that_is_over_is_won,
    ),
    Mutant(
        "a verdict waits for all", "§6 return at the verdict", Tally._judge,
        (("if yes >= self.need and", "if not self.outstanding and yes >= self.need and"),),
        test_rounds.test_won_before_the_slowest_has_answered,
    ),
    # §6, for how long.
    Mutant(
        "no drift", "§6 validity is less by 1 % and 2 ms", validity.drift,
        (("ttl * 0.01 + 0.002", "0.0"),), schedules.clocks_that_run_apart_make_no_second_holder,
    ),
    Mutant(
        "validity from the answer", "§6 the clock starts before the first byte", rounds.acquire,
        (("valid_until(ttl, started)", "valid_until(ttl, now)"),),
        schedules.the_time_a_round_took_is_not_ours,
    ),
    Mutant(
        "elapsed is not looked at", "§6 won only with validity left", rounds.acquire,
        (("late = now >= until", "late = False"),),
        schedules.a_round_longer_than_the_ttl_holds_nothing,
    ),
    Mutant(
        "elapsed before the confirm round", "§5 validity is checked after it", rounds.acquire,
        (("fences = highest(", "heard = now\n                fences = highest("),
         ("late = now >= until", "late = heard >= until")),
        test_rounds.test_validity_is_judged_after_the_confirm_round,
    ),
    # §6, one round and the next.
    Mutant(
        "one token for all rounds", "§5 a fresh token for every round", rounds.acquire,
        (("splits = ticket = wrong = 0", "splits = ticket = wrong = 0\n    token = next(tokens)"),
         ("{next(tokens)}", "{token}")),
        test_safety.test_a_late_undo_cannot_free_the_round_after_it,
    ),
    Mutant(
        "one proposal for all rounds", "§5 a proposal is the wall clock now", rounds.acquire,
        (("proposal = next(proposals)", "proposal = ticket or next(proposals)"),),
        test_rounds.test_every_round_has_a_fresh_token_and_a_new_proposal,
    ),
    Mutant(
        "no undo", "§6 a lost round releases", rounds._undo,
        (("_reached(tally) | queued", "queued"),),
        test_rounds.test_won_too_late_is_undone_everywhere,
    ),
    Mutant(
        "undo only what was granted", "§6 wherever it was not definitely refused",
        rounds._reached,
        (("vote is None or (vote.sent and vote.ballot is not Ballot.REFUSED)",
          "vote is not None and vote.ballot is Ballot.GRANTED"),),
        partial(test_rounds.test_interrupted_undoes_all_but_who_surely_has_nothing, SystemExit),
    ),
    Mutant(
        "undo also what was refused", "§6 not where it was definitely refused", rounds._reached,
        ((" and vote.ballot is not Ballot.REFUSED", ""),),
        partial(test_rounds.test_interrupted_undoes_all_but_who_surely_has_nothing, SystemExit),
    ),
    Mutant(
        "cancelled without an undo", "§6 a cancelled round releases", rounds.acquire,
        (("if not resting:", "if False:"),),
        schedules.interrupted_after_the_grants_nothing_is_left,
    ),
    Mutant(
        "a driver that is gone is spoken to", "§6 GeneratorExit: nothing can be undone",
        rounds.acquire, (("except GeneratorExit:", "except ZeroDivisionError:"),),
        partial(test_rounds.test_a_driver_that_is_gone_is_told_nothing, lambda m: m.acquire()),
    ),
    Mutant(
        "a release cut off by Ctrl-C", "§6 to free twice does no harm", rounds.release,
        (("yield Round(commands, Tally(deployment.masters), awaited=False)", "pass"),),
        partial(test_rounds.test_a_release_that_was_interrupted_is_said_again, RuntimeError),
    ),
    Mutant(
        "too few answers are a success", "§6 released, lost or unknown, told apart",
        rounds.release, (("tally.denied else None", "tally.denied else True"),),
        test_rounds.test_released_says_none_where_nobody_knows,
    ),
    Mutant(
        "pauses by chance alone", "§6 retry when the refusal's PTTL has passed",
        waiting.retry_delay, (("delay if left is None else", "delay if True else"),),
        test_rounds.test_no_pause_is_longer_than_the_lock_in_the_way,
    ),
    # §5, what a master checks.
    Mutant(
        "no tombstone", "§5 a release may leave a tombstone", Release.arguments,
        (("ms(self.deployment.max_ttl) if self.bury else 0", "0"),),
        test_rounds.test_a_release_can_bury_and_need_not_be_awaited,
    ),
    Mutant(
        "acquire digs up", "§5 acquire: no tombstone for this token", acquire,
        (("return [BURIED, now]", "pass"),),
        test_rounds.test_a_release_can_bury_and_need_not_be_awaited,
    ),
    Mutant(
        "heal digs up", "§5 heal: no tombstone either", heal,
        (("return [BURIED, now]", "pass"),),
        schedules.a_heal_never_brings_back_what_was_released,
    ),
    Mutant(
        "any marker will do", "§5 marker as expected", MemoryMaster._ready,
        (("self.get(keys[0]) == argv[-2] and ", ""),),
        schedules.a_master_that_was_flushed_has_no_vote,
    ),
    Mutant(
        "ready before its time", "§7.4 ready-at", MemoryMaster._ready,
        ((" and now >= int(argv[-1])", ""),), schedules.a_master_is_not_counted_before_its_time,
    ),
    Mutant(
        "extend without a marker", "§5 scripts check the marker", extend,
        (("return [NOT_READY, now]", "pass"),),
        schedules.a_master_that_was_flushed_confirms_and_extends_nothing,
    ),
    Mutant(
        "a restart goes unnoticed", "§7.4 run_id compared with the marker", joined,
        (("match[1] != run", "False"),), schedules.a_restarted_master_waits_for_its_time,
    ),
    Mutant(
        "no quarantine", "§7.4 ready-at = now + RESTART_DELAY", joined,
        (("else now + delay", "else now"),), schedules.a_restarted_master_waits_for_its_time,
    ),
    Mutant(
        "any deployment may write", "§7.4 the fingerprint of the deployment", joined,
        (("match[3] != fingerprint and ", "False and "),), schedules.another_deployment_is_refused,
    ),
    Mutant(
        "a fingerprint without the skew", "§7.4 fingerprint of N, MAX_TTL and skew",
        _of(Deployment, "fingerprint"), ((",skew={ms(self.max_clock_skew)}", ""),),
        test_commands.test_a_fingerprint_differs_where_a_number_differs,
    ),
    Mutant(
        "a ready-at for ever", "§7.4 no ready-at further away than the delay", joined,
        ((" and int(match[2]) <= now + delay", ""),),
        schedules.a_ready_at_from_a_clock_gone_back_is_cut,
    ),
    Mutant(
        "an overlong lock stays", "§5 a PTTL above MAX_TTL is cut", acquire,
        (("left > max_ttl and _OURS.match(lock)", "False"),),
        schedules.a_lock_from_a_clock_gone_back_is_cut,
    ),
    Mutant(
        "foreign locks are cut", "§5 only where the value is one of ours", acquire,
        ((" and _OURS.match(lock)", ""),), schedules.a_foreign_lock_is_never_cut,
    ),
    Mutant(
        "acquire overwrites", "§5 every lock absent or already this value", acquire,
        (("lock is not None and lock != value", "False"),),
        schedules.who_overslept_frees_no_other,
    ),
    Mutant(
        "compare the token only", "§5 compare the whole value (acquire)", acquire,
        (("lock != value", "lock[:32] != value[:32]"),),
        schedules.what_begins_with_our_token_need_not_be_ours,
    ),
    Mutant(
        "free by the token only", "§5 compare the whole value (release)", free,
        (("lock == argv[1]", "(lock or b'')[:32] == argv[1][:32]"),),
        schedules.what_begins_with_our_token_need_not_be_ours,
    ),
    Mutant(
        "plain DEL", "§5 release: value is ours, then DEL", free,
        (("if lock == argv[1]", "if lock is not None"),), schedules.who_overslept_frees_no_other,
    ),
    Mutant(
        "a resend is a new grant", "§5 already this value: the same fence", acquire,
        (("lock is None or fence is None:\n            stored", "True:\n            stored"),),
        schedules.the_same_words_twice_are_one_grant,
    ),
    # §5, fences.
    Mutant(
        "fences from the clock alone", "§5 stored + 1", acquire,
        (("max(stored + 1, proposal)", "proposal"),),
        partial(test_fencing.test_fences_grow_whatever_the_clocks_of_clients_say, -0.3),
    ),
    Mutant(
        "fences from the counter alone", "§5 the wall clock is in it", acquire,
        (("max(stored + 1, proposal)", "stored + 1"),),
        schedules.a_holder_without_memory_behind_it_still_has_the_higher_number,
    ),
    Mutant(
        "no clamp above", "§5 p clamped to TIME + skew", acquire,
        (("min(max(proposal, now - skew), now + skew)", "max(proposal, now - skew)"),),
        partial(test_fencing.test_fences_grow_whatever_the_clocks_of_clients_say, HOUR),
    ),
    Mutant(
        "no clamp below", "§5 p clamped to TIME - skew", acquire,
        (("min(max(proposal, now - skew), now + skew)", "min(proposal, now + skew)"),),
        schedules.a_holder_without_memory_behind_it_still_has_the_higher_number,
    ),
    Mutant(
        "acquire counts a poisoned fence", "§5 none above TIME + 2 skew (acquire)", acquire,
        (("return [FENCE_AHEAD, now]", "pass"),),
        schedules.a_counter_far_ahead_of_its_clock_is_not_counted,
    ),
    Mutant(
        "confirm stores a poisoned fence", "§5 none above TIME + 2 skew (confirm)", confirm,
        (("return [FENCE_AHEAD, now]", "pass"),),
        schedules.no_confirmation_stores_a_number_far_ahead,
    ),
    Mutant(
        "heal stores a poisoned fence", "§5 none above TIME + 2 skew (heal)", heal,
        (("return [FENCE_AHEAD, now]", "pass"),), schedules.no_heal_stores_a_number_far_ahead,
    ),
    Mutant(
        "any text is a fence", "§5 a fence is 1 to 16 digits", acquire,
        (("fence is not None and not _FENCE.fullmatch(fence)", "False"),),
        schedules.a_counter_that_is_no_number_is_not_counted,
    ),
    Mutant(
        "no confirm round", "§5 else a confirm round", rounds.acquire,
        (("agreed = settled(tally, fences)", "agreed = True"),),
        schedules.what_a_crashed_writer_left_goes_to_a_majority,
    ),
    Mutant(
        "one master confirms for all", "§5 a majority answered m", fencing.settled,
        (("tally.majority(sum(1 for vote in votes if vote.fences[index] >= fence))",
          "any(vote.fences[index] >= fence for vote in votes)"),),
        schedules.what_a_crashed_writer_left_goes_to_a_majority,
    ),
    Mutant(
        "confirmed by anybody", "§5 where the lock is still ours", confirm,
        (("if lock != argv[1]:", "if False:"),),
        schedules.a_confirmation_counts_only_from_who_carries_the_lock,
    ),
    Mutant(
        "confirmed where it is gone", "§5 where the lock is still ours", confirm,
        (("if lock is None:", "if False:"), ("lock != argv[1]", "lock not in (None, argv[1])")),
        test_rounds.test_not_held_where_the_lock_has_gone_meanwhile,
    ),
    Mutant(
        "refusals have no say", "§5 m is the max of all replies, refusals too",
        fencing.highest, (("elif vote.ballot is Ballot.REFUSED and", "elif False and"),),
        test_fencing.test_refusals_count_plus_one,
    ),
    Mutant(
        "a poisoned refusal has a say", "§5 none above TIME + 2 skew (refusals)",
        fencing._honest, (("skew is None or", "True or"),),
        test_fencing.test_a_refusal_far_ahead_of_its_own_clock_has_no_say,
    ),
    Mutant(
        "a wrong clock lifts the fence", "§5 its fence is left out of m", fencing.highest,
        (("in tally.agreeing", "in filter(None, tally.votes)"),),
        test_fencing.test_a_clock_off_the_median_has_no_say,
    ),
    # §5, extensions.
    Mutant(
        "extended after the deadline", "§5 not past the old deadline (asked)", rounds.extend,
        ((f"{OVER}\n    started", "started"),),
        test_rounds.test_nothing_is_said_after_the_deadline,
    ),
    Mutant(
        "extended by a late answer", "§5 not past the old deadline (answered)", rounds.extend,
        ((f"{OVER}\n    until", "until"),),
        test_rounds.test_answers_after_the_old_deadline_are_too_late,
    ),
    Mutant(
        "extended from the answer", "§6 elapsed counts in extensions", rounds.extend,
        (("valid_until(ttl, started)", "valid_until(ttl, now)"),),
        test_rounds.test_renewed_from_before_its_first_byte,
    ),
    Mutant(
        "renewed into the past", "§6 won only with validity left (extend)", rounds.extend,
        ((" and now < until", ""),),
        test_rounds.test_an_extension_used_up_by_its_own_round_is_unknown,
    ),
    Mutant(
        "an extension re-creates", "§5 absent: never re-create", extend,
        (("if absent:", "if False:"),),
        test_safety.test_an_extension_counts_no_master_that_has_forgotten,
    ),
    Mutant(
        "an extension takes over", "§5 other: say taken", extend,
        (("if lock is not None and lock != value:", "if False:"),),
        test_rounds.test_taken_by_another_is_a_loss_and_left_to_the_other,
    ),
    Mutant(
        "an extension shortens", "§5 an extension never shortens", extend,
        (("if self.pttl(key) < ttl:", "if True:"),),
        schedules.an_unanswered_extension_shortens_nothing,
    ),
    Mutant(
        "a heal counts at once", "§5 it counts from the one after", Heal.vote,
        (("if vote.ballot is Ballot.GRANTED:", "if False:"),),
        schedules.a_healed_master_does_not_count_at_once,
    ),
    Mutant(
        "nobody is healed", "§5 masters that said absent are healed", rounds.extend,
        (("heal if master in forgot else ask", "ask"),),
        test_rounds.test_who_forgot_is_healed_in_the_next_and_counts_from_the_one_after,
    ),
    Mutant(
        "who is being healed is not freed", "§5 a release goes wherever it may stand",
        rounds.release, ((" | _forgot(lease)", ""),),
        test_rounds.test_a_release_goes_to_who_may_carry_it_and_to_who_is_being_healed,
    ),
    Mutant(
        "renewed beyond the hold", "§6 no extension reaches beyond hold_until",
        renewal.next_extension, (("min(ttl, hold_until - when)", "ttl"),),
        schedules.no_extension_reaches_beyond_the_hold,
    ),
    # §5, the queue.
    Mutant(
        "a turn never ends", "§5 a turn lasts 0.1 s", call_first,
        (("score < 0 and now < -score", "score < 0"),),
        test_queue.test_a_turn_that_passes_unused_is_over_and_the_next_one_has_it,
    ),
    Mutant(
        "last come, first served", "§5 the first waiter is called", call_first,
        (("min(queue,", "max(queue,"),), test_queue.test_first_come_first_served,
    ),
    Mutant(
        "the dead are waited for", "§5 who hears no call is skipped", call_first,
        (("self.publish(channel.decode(), name)", "(1, self.publish(channel.decode(), name))"),),
        test_queue.test_the_dead_are_skipped_at_once,
    ),
    Mutant(
        "overtaken by who does not wait", "§5 a free lock is promised to the first", acquire,
        (("if first is not None:", "if first is not None and waiter:"),),
        test_queue.test_whoever_comes_while_others_wait_does_not_overtake,
    ),
    Mutant(
        "the place is the last asking's", "§5 the place in the queue is the first proposal's",
        acquire, (("ticket = proposal - age", "ticket = proposal"),),
        test_queue.test_a_master_that_forgot_its_queue_gets_the_same_order_again,
    ),
    Mutant(
        "two who came at once both go first", "§5 every master has the same order", call_first,
        (("(ticket, waiter) < (score, name)", "ticket <= score"),),
        test_queue.test_of_two_who_came_at_once_the_first_by_name_is_served,
    ),
    Mutant(
        "the place is by one's own clock", "§5 every master has the same order", waiting.behind,
        (("return least if abs(least) > tally.skew / 2 else 0", "return 0"),),
        test_queue.test_what_a_wrong_clock_gains_within_the_skew_is_gone_when_it_asks_again,
    ),
    Mutant(
        "who was stopped has a wrong clock", "§5 the place is the first proposal's",
        waiting.behind, (("most - round(took * 1_000_000)", "most"),),
        test_queue.test_who_was_stopped_while_it_asked_is_not_taken_for_one_whose_clock_is_wrong,
    ),
    Mutant(
        "a few say that a clock is wrong", "§5 a majority says what time it is", waiting.behind,
        ((" or not tally.majority(len(times))", ""),),
        test_queue.test_a_minority_does_not_say_that_a_clock_is_wrong,
    ),
    Mutant(
        "who gives up stays", "§5 who gives up leaves the queues", rounds._undo,
        (("ask.waiter if leave else", '"" if leave else'),),
        test_queue.test_giving_up_leaves_no_trace_and_lets_the_next_one_go,
    ),
    Mutant(
        "an undo calls", "§5 an undo before the next round calls nobody", Release.keys,
        (("self._queues() if self.calls else ()", "self._queues()"),),
        test_queue.test_an_undo_on_the_way_to_the_next_round_calls_nobody,
    ),
    Mutant(
        "nobody is called", "§5 release wakes the next waiter", free,
        (("self._call_first(queues[index - 1], now)", "pass"),),
        test_queue.test_first_come_first_served,
    ),
    Mutant(
        "a turn is kept by who cannot use it", "§5 who cannot take all passes its turn on",
        MemoryMaster._pass_on, (("if behind != index and", "if False and"),),
        test_queue.test_who_cannot_take_everything_lets_the_next_one_have_its_turn,
    ),
    Mutant(
        "a queue for ever", "§5 a queue lives a little longer than its lock",
        MemoryMaster._stand, (("self._ms + lasts + LINGER", "9e99"),),
        test_queue.test_a_queue_lives_a_little_longer_than_the_lock,
    ),
    Mutant(
        "one call is enough", "§5 called by a majority", _of(Waiter, "decided"),
        ((">= self._need", ">= 1"),), schedules.a_minority_that_calls_is_not_enough,
    ),
    Mutant(
        "an old call counts", "§5 calls since its last round began", Waiter.ask,
        (("self._callers.clear()", "pass"),),
        schedules.what_was_called_before_a_round_is_heard_by_it,
    ),
    # §7, the wire.
    Mutant(
        "any number is the round's", "§5 every reply carries the round's number", Links._answer,
        ((" or reply[0] != number", ""),), quiet.a_reply_of_another_round_is_no_vote,
    ),
    Mutant(
        "a reply nobody asked for", "§7.3 replies are counted per link", Links._answer,
        (('raise ProtocolDesync("a reply that nobody asked for")', "return"),),
        quiet.a_reply_too_many_drops_the_link,
    ),
    Mutant(
        "half a command is sent on", "§7.3 after an interrupted send a link is worthless",
        Link.send, (('raise ProtocolDesync("a send was interrupted")', "return"),),
        test_link.test_after_an_interrupted_send_the_link_is_worthless,
    ),
    Mutant(
        "a release overtakes", "§6 a release travels behind its acquire", Links._write,
        (("link.out += data", "link.out[:0] = data"),),
        quiet.a_release_leaves_behind_its_acquire,
    ),
    Mutant(
        "a release with no link is lost", "§5 the release is kept", Links.begin,
        (("master.keep(command)", "pass"),),
        quiet.a_release_for_a_lost_link_is_the_first_thing_said_and_buries,
    ),
    Mutant(
        "an unanswered release is lost", "§5 the release is kept (owed)", Links.lose,
        (("master.keep(command)", "pass"),), quiet.a_release_that_was_not_answered_is_said_again,
    ),
    Mutant(
        "a kept release does not bury", "§5 sent with its tombstone", Master.keep,
        (("replace(release, bury=True)", "release"),),
        quiet.a_release_for_a_lost_link_is_the_first_thing_said_and_buries,
    ),
    Mutant(
        "a token on a lost link is forgotten", "§5 its acquire may still arrive", Links.lose,
        (("master.loosen(command.token)", "pass"),),
        quiet.a_release_after_an_acquire_that_may_still_arrive_buries,
    ),
    Mutant(
        "every release buries", "§5 a tombstone only where it may arrive later", Links.begin,
        ((" and command.token in master.loose:", ":"), ("del master.loose[command.token]", "pass")),
        quiet.an_ordinary_release_leaves_no_tombstone,
    ),
    Mutant(
        "a decided round is sent again", "§5 once decided, no EVAL of it", Links._retry,
        (("(exchange is not None and not exchange.decided)", "True"),),
        quiet.a_decided_round_is_not_sent_again,
    ),
    Mutant(
        "NOSCRIPT is a failure", "§5 NOSCRIPT answered by EVAL", Links._refused,
        (('word == "NOSCRIPT" and', "False and"),), quiet.a_script_that_was_flushed_is_sent_at_once,
    ),
    Mutant(
        "lateness is never judged", "§7.3 a link that owes too long is closed", Links.waited,
        (("if link.waited >= self.master_timeout:\n", "if False:\n"),),
        quiet.a_master_that_never_answers_loses_its_link,
    ),
    Mutant(
        "judged without a last look", "§7.3 only after draining the socket", Links.waited,
        (("self.read(master)\n", "pass\n"),),
        quiet.what_lies_there_already_is_read_before_a_master_is_judged,
    ),
    Mutant(
        "our stall makes masters late", "§7.3 a stall of our own does not count", Links.waited,
        (("min(asked, took) if took < 2 * asked + 0.005 else asked / 4", "took"),),
        quiet.a_stall_of_our_own_makes_no_master_late,
    ),
    Mutant(
        "one server, two votes", "§7.5 two masters with one run_id", Links._find_twins,
        (("if other is not master:", "if False:"),), quiet.one_server_under_two_names_has_no_vote,
    ),
    Mutant(
        "asked in vain", "§7.6 with a majority open, refuse at once", Links.begin,
        (("exchange.decided and exchange.tally.unreachable", "False"),),
        quiet.with_a_majority_down_nobody_is_asked,
    ),
    Mutant(
        "asked before it is trusted", "§7.4 until ready, votes count as failed", Master.fault,
        (("if now < self.trust.ready:", "if False:"),),
        quiet.a_master_has_no_vote_before_it_is_trusted,
    ),
    Mutant(
        "not ready, and nobody asks why", "§7.4 FLUSHALL is noticed", Links._answer,
        (("if reply[1] == NOT_READY:", "if False:"),),
        quiet.a_master_that_is_not_ready_is_asked_why,
    ),
    Mutant(
        "other numbers are no matter", "§7.4 ConfigMismatch", join.read_trust,
        (("if status == MISMATCH:", "if False:"),), quiet.another_deployments_master_is_given_up,
    ),
    Mutant(
        "clocks may step", "§7.4 a step is proved by two intervals", StepWatch.note,
        (("if apart > self.deployment.max_clock_skew:", "if False:"),),
        quiet.a_clock_that_steps_is_marked_on_its_master,
    ),
    Mutant(
        "a stepped master still votes", "§7.4 its vote is not counted", Links._answer,
        (("if doubted else", "if False else"),),
        quiet.a_clock_that_steps_is_marked_on_its_master,
    ),
    Mutant(
        "what comes behind a step counts", "§7.4 from the step on it is not counted",
        Links._answer, (("(command.trusted and master.doubt(read))", "False"),),
        quiet.what_was_asked_before_a_step_was_seen_has_no_vote,
    ),
    Mutant(
        "a mark is forgotten", "§7.4 marked on the master, once there is a link", Links._check,
        (('if how == "join" and master.how != "join":', "if False:"),),
        quiet.a_step_is_marked_although_another_is_seen_and_the_link_breaks,
    ),
    Mutant(
        "a clock that goes back under a round is not seen", "§7.4 our own clock: leases are lost",
        StepWatch.note, (("if high < low:", "if False:"),),
        quiet.a_clock_that_goes_back_under_a_round_voids_what_comes_of_it,
    ),
    Mutant(
        "a check that failed is not made again", "§7.4 marked on the master", Links._refused,
        (("owed.command is None or word in", "word in"),),
        quiet.a_step_is_marked_although_the_master_cannot_take_the_mark_now,
    ),
    Mutant(
        "voided by the clock that went back", "§7.4 our own clock: leases are lost",
        StepWatch._blame_ourselves, (("max(now, self._latest)", "now"),),
        quiet.a_clock_that_goes_back_voids_what_was_begun_before,
    ),
    Mutant(
        "the step is not marked", "§7.4 marked on the master", StepWatch.decide,
        (('self.check(master, "distrust")', "pass"),),
        quiet.a_clock_that_steps_is_marked_on_its_master,
    ),
    Mutant(
        "our own step is theirs", "§7.4 a majority steps: our own clock", StepWatch.decide,
        (("len(stepped) >= quorum(self.deployment.masters)", "False"),),
        quiet.the_clocks_of_a_majority_do_not_step_at_once,
    ),
    Mutant(
        "drift is a step", "§7.4 widened by 1 % of the time between", StepWatch.note,
        (("0.01 * abs(now - at)", "0.0"),), quiet.a_clock_that_runs_a_little_fast_has_not_stepped,
    ),
    Mutant(
        "a child speaks for its parent", "§7.7 inherited sockets without a byte", Links.abandon,
        (("self.closed.set()", "self.flush()"),),
        quiet.a_child_says_nothing_of_what_its_parent_had_to_say,
    ),
    Mutant(
        "a child holds its parent's lock", "§7.7 in a child, inherited locks are not held",
        _of(HeldLease, "inherited"), (("self.forks != locks.forks", "False"),),
        schedules.a_child_does_not_hold_what_its_parent_holds,
    ),
    Mutant(
        "replicas vote", "§7.5 safe servers only (replica)", join.faults,
        (('info.get("role") != "master"', "False"),),
        quiet.a_server_that_is_no_safe_master_is_not_counted,
    ),
    Mutant(
        "evicting servers vote", "§7.5 safe servers only (eviction)", join.faults,
        (('policy != "noeviction"', "False"),),
        quiet.a_server_that_is_no_safe_master_is_not_counted,
    ),
    Mutant(
        "cluster nodes vote", "§7.5 safe servers only (cluster)", join.faults,
        (('info.get("cluster_enabled", "0") == "1"', "False"),),
        quiet.a_server_that_is_no_safe_master_is_not_counted,
    ),
)  # fmt: skip


def main() -> int:
    """The command line."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")
    django.setup()
    logging.disable()  # masters fail here all the time
    survive = 0
    for mutant in MUTANTS:
        mutant.told_by()
        found = mutant.found_out()
        survive += not found
        sys.stdout.write(f"{mutant.name:40} {mutant.rule:60} {found[:60] or 'SURVIVES'}\n")
    sys.stdout.write(f"{len(MUTANTS)} mutants, {survive} survive\n")
    return 1 if survive else 0


if __name__ == "__main__":
    sys.exit(main())

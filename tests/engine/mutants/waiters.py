"""Rules of who is called, and when a waiter asks again."""

from __future__ import annotations

from redlock_django.wire.drivers.combiner import Combiner
from redlock_django.wire.links.waiters import Waiter, Waiters
from tests.engine import (
    schedules,
)
from tests.engine.mutants.mutant import Mutant
from tests.engine.mutation import (
    always,
    instead,
    never,
    without,
)
from tests.wire import test_reading

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "one call is enough", "queue: called by a majority", Waiter.decided,
        instead("self._need", "1"), schedules.a_minority_that_calls_is_not_enough,
    ),
    Mutant(
        "a call ends two pauses", "queue: what ended a pause does not end the next one",
        Waiter.end_rest, without("self.wake, self.until = wake_none, math.inf"),
        schedules.what_ended_a_pause_does_not_end_the_next_one,
    ),
    Mutant(
        "an interrupt leaves a thread asleep that was called",
        "queue: after an interrupt, every thread that need not wait is woken",
        Combiner.wake_decided, instead("[*self.waiting, *self.sleeping]", "[*self.waiting]"),
        test_reading.test_a_thread_that_waits_to_be_called_is_woken_although_an_interrupt_struck_before,
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
)  # fmt: skip

"""Rules of clocks that step."""

from __future__ import annotations

from redlock_django.wire.links.clock_steps import StepWatch
from redlock_django.wire.links.replies import Replies
from tests.engine.mutants.mutant import Mutant
from tests.engine.mutation import (
    always,
    instead,
    never,
    returns,
    without,
)
from tests.wire import (
    link_schedules,
    test_plain_rounds,
)

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "our clock's latest time is lost", "fast path: our own step voids what began before",
        Replies.feed, without("self._steps.latest = heard"),
        test_plain_rounds.test_our_clock_that_goes_back_voids_a_lease_that_began_since,
    ),
    Mutant(
        "a decision waits for a late master", "clock step: no check of a late master is awaited",
        StepWatch.decide,
        always("not m.late"), link_schedules.a_late_master_does_not_hold_up_a_decision,
    ),
    Mutant(
        "clocks may step", "clock step: two intervals prove it", StepWatch.note,
        never("apart > self.deployment.max_clock_skew"),
        link_schedules.a_clock_that_steps_is_marked_on_its_master,
    ),
    Mutant(
        "a mark is forgotten", "clock step: marked as soon as there is a link", StepWatch.must_mark,
        returns("False"),
        link_schedules.a_step_is_marked_although_another_master_steps_and_the_link_breaks,
    ),
    Mutant(
        "a master that must be marked is settled", "clock step: settled by the mark",
        StepWatch.checked,
        always("master.check_mode == 'join'"),
        link_schedules.a_step_that_a_check_shows_is_marked_although_no_other_master_answers,
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
        "voided by the clock that went back", "clock step: our own, leases are lost",
        StepWatch._blame_ourselves,
        instead("max(now, self.latest)", "now"),
        link_schedules.a_clock_that_goes_back_voids_earlier_leases,
    ),
    Mutant(
        "the step is not marked", "clock step: marked on the master", StepWatch.decide,
        without("self.check(...)"), link_schedules.a_clock_that_steps_is_marked_on_its_master,
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
)  # fmt: skip

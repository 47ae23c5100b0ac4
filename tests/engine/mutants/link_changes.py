"""Rules of connecting, and losing a link."""

from __future__ import annotations

from redlock_django.wire.drivers.dialing import Pace
from redlock_django.wire.links.link_changes import LinkChanges
from redlock_django.wire.links.master import Master, find_twins
from tests.engine.mutants.mutant import Mutant
from tests.engine.mutation import (
    always,
    instead,
    never,
    without,
)
from tests.wire import (
    link_schedules,
)

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "a grant on a lost link stays", "link: what may be granted is released on the next link",
        Master.fail_owed, without(Master.keep_release, nth=2),
        link_schedules.a_link_that_is_lost_after_the_refusal_brings_the_release_later,
    ),
    Mutant(
        "an unanswered release is lost", "link: an unanswered release is kept",
        Master.fail_owed, without(Master.keep_release, nth=1),
        link_schedules.a_release_that_was_not_answered_is_sent_again,
    ),
    Mutant(
        "an interrupted loss stays unfinished", "link: a link is lost to the end",
        LinkChanges.retry, without(LinkChanges.finish_losing),
        link_schedules.a_link_whose_loss_was_interrupted_is_lost_by_the_next_round,
    ),
    Mutant(
        "a token on a lost link is forgotten", "link: an acquire may arrive after its link is lost",
        Master.fail_owed,
        without(Master.remember_unanswered),
        link_schedules.a_release_after_an_acquire_that_may_still_arrive_buries,
    ),
    Mutant(
        "any broken link was idle", "link: stale only after a pause", Master.fail_owed,
        always("owed.sent - link.heard > IDLE"),
        link_schedules.a_link_that_breaks_in_use_is_not_stale,
    ),
    Mutant(
        "no link is stale", "link: stale if it ends after a pause", Master.fail_owed,
        never("ended and ..."), link_schedules.a_link_that_ends_after_a_pause_is_stale,
    ),
    Mutant(
        "a silent link is stale", "link: a late master is not stale", Master.fail_owed,
        always("ended"), link_schedules.a_link_that_is_given_up_is_not_stale,
    ),
    Mutant(
        "a handshake takes no time", "link: a new link shows how long replies take",
        LinkChanges.joined, instead("high - low", "0.0"),
        link_schedules.a_new_link_shows_how_long_replies_take,
    ),
    Mutant(
        "all attempts at once", "link: attempts to connect are paced", Pace.turn,
        without("self._next = ..."), link_schedules.attempts_to_connect_are_paced,
    ),
    Mutant(
        "one server, two votes", "trust: two masters never have one run_id", find_twins,
        never("other is not master"), link_schedules.one_server_under_two_names_has_no_vote,
    ),
    Mutant(
        "a lost link still has a name", "trust: a server with one name left votes again",
        LinkChanges.finish_losing,
        without("find_twins(self._masters)"),
        link_schedules.a_server_votes_again_once_it_has_one_name_left,
    ),
    Mutant(
        "a lost link holds up a decision", "clock step: no check on a lost link is awaited",
        LinkChanges.finish_losing,
        without("self._steps.decide()"),
        link_schedules.a_step_is_marked_although_the_last_master_to_be_checked_is_lost,
    ),
    Mutant(
        "another server has the same clock", "clock step: not measured against another server",
        LinkChanges.joined,
        without("master.forget_clock()"),
        link_schedules.an_arriving_link_to_another_server_has_a_clock_of_its_own,
    ),
    Mutant(
        "a repeated question hides the reason", "trust: the reason of a wait stays known",
        LinkChanges.trust,
        never("... and master.trust.marker == trust.marker"),
        link_schedules.the_reason_of_a_wait_is_kept_while_the_marker_is_the_same,
    ),
    Mutant(
        "a reason outlives its marker", "trust: the reason of a wait belongs to one marker",
        LinkChanges.trust,
        instead("master.trust.marker == trust.marker", "True"),
        link_schedules.the_reason_of_a_wait_is_kept_while_the_marker_is_the_same,
    ),
    Mutant(
        "a handshake hides what INFO is now", "safe servers: INFO is as old as its question",
        LinkChanges.joined,
        instead("result.inspected", "self._clock()"),
        link_schedules.what_was_reported_before_a_long_handshake_is_asked_again,
    ),
    Mutant(
        "an old copy is trusted", "safe servers: no old copy of the data by replication",
        LinkChanges.inspected,
        never("run_of(info) != master.run_id"),
        link_schedules.an_old_copy_by_replication_on_a_live_link_is_noticed,
    ),
)  # fmt: skip

"""Rules of masters that answer late."""

from __future__ import annotations

from redlock_django.wire.drivers.sockets import Sockets
from redlock_django.wire.links.late_masters import Lateness, LateWatch, RunningTime
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
    test_lateness,
)

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "a patient round never ends", "link: a patient round ends", LateWatch.judge,
        without("self.fail_late(...)"), link_schedules.a_patient_round_ends,
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
        "a master is never late", "link: late at twice MASTER_TIMEOUT", Lateness.is_late,
        returns("False"), link_schedules.no_release_waits_for_a_late_master,
    ),
    Mutant(
        "a late reply costs its link", "link: a late reply never costs its link", LateWatch._judge,
        instead("self._mark_late(...)", "return 'late'"),
        link_schedules.a_late_reply_never_costs_its_link,
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
        "a link is judged without a last read", "link: the socket is read before it is judged",
        Sockets.judge,
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
)  # fmt: skip

"""Rules of what is sent to the masters, and which of them are asked."""

from __future__ import annotations

from functools import partial

from redlock_django.wire.drivers.sockets import Sockets
from redlock_django.wire.links.clock_steps import StepWatch
from redlock_django.wire.links.late_masters import LateWatch
from redlock_django.wire.links.link_changes import LinkChanges
from redlock_django.wire.links.link_wait import LinkWait
from redlock_django.wire.links.links import Links
from redlock_django.wire.links.master import Master, find_twins
from redlock_django.wire.links.sender import Sender
from tests.engine.mutants.mutant import Mutant
from tests.engine.mutation import (
    always,
    instead,
    never,
    together,
    without,
)
from tests.wire import (
    link_schedules,
    test_link_waits,
    test_plain_rounds,
)

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "the first lock is on a bare majority", "link: the first round waits for links under way",
        LinkWait.seconds, instead("self._joining_until - now", "0.0"),
        test_link_waits.test_the_first_round_waits_a_moment_for_the_links_that_a_quorum_does_not_need,
    ),
    Mutant(
        "a master that hangs is waited for again", "link: all links are waited for once",
        LinkWait.seconds, always("self._joining_until is None"),
        test_link_waits.test_a_master_that_hangs_is_waited_for_once,
    ),
    Mutant(
        "a slow network joins at once", "link: others are waited for as long as the quorum took",
        LinkWait.seconds, instead("max(now - began, JOINING)", "JOINING"),
        test_link_waits.test_the_moment_is_longer_where_a_quorum_took_longer,
    ),
    Mutant(
        "links are waited for without hope", "link: no wait if no quorum can come",
        LinkWait.seconds, never("usable + connecting < self._quorum"),
        test_link_waits.test_a_round_does_not_wait_without_hope_for_a_quorum,
    ),
    Mutant(
        "releases wait for links", "link: only what needs a quorum waits for one",
        LinkWait.is_needed, instead("any(...)", "True"),
        test_link_waits.test_a_release_waits_for_no_link,
    ),
    Mutant(
        "a master that is left out is reached", "link: no release to masters left out",
        Links._fit, instead("failed(..., sent=False)", "failed(fault)"),
        partial(test_plain_rounds.test_a_master_that_is_known_not_to_answer_is_left_out, "late"),
    ),
    Mutant(
        "a faulty master is asked", "link: a master is looked at once it may have a fault",
        Links.begin, never("not m.usable"),
        partial(test_plain_rounds.test_no_lock_is_asked_of_a_master_from_a_doubt_on, "suspect"),
    ),
    *(
        Mutant(
            f"{doubt} hides from rounds", "link: whatever may be a fault is looked at",
            function, without(changed),
            partial(test_plain_rounds.test_no_lock_is_asked_of_a_master_from_a_doubt_on, doubt),
        )
        for doubt, function, changed in (
            ("suspect", StepWatch._suspect, "master.usable = False"),
            ("our clock stepped", StepWatch._blame_ourselves, "master.usable = False"),
            ("twin", find_twins, "master.usable = other.usable = False"),
            ("late", LateWatch._mark_late, "master.usable = False"),
        )
    ),
    Mutant(
        "a marker is good for ever", "link: a new marker is looked at",
        LinkChanges.trust, instead("master.trust, master.usable = ...", "master.trust = trust"),
        partial(test_plain_rounds.test_no_lock_is_asked_of_a_master_from_a_doubt_on, "untrusted"),
    ),
    Mutant(
        "another deployment's masters are asked", "link: acquires nothing in a conflict",
        Links.begin, never("self.membership.conflict"),
        partial(
            test_plain_rounds.test_no_lock_is_asked_of_a_master_from_a_doubt_on,
            "another deployment",
        ),
    ),
    Mutant(
        "a patient round asks no late master", "link: without a quorum late masters are asked",
        Links._fault_for,
        never("exchange.asked.waits_on(now)"),
        link_schedules.only_a_patient_round_without_a_quorum_asks_late_masters,
    ),
    Mutant(
        "a patient round asks all late masters", "link: a late minority is not asked",
        Links._fault_for,
        always("self.link_wait.usable() < self.link_wait.quorum"),
        link_schedules.only_a_patient_round_without_a_quorum_asks_late_masters,
    ),
    Mutant(
        "a release overtakes", "link: a release travels after its acquire",
        Links.begin,
        instead("link.out += data", "link.out[:0] = data"),
        link_schedules.a_release_is_sent_after_its_acquire,
    ),
    Mutant(
        "a master without a thread stays lost",
        "link: every round dials masters that no thread could be started for", Links._look,
        without("self.changes.retry()"),
        link_schedules.a_master_that_no_thread_connects_to_is_dialled_by_the_next_round,
    ),
    Mutant(
        "a release with no link is lost", "link: a release without a link is kept",
        Links._fit,
        without(Master.keep_release),
        link_schedules.a_release_for_a_lost_link_is_sent_first_and_buries,
    ),
    Mutant(
        "every release buries", "link: a tombstone only where an acquire may be late",
        Links._fit,
        together(
            always("command.token in master.unanswered"),
            without("del master.unanswered[command.token]"),
        ),
        link_schedules.an_ordinary_release_leaves_no_tombstone,
    ),
    Mutant(
        "a late master is waited for", "link: no round waits for a late master", Links._fit,
        never("master.late and ..."), link_schedules.no_release_waits_for_a_late_master,
    ),
    Mutant(
        "a late master is not read first", "link: a late master is read before a round",
        Sockets.read_late,
        without("self.read(...)"), link_schedules.a_late_master_is_read_before_it_is_left_out,
    ),
    Mutant(
        "asked without a majority", "link: refused at once if no majority is open",
        Links._fit,
        never("exchange.decided and ..."), link_schedules.with_a_majority_down_no_master_is_asked,
    ),
    Mutant(
        "another deployment stops nothing", "trust: a conflict stops all new locks",
        Links.conflict,
        instead("self.membership.conflict", "''"),
        link_schedules.a_master_of_another_deployment_stops_all_new_locks,
    ),
    Mutant(
        "a check replaces a mark", "clock step: no check while a mark is owed", Sender.check,
        never("mode == 'join' and ..."),
        link_schedules.a_mark_is_settled_although_another_master_steps_meanwhile,
    ),
    Mutant(
        "a master that is not counted stays so", "trust: redlock_init takes effect soon",
        Links._fault_for,
        never("now - master.looked > LOOK_AGAIN"),
        link_schedules.a_master_that_was_declared_trusted_is_counted_soon,
    ),
    Mutant(
        "a usable master is never inspected", "safe servers: INFO is read again",
        Links.begin, never("now >= m.inspect_at"),
        test_plain_rounds.test_a_master_that_must_be_inspected_is_looked_at,
    ),
    Mutant(
        "a live link is never inspected", "safe servers: INFO is read again", Links._look,
        never("now >= master.inspect_at"),
        link_schedules.a_policy_that_changes_on_a_live_link_is_noticed,
    ),
)  # fmt: skip

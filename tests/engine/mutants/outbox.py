"""Rules of what is sent to the masters, and which of them are asked."""

from __future__ import annotations

from functools import partial

from redlock_django.wire.link.master import Master
from redlock_django.wire.links.outbox import Outbox, Planner
from tests.engine.mutants.mutant import Mutant, slowly
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
        Planner.link_wait, instead("self._joining_until - now", "0.0"),
        test_link_waits.test_the_first_round_waits_a_moment_for_the_links_that_a_quorum_does_not_need,
    ),
    Mutant(
        "a master that hangs is waited for again", "link: all links are waited for once",
        Planner.link_wait, always("self._joining_until is None"),
        test_link_waits.test_a_master_that_hangs_is_waited_for_once,
    ),
    Mutant(
        "a slow network joins at once", "link: others are waited for as long as the quorum took",
        Planner.link_wait, instead("max(now - began, JOINING)", "JOINING"),
        test_link_waits.test_the_moment_is_longer_where_a_quorum_took_longer,
    ),
    Mutant(
        "links are waited for without hope", "link: no wait if no quorum can come",
        Planner.link_wait, never("usable + connecting < self._quorum"),
        test_link_waits.test_a_round_does_not_wait_without_hope_for_a_quorum,
    ),
    Mutant(
        "releases wait for links", "link: only what needs a quorum waits for one",
        Planner.waits_for_links, instead("any(...)", "True"),
        test_link_waits.test_a_release_waits_for_no_link,
    ),
    Mutant(
        "a plan without a quorum", "fast path: it asks a quorum at least",
        Planner._make_plan, never("len(links) < self._quorum"),
        test_plain_rounds.test_the_fast_path_asks_a_quorum_at_least,
    ),
    Mutant(
        "a plan without a doubtful master", "fast path: only masters that are away are left out",
        Planner._make_plan, always("master.late or not link"),
        partial(test_plain_rounds.test_a_doubt_ends_the_fast_path_at_once, "suspect"),
    ),
    Mutant(
        "a plan without a master to dial", "fast path: a master to be dialed needs a closer look",
        Planner._make_plan, always("not master.unfinished"),
        partial(
            test_plain_rounds.test_a_doubt_ends_the_fast_path_at_once,
            "lost for want of a thread",
        ),
    ),
    Mutant(
        "a master that is left out is reached", "fast path: no release to masters left out",
        Planner._make_plan, instead("failed(..., sent=False)", "failed(master.fault(now))"),
        partial(
            test_plain_rounds.test_the_fast_path_leaves_out_a_master_that_is_known_not_to_answer,
            "late",
        ),
    ),
    Mutant(
        "a release of a master left out is dropped", "fast path: a release is sent or kept",
        Planner.count_left_out, never("not other.trusted"),
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
        Planner.ensure_plan, never("self._membership.conflict"),
        partial(test_plain_rounds.test_a_doubt_ends_the_fast_path_at_once, "another deployment"),
    ),
    Mutant(
        "all masters are asked the same", "fast path: each master is sent its own command",
        Planner.count_left_out, never("alike != len(commands)"),
        test_plain_rounds.test_the_fast_path_is_not_taken_where_masters_are_asked_differently,
    ),
    Mutant(
        "a healed master grants", "fast path: heal counts from the next extension",
        Outbox._begin_plainly, never("not command.votes"),
        test_plain_rounds.test_a_healed_master_does_not_count,
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
        always("self._planner.usable() < self._planner.quorum"),
        link_schedules.only_a_patient_round_without_a_quorum_asks_late_masters,
    ),
    Mutant(
        "a plain release overtakes", "fast path: a release travels after its acquire",
        Outbox._begin_plainly,
        instead("link.out += ...", "link.out[:0] = data"),
        link_schedules.a_release_is_sent_after_its_acquire,
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
        "every release buries", "link: a tombstone only where an acquire may be late",
        Outbox._begin_each,
        together(
            always("command.token in master.unanswered"),
            without("del master.unanswered[command.token]"),
        ),
        partial(slowly, link_schedules.an_ordinary_release_leaves_no_tombstone),
    ),
    Mutant(
        "a late master is waited for", "link: no round waits for a late master", Outbox._begin_each,
        never("master.late", nth=1), link_schedules.no_release_waits_for_a_late_master,
    ),
    Mutant(
        "a late master is not read first", "link: a late master is read before a round",
        Outbox._fit_for,
        without("self._read(...)"), link_schedules.a_late_master_is_read_before_it_is_left_out,
    ),
    Mutant(
        "asked without a majority", "link: refused at once if no majority is open",
        Outbox._begin_each,
        never("exchange.decided and ..."), link_schedules.with_a_majority_down_no_master_is_asked,
    ),
    Mutant(
        "another deployment stops nothing", "trust: a conflict stops all new locks",
        Planner.conflict,
        instead("self._membership.conflict", "''"),
        link_schedules.a_master_of_another_deployment_stops_all_new_locks,
    ),
    Mutant(
        "a check replaces a mark", "clock step: no check while a mark is owed", Outbox.check,
        never("mode == 'join' and ..."),
        link_schedules.a_mark_is_settled_although_another_master_steps_meanwhile,
    ),
    Mutant(
        "a master that is not counted stays so", "trust: redlock_init takes effect soon",
        Outbox._fit_for,
        never("now - master.looked > LOOK_AGAIN"),
        link_schedules.a_master_that_was_declared_trusted_is_counted_soon,
    ),
    Mutant(
        "a live link is never inspected", "safe servers: INFO is read again", Outbox._begin_each,
        never("now - master.link.inspected > INSPECTED"),
        link_schedules.a_policy_that_changes_on_a_live_link_is_noticed,
    ),
)  # fmt: skip

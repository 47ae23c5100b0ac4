"""Steps of clocks that the simulator found to be mishandled, on links of the wire."""

from __future__ import annotations

from tests.wire import link_schedules


def test_a_command_sent_before_a_step_was_noticed_has_no_vote() -> None:
    link_schedules.a_command_sent_before_a_step_was_noticed_has_no_vote()


def test_a_step_is_marked_although_another_master_steps_and_the_link_breaks() -> None:
    link_schedules.a_step_is_marked_although_another_master_steps_and_the_link_breaks()


def test_a_step_that_a_check_shows_is_marked_although_no_other_master_answers() -> None:
    link_schedules.a_step_that_a_check_shows_is_marked_although_no_other_master_answers()


def test_a_mark_is_settled_although_another_master_steps_meanwhile() -> None:
    link_schedules.a_mark_is_settled_although_another_master_steps_meanwhile()


def test_a_step_is_marked_although_the_master_refuses_the_mark_at_first() -> None:
    link_schedules.a_step_is_marked_although_the_master_refuses_the_mark_at_first()


def test_an_answer_to_an_older_check_does_not_settle_the_mark() -> None:
    link_schedules.an_answer_to_an_older_check_does_not_settle_the_mark()


def test_a_mark_whose_script_was_flushed_is_sent_again_as_a_mark() -> None:
    link_schedules.a_mark_whose_script_was_flushed_is_sent_again_as_a_mark()


def test_a_step_is_marked_although_the_last_master_to_be_checked_is_lost() -> None:
    link_schedules.a_step_is_marked_although_the_last_master_to_be_checked_is_lost()


def test_a_step_is_noticed_soon_after_replies_that_narrow_the_bounds() -> None:
    link_schedules.a_step_is_noticed_soon_after_replies_that_narrow_the_bounds()


def test_a_clock_that_goes_back_voids_earlier_leases() -> None:
    link_schedules.a_clock_that_goes_back_voids_earlier_leases()


def test_a_clock_that_goes_back_within_a_round_voids_its_lease() -> None:
    link_schedules.a_clock_that_goes_back_within_a_round_voids_its_lease()


def test_a_clock_that_goes_back_between_replies_voids_the_leases_before() -> None:
    link_schedules.a_clock_that_goes_back_between_replies_voids_the_leases_before()


def test_a_release_is_counted_although_its_reply_shows_a_step() -> None:
    link_schedules.a_release_is_counted_although_its_reply_shows_a_step()

"""What a step of a clock must not let through: what the simulator found, on links of the wire."""

from __future__ import annotations

from tests.wire import quiet


def test_what_was_asked_before_a_step_was_seen_has_no_vote() -> None:
    quiet.what_was_asked_before_a_step_was_seen_has_no_vote()


def test_a_step_is_marked_although_another_is_seen_and_the_link_breaks() -> None:
    quiet.a_step_is_marked_although_another_is_seen_and_the_link_breaks()


def test_a_step_is_marked_although_the_master_cannot_take_the_mark_now() -> None:
    quiet.a_step_is_marked_although_the_master_cannot_take_the_mark_now()


def test_a_clock_that_goes_back_voids_what_was_begun_before() -> None:
    quiet.a_clock_that_goes_back_voids_what_was_begun_before()


def test_a_clock_that_goes_back_under_a_round_voids_what_comes_of_it() -> None:
    quiet.a_clock_that_goes_back_under_a_round_voids_what_comes_of_it()

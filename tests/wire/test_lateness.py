"""The time that counts for the lateness of masters: that during which this process was running."""

from __future__ import annotations

from random import Random

import pytest

from redlock_django.wire.lateness import RunningTime


@pytest.mark.parametrize(
    ("asked", "took", "counted"),
    [
        pytest.param(0.2, 0.05, 0.05, id="ended early by a reply"),
        pytest.param(0.2, 0.21, 0.2, id="in time"),
        pytest.param(0.2, 3.0, 0.05, id="stalled"),
        pytest.param(0.001, 0.02, 0.001, id="short, on a busy machine"),
    ],
)
def test_a_poll_counts_as_far_as_the_process_was_running(
    asked: float, took: float, counted: float
) -> None:
    running = RunningTime(100.0)
    running.polled(asked, took, 100.0 + took)
    assert running.passed == pytest.approx(counted)


def test_no_time_counts_twice() -> None:
    """The polls of two threads, such as a reader and the tender, may overlap."""
    running = RunningTime(100.0)
    running.polled(0.2, 0.2, 100.2)
    running.polled(0.2, 0.2, 100.3)
    assert running.passed == pytest.approx(0.3)


def test_a_reply_gets_late_however_the_numbers_are_rounded() -> None:
    """A rest below the precision of `passed` was polled for ever, and acquire() never returned."""
    draw = Random(0)
    for timeout in (0.05, 0.3, 0.5):
        for _ in range(100):
            running, now = RunningTime(0.0), 0.0
            running.passed = sent = draw.uniform(0.0, 1000.0)
            polls = 0
            while (left := timeout - (running.passed - sent)) > 0:
                took = int(left * 1000 + 1) / 1000  # a poll takes whole milliseconds
                now += took
                running.polled(left, took, now)
                polls += 1
                assert polls < 5

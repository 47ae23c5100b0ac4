"""The lateness of masters, and the time that counts for it."""

from __future__ import annotations

from random import Random
from unittest.mock import patch

import pytest

from redlock_django.wire.clock import clock
from redlock_django.wire.drivers.threads import ThreadDriver
from redlock_django.wire.links.late_masters import (
    Lateness,
    RunningTime,
    late_reason,
)
from tests.engine.mutants import kills
from tests.engine.mutation import instead, never
from tests.waiting import until
from tests.wire.manual_links import TIMEOUT, manual_links, one_link

QUIET = (0.5, 2)  # load average, processors


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


@kills("computing takes no time", RunningTime.polled, instead("took + SHORT", "took"))
def test_short_times_between_two_polls_count() -> None:
    """A client that computes most of the time polls for a small part of it."""
    running = RunningTime(100.0)
    for pair in range(1, 201):
        running.polled(0.2, 0.0002, 100.0 + pair / 1000)  # 0.8 ms for its own work
    assert running.passed == pytest.approx(0.2)


@kills("a stall between polls is lateness", RunningTime.polled, instead("took + SHORT", "9e9"))
def test_a_stall_between_two_polls_does_not_count() -> None:
    running = RunningTime(100.0)
    for poll in range(1, 11):
        running.polled(0.2, 0.001, 100.0 + poll)
    assert running.passed == pytest.approx(0.01)


def test_a_stall_while_the_tender_waits_does_not_count() -> None:
    stalled = 0.0
    with (
        patch("redlock_django.wire.drivers.threads.clock", lambda: clock() + stalled),
        one_link(ThreadDriver, 0.01) as (driver, masters, _),
    ):
        running = driver.links.lateness.running
        driver.post(masters.acquire())  # no thread waits for the reply: the tender does
        until(lambda: running.passed > 0, "the tender waits again")
        with driver.combiner.mutex:
            stalled, before, counted = 60.0, running.passed, running._counted
        until(lambda: running._counted > counted + stalled, "the tender has waited")
        assert running.passed < before + stalled / 2


def test_no_time_counts_twice() -> None:
    """The polls of two threads, such as a reader and the tender, may overlap."""
    running = RunningTime(100.0)
    running.polled(0.2, 0.2, 100.2)
    running.polled(0.2, 0.2, 100.3)
    assert running.passed == pytest.approx(0.3)


@kills("a rest too small to add", RunningTime.polled, never("asked < SHORTEST"))
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


def test_stalls_are_remembered_since_a_moment() -> None:
    running = RunningTime(100.0)
    running.polled(0.2, 0.202, 100.2)  # not a stall
    running.polled(0.1, 0.4, 100.6)  # stalled from 100.3
    running.polled(0.001, 0.051, 101.0)  # from 100.95
    assert running.stalled_since(100.0) == pytest.approx(0.35)
    assert running.stalled_since(100.5) == pytest.approx(0.15)
    assert running.stalled_since(101.0) == 0.0
    for number in range(1000):
        running.polled(0.1, 0.2, 102.0 + number)
    assert running.stalled_since(100.0) == pytest.approx(5.0)  # the last 50 only


def test_the_reason_names_what_was_slow() -> None:
    assert late_reason(0.25, 0.1, QUIET) == (
        "did not answer within 0.25 s (it or the network is slow: this process was not stalled)"
    )
    assert late_reason(0.25, 0.1, (9.31, 2)) == (
        "did not answer within 0.25 s (this host is busy: its load average is 9.3 on 2 processors)"
    )
    assert late_reason(0.25, 0.3, QUIET) == (
        "did not answer within 0.25 s (this host is busy: the process was stalled for 0.30 s "
        "meanwhile)"
    )


@pytest.fixture
def _quiet_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redlock_django.wire.links.late_masters.load_average", lambda: QUIET)


@pytest.mark.usefixtures("_quiet_host")
def test_a_refusal_after_a_stall_of_our_own_names_the_stall() -> None:
    with manual_links(1) as links:
        exchange = links.ask(links.acquire())
        (owed,) = links.link(0).owed
        owed.sent -= 10.0
        links.lateness.running._counted -= 10.0
        # The poll took 2.95 s longer than asked.
        links.sockets.waited(TIMEOUT / 5, 3.0, links.time())
        links.lateness.running._counted -= 10.0
        links.sockets.waited(TIMEOUT, TIMEOUT, links.time())
        (reason,) = exchange.tally.reasons()
        assert reason == late_reason(TIMEOUT, 2.95, QUIET)


@pytest.mark.usefixtures("_quiet_host")
def test_a_refusal_without_a_stall_names_the_master() -> None:
    with manual_links(1) as links:
        exchange = links.ask(links.acquire())
        (owed,) = links.link(0).owed
        owed.sent -= TIMEOUT
        links.lateness.running._counted -= TIMEOUT
        links.sockets.waited(TIMEOUT, TIMEOUT, links.time())
        assert exchange.tally.reasons() == [late_reason(TIMEOUT, 0.0, QUIET)]


@pytest.mark.parametrize(("master_timeout", "silent"), [(0.25, 3.0), (1.0, 6.0)])
def test_by_default_a_link_is_given_up_after_six_timeouts_or_three_seconds(
    master_timeout: float, silent: float
) -> None:
    rule = Lateness(master_timeout)
    assert rule.longest_silence(1, 3) == silent
    assert rule.longest_silence(2, 3) == 2 * silent

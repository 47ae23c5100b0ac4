"""The lateness of masters: the time that counts for it, and how far a master may be behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import pytest

from redlock_django.engine.protocol.commands import Extend
from redlock_django.engine.protocol.votes import Ballot, Vote
from redlock_django.engine.quorum import Switch, Verdict
from redlock_django.wire.judging.late_masters import (
    MOST_BEHIND,
    SHORTEST,
    Lateness,
    RunningTime,
    late_reason,
)
from redlock_django.wire.link.link import Exchange
from tests.wire.manual_links import TIMEOUT, ManualLinks, manual_links
from tests.wire.scripted import resp

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


def test_short_times_between_two_polls_count() -> None:
    """A client that computes most of the time polls for a small part of it."""
    running = RunningTime(100.0)
    for pair in range(1, 201):
        running.polled(0.2, 0.0002, 100.0 + pair / 1000)  # 0.8 ms for its own work
    assert running.passed == pytest.approx(0.2)


def test_a_stall_between_two_polls_does_not_count() -> None:
    running = RunningTime(100.0)
    for poll in range(1, 11):
        running.polled(0.2, 0.001, 100.0 + poll)
    assert running.passed == pytest.approx(0.01)


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
    monkeypatch.setattr("redlock_django.wire.judging.late_masters.load_average", lambda: QUIET)


@pytest.mark.usefixtures("_quiet_host")
def test_a_refusal_after_a_stall_of_our_own_names_the_stall() -> None:
    with manual_links(1) as links:
        exchange = links.ask(links.acquire())
        (owed,) = links.link(0).owed
        owed.sent -= 10.0
        links.lateness.running._counted -= 10.0
        # The poll took 2.95 s longer than asked.
        links.lateness.waited(TIMEOUT / 5, 3.0, links.time())
        links.lateness.running._counted -= 10.0
        links.lateness.waited(TIMEOUT, TIMEOUT, links.time())
        (reason,) = exchange.tally.account.reasons()
        assert reason == late_reason(TIMEOUT, 2.95, QUIET)


@pytest.mark.usefixtures("_quiet_host")
def test_a_refusal_without_a_stall_names_the_master() -> None:
    with manual_links(1) as links:
        exchange = links.ask(links.acquire())
        (owed,) = links.link(0).owed
        owed.sent -= TIMEOUT
        links.lateness.running._counted -= TIMEOUT
        links.lateness.waited(TIMEOUT, TIMEOUT, links.time())
        assert exchange.tally.account.reasons() == [late_reason(TIMEOUT, 0.0, QUIET)]


@pytest.mark.parametrize(
    ("owed", "behind"),
    [
        pytest.param((64, 64, 0, 0, 0), [0, 1], id="two that hang"),
        pytest.param((63, 64, 0, 0, 0), [1], id="one that does not owe so much"),
        pytest.param((100, 99, 0, 0, 36), [0], id="the others owe some replies"),
        pytest.param((100, 0, 0, 36, 37), [0], id="of the others, a quorum counts"),
        pytest.param((100, 0, 37, 37, 37), [], id="the quorum owes more"),
        pytest.param((900, 900, 900, 0, 0), [], id="never a majority"),
    ],
)
def test_a_master_is_behind_that_owes_more_than_a_quorum_of_others(
    owed: tuple[int, ...], behind: list[int]
) -> None:
    assert Lateness(0.25).behind(dict(enumerate(owed)), 5) == behind


def test_no_master_is_behind_without_which_there_is_no_quorum() -> None:
    assert Lateness(0.25).behind({0: 900, 1: 0}, 5) == []
    assert Lateness(0.25).behind({0: 900, 1: 0, 2: 0}, 5) == []
    assert Lateness(0.25).behind({0: 900, 1: 0, 2: 0, 3: 0}, 5) == [0]


def _first_attempt(links: ManualLinks) -> Exchange:
    """Ask once more, half a millisecond after the last time."""
    links.time.now += 0.0005
    return links.ask(links.acquire(), spares=True)


def _rounds(links: ManualLinks, rounds: int, *answering: int) -> Exchange:
    """Win so many rounds by the answers of these masters; return the last."""
    for _ in range(rounds):
        exchange = _first_attempt(links)
        for index in answering:
            links.reply(index, exchange.number)
        assert exchange.tally.verdict is Verdict.WON
    return exchange


def _owed(links: ManualLinks, index: int) -> int:
    return len(links.link(index).owed)


def _answer(links: ManualLinks, index: int) -> None:
    """Answer the oldest command that a master has not answered."""
    links.reply(index, links.link(index).owed[0].number)


@contextmanager
def _links_to_quick_masters() -> Iterator[ManualLinks]:
    """Open links to five masters that have answered at once."""
    with manual_links(5) as links:
        _rounds(links, 3, 0, 1, 2, 3, 4)
        yield links


@pytest.fixture(params=[True, False], ids=["fast path", "long way"])
def _both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Switch, "on", request.param)


@pytest.mark.usefixtures("_both_ways")
def test_a_master_that_hangs_is_not_asked_until_it_answers() -> None:
    with _links_to_quick_masters() as links:
        _rounds(links, 10 * MOST_BEHIND, 0, 1, 2)
        hung = [_owed(links, 3), _owed(links, 4)]
        assert max(hung) <= 3 * MOST_BEHIND
        assert not any(master.late for master in links.masters), "no reply is old"
        _answer(links, 3)
        _settle(links)
        _rounds(links, 1, 0, 1, 2)
        assert [_owed(links, 3), _owed(links, 4)] == hung, "one more was asked, and one answered"


def _settle(links: ManualLinks) -> None:
    """End the time for which a plan without the masters that are behind is used."""
    links.time.now += 2 * SHORTEST


def test_a_master_that_was_behind_is_late_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan without late masters lasts: they are not looked at in every round."""
    monkeypatch.setattr(Switch, "on", True)  # there are no plans without the fast path
    with _links_to_quick_masters() as links:
        _rounds(links, 4 * MOST_BEHIND, 0, 1, 2)
        assert len(links.lateness.behind(links.time())) == 2
        for master in links.masters[3:]:
            links.lateness._mark_late(master, "did not answer")
        _rounds(links, 2, 0, 1, 2)
        assert links.planner.plan.until > links.time() + 0.5


def test_a_master_is_read_before_it_is_behind() -> None:
    with _links_to_quick_masters() as links:
        for _ in range(10 * MOST_BEHIND):
            exchange = _rounds(links, 1, 0, 1, 2)
            for index in (3, 4):
                links.ends[index].say(resp([exchange.number, 1, links.time.wall, 7]))
            assert exchange.tally.asked == {0, 1, 2, 3, 4}


def test_a_master_is_behind_only_if_it_is_quiet() -> None:
    """One that is far away owes many replies all the time, and answers all the time."""
    with manual_links(5) as links:
        _rounds(links, 3, 0, 1, 2, 3, 4)
        _rounds(links, 4 * MOST_BEHIND, 0, 1, 2, 4)
        far = links.link(3)
        for silent, took, asks in ((0.01, 0.0, True), (5.0, 3.0, True), (5.0, 2.0, False)):
            _answer(links, 3)
            now = links.time()
            far.heard, far.took = now - silent, took
            far.owed[0].sent = far.heard
            links.lateness.look(now)
            _settle(links)
            assert (3 in _first_attempt(links).tally.asked) is asks


def test_a_master_that_was_idle_is_not_quiet() -> None:
    """A burst of commands that comes after a pause is answered after a round trip."""
    with manual_links(5) as links:
        _rounds(links, 3, 0, 1, 2, 3, 4)
        for index in range(5):
            links.link(index).heard -= 0.9
        _rounds(links, MOST_BEHIND + 1, 0, 1, 2, 4)
        links.lateness.look(links.link(3).owed[0].sent + 0.001)
        assert 3 in _first_attempt(links).tally.asked


def test_a_vote_that_a_master_behind_owes_still_counts() -> None:
    with _links_to_quick_masters() as links:
        first = links.ask(links.acquire())
        for index in (0, 1):
            links.reply(index, first.number)
        for index in (2, 4):
            first.cast(index, Vote(Ballot.REFUSED))
            links.reply(index, first.number)
        _rounds(links, 4 * MOST_BEHIND, 0, 1, 2)
        assert _first_attempt(links).tally.asked == {0, 1, 2}
        assert not first.decided
        _answer(links, 3)
        assert first.tally.verdict is Verdict.WON


@pytest.mark.usefixtures("_both_ways")
def test_masters_that_are_behind_are_asked_if_there_is_no_quorum_without_them() -> None:
    with _links_to_quick_masters() as links:
        _rounds(links, 4 * MOST_BEHIND, 0, 1, 2)
        exchange = _first_attempt(links)
        assert exchange.tally.asked == {0, 1, 2}
        links.lose(links.masters[0], "lost")
        assert exchange.tally.account.only_stale, "it is asked again at once"
        assert _first_attempt(links).tally.asked == {1, 2, 3, 4}


@pytest.mark.usefixtures("_both_ways")
def test_only_a_first_attempt_leaves_out_masters_that_are_behind() -> None:
    """A lock that is lost may need them, and a held one whose third master hangs meanwhile."""
    with _links_to_quick_masters() as links:
        _rounds(links, 4 * MOST_BEHIND, 0, 1, 2)
        assert _first_attempt(links).tally.asked == {0, 1, 2}
        assert links.ask(links.acquire()).tally.asked == {0, 1, 2, 3, 4}
        held = links.acquire()
        extend = Extend(held.deployment, held.resources, held.value, 10.0)
        assert links.ask(extend).tally.asked == {0, 1, 2, 3, 4}


@pytest.mark.usefixtures("_both_ways")
def test_a_master_whose_answer_is_unread_is_not_behind() -> None:
    """No thread reads while none waits for an answer."""
    with _links_to_quick_masters() as links:
        _rounds(links, 4 * MOST_BEHIND, 0, 1, 2)
        assert _first_attempt(links).tally.asked == {0, 1, 2}
        links.ends[3].say(resp([links.link(3).owed[0].number, 1, links.time.wall, 7]))
        _settle(links)
        assert _first_attempt(links).tally.asked == {0, 1, 2, 3}


@pytest.mark.parametrize(("master_timeout", "silent"), [(0.25, 3.0), (1.0, 6.0)])
def test_by_default_a_link_is_given_up_after_six_timeouts_or_three_seconds(
    master_timeout: float, silent: float
) -> None:
    rule = Lateness(master_timeout)
    assert rule.longest_silence(1, 3) == silent
    assert rule.longest_silence(2, 3) == 2 * silent

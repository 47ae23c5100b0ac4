"""The lateness of masters, and the time that counts for it."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from unittest.mock import patch

import pytest

from redlock_django.engine.protocol.statuses import Status
from redlock_django.engine.protocol.votes import Ballot, Vote
from redlock_django.engine.quorum import Verdict
from redlock_django.engine.steps import Round
from redlock_django.wire.clock import clock
from redlock_django.wire.drivers.sockets import Sockets
from redlock_django.wire.drivers.threads import ThreadDriver
from redlock_django.wire.links.late_masters import (
    GIVE_UP,
    LONGEST,
    MOST_LATE,
    MOST_OWED,
    LateWatch,
    RunningTime,
    late_reason,
)
from redlock_django.wire.links.link import Exchange
from redlock_django.wire.links.link_changes import LinkChanges
from redlock_django.wire.links.links import Links
from redlock_django.wire.links.master import Master
from redlock_django.wire.links.replies import Replies
from tests.engine.mutants import kills
from tests.engine.mutation import always, instead, never, returns, without
from tests.replies import packed
from tests.waiting import until
from tests.wire.manual_links import TIMEOUT, ManualLinks, ballot, one_link
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
def test_a_refusal_after_a_stall_of_our_own_names_the_stall(single: ManualLinks) -> None:
    exchange = single.ask(single.acquire())
    single.age(10.0)
    single.lateness.running._counted -= 10.0
    # The poll took 2.95 s longer than asked.
    single.sockets.waited(TIMEOUT / 5, 3.0, single.time())
    single.poll(TIMEOUT)
    (reason,) = exchange.tally.reasons()
    assert reason == late_reason(TIMEOUT, 2.95, QUIET)


@pytest.mark.usefixtures("_quiet_host")
def test_a_refusal_without_a_stall_names_the_master(single: ManualLinks) -> None:
    exchange = single.ask(single.acquire())
    single.age(TIMEOUT)
    single.poll(TIMEOUT)
    assert exchange.tally.reasons() == [late_reason(TIMEOUT, 0.0, QUIET)]


@pytest.mark.parametrize(("master_timeout", "silent"), [(0.25, 3.0), (1.0, 6.0)])
def test_by_default_a_link_is_given_up_after_six_timeouts_or_three_seconds(
    links: ManualLinks, master_timeout: float, silent: float
) -> None:
    watch = LateWatch(links.masters, RunningTime(0.0), master_timeout)
    for index, longest in enumerate((silent, 2 * silent)):
        links.masters[index].late = "late"
        assert watch._longest_silence() == longest


@kills("late replies are read at once", Sockets.read, never("link.expired"))
def test_replies_that_come_too_late_are_read_in_parts(single: ManualLinks) -> None:
    numbers = [single.ask(single.acquire()).number for _ in range(200)]
    link = single.link(0)
    single.poll(LONGEST * TIMEOUT, age=10.0)
    now = single.time.wall
    single.say(0, b"".join(resp(packed([number, 1, now, 7])) for number in numbers))
    assert 100 < len(link.owed) < 200, "a caller reads for itself as well"
    for _ in range(20):
        single.read(single.masters[0])
    assert not link.owed
    assert not single.masters[0].late


def _owes(links: ManualLinks, patient: float = 0.0) -> Exchange:
    """Send an acquire to every master, 10 s ago."""
    exchange = links.ask(links.acquire(), patient=patient)
    links.age(10.0)
    return exchange


def _late(links: ManualLinks) -> Exchange:
    exchange = _owes(links)
    links.poll(2 * TIMEOUT)
    assert all(master.late for master in links.masters)
    return exchange


@kills("a round waits for a late reply", LateWatch._judge,
       always("self._age(owed, now) < patience"))  # fmt: skip
def test_a_late_reply_costs_its_vote(single: ManualLinks) -> None:
    exchange = _owes(single)
    single.poll(TIMEOUT)
    assert exchange.tally.verdict is Verdict.LOST
    assert not single.masters[0].late


def _take(links: ManualLinks, seconds: float, *slow: int) -> None:
    """Answer a round; these masters take so long for that, and the others no time."""
    exchange = links.ask(links.acquire("c" * 32))
    for index, master in enumerate(links.masters):
        assert master.link is not None
        # Links that were sent the same share what is owed.
        master.link.owed[0].sent = links.time() - (seconds if index in slow else 0.0)
        links.reply(index, exchange.number)


def _expires_after(links: ManualLinks) -> float:
    """Return after how many times MASTER_TIMEOUT a round without any reply is lost."""
    exchange, polls = links.ask(links.acquire()), 0
    links.age(100.0)
    while exchange.tally.verdict is Verdict.PENDING:
        links.poll(TIMEOUT / 2)
        polls += 1
    return polls / 2


# How long the last replies took, of which masters, and after how many times MASTER_TIMEOUT a round
# without any reply is lost then.
PATIENCE: dict[str, tuple[float, tuple[int, ...], float]] = {
    "all are quick": (0.0, (), 1.0),
    "all are slow": (0.36 * TIMEOUT, (0, 1, 2), 3.0),
    "one is slow": (0.36 * TIMEOUT, (1,), 1.0),
    "all are very slow": (10.0, (0, 1, 2), LONGEST),
}


@kills("a busy host is out of time", LateWatch.patience, instead("USUAL * ...", "0"),
       "all are slow")  # fmt: skip
@kills(
    "plain grants take no time",
    Replies._count_plain,
    instead(
        "link.ran, link.heard, link.took = ran, heard, heard - oldest.sent",
        "link.ran, link.heard = ran, heard",
    ),
    "all are slow",
)
@kills("patience for one slow master", LateWatch.patience, instead("median(took)", "max(took)"),
       "one is slow")  # fmt: skip
@kills("patience without end", LateWatch.patience, instead("LONGEST * self.master_timeout", "100"),
       "all are very slow")  # fmt: skip
@pytest.mark.parametrize("masters", PATIENCE)
def test_a_reply_is_waited_for_as_long_as_replies_usually_take(
    masters: str, links: ManualLinks
) -> None:
    seconds, slow, patience = PATIENCE[masters]
    if slow:
        _take(links, seconds, *slow)
    assert _expires_after(links) == patience


@kills("a waiter asks again without an answer", Round.waits_on, never("now < self.patient"))
def test_a_patient_round_counts_late_replies(links: ManualLinks) -> None:
    exchange = _owes(links, patient=60.0)
    links.poll(2 * TIMEOUT)
    assert all(master.late for master in links.masters)
    links.grant(exchange)
    assert exchange.tally.verdict is Verdict.WON


@kills("a patient round never ends", LateWatch.judge, without("self.fail_late(...)"))
def test_a_patient_round_ends(links: ManualLinks) -> None:
    exchange = _owes(links, patient=60.0)
    links.poll(TIMEOUT)
    assert not exchange.decided
    exchange.asked.patient = links.time() + 0.1
    assert links.lateness.poll_timeout(links.time()) == pytest.approx(0.1)
    exchange.asked.patient = links.time()
    assert links.lateness.poll_timeout(links.time()) == 0.0
    links.poll(TIMEOUT / 10)
    assert exchange.tally.verdict is Verdict.LOST


@kills("a waiter waits for a minority", Round.waits_on, always("not self.tally.answered"))
def test_a_patient_round_does_not_wait_for_a_minority(links: ManualLinks) -> None:
    exchange = _owes(links, patient=60.0)
    exchange.cast(0, Vote(Ballot.REFUSED))
    links.reply(1, exchange.number)
    links.poll(TIMEOUT)
    assert exchange.tally.verdict is Verdict.LOST


@kills("a patient round asks no late master", Links._fault_for,
       never("exchange.asked.waits_on(now)"))  # fmt: skip
@kills("a patient round asks all late masters", Links._fault_for,
       always("self.link_wait.usable() < self.link_wait.quorum"))  # fmt: skip
def test_only_a_patient_round_without_a_quorum_asks_late_masters(links: ManualLinks) -> None:
    first = _late(links)
    second = links.ask(links.acquire("b" * 32), patient=60.0)
    assert not second.decided
    for index in range(2):
        links.reply(index, first.number)
        links.reply(index, second.number)
    assert second.tally.verdict is Verdict.WON
    third = links.ask(links.acquire("c" * 32), patient=60.0)
    assert [vote is None for vote in third.tally.votes] == [True, True, False]


@kills("a handshake takes no time", LinkChanges.joined, instead("high - low", "0.0"))
def test_a_new_link_shows_how_long_replies_take(single: ManualLinks) -> None:
    ends = single.new_ends(0)
    joined = ends.joined("0")
    low, high = joined.trust.offset
    slow = replace(joined.trust, offset=(low - 0.18 * TIMEOUT, high + 0.18 * TIMEOUT))
    single.sockets.arrived(0, replace(joined, trust=slow))
    assert _expires_after(single) == 3.5


def _decided(links: ManualLinks) -> None:
    """Run a round that all masters but the last one have answered, which was asked 10 s ago."""
    exchange = links.ask(links.acquire())
    for index in range(len(links.masters) - 1):
        links.reply(index, exchange.number)
    assert exchange.decided
    links.age(10.0)


@kills("replies of decided rounds end polls", LateWatch._left, always("owed.undecided is not None"))
def test_no_poll_ends_for_a_reply_of_a_decided_round(links: ManualLinks) -> None:
    _decided(links)
    links.poll(TIMEOUT / 2)
    _decided(links)
    links.poll(TIMEOUT / 2)
    left = links.lateness.poll_timeout(links.time())
    assert left == pytest.approx(TIMEOUT), "it is late then"


@kills("no poll ends for a vote behind others", LateWatch._left,
       never("owed.undecided is not None"))  # fmt: skip
def test_a_reply_behind_those_of_decided_rounds_costs_its_vote_in_time(links: ManualLinks) -> None:
    _decided(links)
    links.cut(links.masters[0], "lost")
    links.poll(TIMEOUT / 2)
    exchange = links.grant(links.ask(links.acquire()), 1)
    links.poll(TIMEOUT / 2, age=10.0)
    assert not exchange.decided
    left = links.lateness.poll_timeout(links.time())
    assert left == pytest.approx(TIMEOUT / 2)
    links.poll(left)
    assert exchange.tally.verdict is Verdict.LOST
    assert not links.masters[2].late


@kills("late grants take the long way", Replies._count_plain, never("exchange.decided and ..."))
@kills("removed replies are not counted off", Replies._count_plain, without("link.expired -= 1"))
def test_late_grants_of_decided_rounds_are_only_removed(links: ManualLinks) -> None:
    for _ in range(9):
        _decided(links)
    last = _owes(links)
    links.poll(LONGEST * TIMEOUT)
    assert links.masters[2].late
    with patch.object(Replies, "_answer", side_effect=AssertionError("the long way")):
        for number in range(1, last.number):
            links.reply(2, number)
    link = links.link(2)
    assert len(link.owed) == link.expired == 1


@kills("any late grant counts", Replies._count_plain, always("exchange.decided", nth=1))
def test_a_late_grant_of_a_doubtful_master_has_no_vote(links: ManualLinks) -> None:
    exchange = _owes(links, patient=60.0)
    links.poll(2 * TIMEOUT)
    links.masters[0].suspect = "its clock stepped"
    links.reply(0, exchange.number)
    assert exchange.tally.reasons()[0] == "its clock stepped"


@kills("one late reply fails all", LateWatch._judge, never("not is_late and ..."))
def test_a_late_reply_costs_no_vote_after_it(single: ManualLinks) -> None:
    first = _owes(single)
    second = single.ask(single.acquire("b" * 32))
    single.poll(TIMEOUT)
    assert first.tally.verdict is Verdict.LOST
    single.reply(0, first.number)
    single.reply(0, second.number)
    assert second.tally.verdict is Verdict.WON


@kills("expired replies are not counted off", Replies._pop_owed, never("link.expired"))
def test_an_expired_reply_that_has_come_is_not_counted_for_the_next(single: ManualLinks) -> None:
    first, second = _owes(single), single.ask(single.acquire("b" * 32))
    single.poll(TIMEOUT)
    single.reply(0, first.number, Status.NOT_READY)
    single.poll(LONGEST * TIMEOUT, age=10.0)
    assert second.tally.verdict is Verdict.LOST


@kills("a late reply costs its link", LateWatch._judge,
       instead("self._mark_late(...)", "return 'late'"))  # fmt: skip
def test_a_late_reply_never_costs_its_link(single: ManualLinks) -> None:
    link = single.masters[0].link
    exchange = _late(single)
    assert single.masters[0].link is link
    single.reply(0, exchange.number)
    assert single.masters[0].link is link
    assert ballot(exchange, 0) is Ballot.FAILED, "the vote stays failed"


@kills("a link is never given up", LateWatch._kept_for,
       instead("self._longest_silence() - ...", "9e9"))  # fmt: skip
def test_a_master_that_never_answers_loses_its_link(single: ManualLinks) -> None:
    _late(single)
    single.ask(single.release())
    single.poll(MOST_LATE * GIVE_UP)
    assert single.masters[0].link is None
    assert [*single.masters[0].pending_releases] == ["a" * 32]


@kills("a starved host connects again", LateWatch._longest_silence, never("late > ..."))
@kills("a silent minority is kept", LateWatch._longest_silence, always("late > ..."))
def test_links_are_kept_longer_while_most_are_late(links: ManualLinks) -> None:
    exchange = _late(links)
    links.age(100.0)
    links.poll(GIVE_UP)
    assert all(master.link is not None for master in links.masters)
    links.grant(exchange, 0, 1)
    links.poll(0.0)
    assert [master.link is None for master in links.masters] == [False, False, True]


@kills("a long queue costs the link", LateWatch._silent, returns("self._age(link.owed[0], now)"))
def test_a_master_that_works_off_a_queue_keeps_its_link(single: ManualLinks) -> None:
    first = single.ask(single.acquire())
    single.ask(single.release())
    single.poll(2 * TIMEOUT, age=10.0)
    single.poll(MOST_LATE * GIVE_UP - 2 * TIMEOUT - 0.1)
    single.reply(0, first.number)
    single.poll(0.2)
    assert single.masters[0].link is not None
    assert single.masters[0].late


@kills("replies without limit", LateWatch._kept_for, never("... > MOST_OWED"))
def test_a_master_that_owes_too_much_loses_its_link(single: ManualLinks) -> None:
    _late(single)
    link = single.link(0)
    link.owed.extend([link.owed[0]] * MOST_OWED)
    single.poll(0.0)
    assert single.masters[0].link is None


@kills("any answer is in time", LateWatch._judge, instead("link.owed[0]", "link.owed[-1]"))
def test_a_master_that_always_answers_late_is_late(single: ManualLinks) -> None:
    first = _owes(single)
    for _ in range(7):
        single.poll(TIMEOUT / 3)
        single.ask(single.release())
        single.age(10.0)
    assert first.tally.verdict is Verdict.LOST
    assert single.masters[0].late


@kills("a master is never late", LateWatch._judge, never("... >= patience + self.master_timeout"))
@kills("a late master is waited for", Links._fit, never("master.late and ..."))
def test_no_release_waits_for_a_late_master(single: ManualLinks) -> None:
    _late(single)
    exchange = single.ask(single.release())
    assert exchange.decided
    assert single.ends[0].names() == ["acquire", "release"]


@kills("a late master is asked", Master.fault, never("self.late", nth=1))
def test_a_late_master_is_sent_releases_only(links: ManualLinks) -> None:
    _late(links)
    for index in (1, 2):
        links.reply(index, 1)
    assert [bool(master.late) for master in links.masters] == [True, False, False]
    exchange = links.ask(links.acquire("b" * 32))
    vote = exchange.tally.votes[0]
    assert vote is not None
    assert not vote.sent
    assert links.ends[0].names() == ["acquire"]


@kills("late for ever", Replies.feed, never("master.late and ..."))
def test_a_late_master_that_has_answered_votes_again(single: ManualLinks) -> None:
    single.reply(0, _late(single).number)
    exchange = single.grant(single.ask(single.acquire("b" * 32)), 0)
    assert exchange.tally.verdict is Verdict.WON


@kills("in time after one answer", Replies.feed, always("not link.owed"))
def test_a_late_master_must_answer_all_that_it_owes(single: ManualLinks) -> None:
    first = _late(single)
    single.ask(single.release())
    single.reply(0, first.number)
    assert single.masters[0].late


@kills("a late master is not read first", Sockets.read_late, without("self.read(...)"))
def test_a_late_master_is_read_before_it_is_left_out(single: ManualLinks) -> None:
    first = _late(single)
    single.ends[0].say(resp(packed([first.number, 1, single.time.wall, 7])))
    exchange = single.grant(single.ask(single.acquire("b" * 32)), 0)
    assert exchange.tally.verdict is Verdict.WON


@kills("a link is judged without a last read", Sockets.judge, without("self._read_all(...)"))
def test_received_replies_are_read_before_they_are_judged(single: ManualLinks) -> None:
    exchange = _owes(single)
    single.ends[0].say(resp(packed([exchange.number, 1, single.time.wall, 7])))
    single.poll(TIMEOUT)
    assert exchange.tally.verdict is Verdict.WON


@kills("our stall makes masters late", RunningTime.polled, instead("max(asked / 4, ...)", "took"))
def test_a_stall_of_our_own_makes_no_master_late(single: ManualLinks) -> None:
    exchange = _owes(single)
    single.lateness.running._counted -= 10.0
    single.sockets.waited(TIMEOUT / 5, 10.0, single.time())
    assert single.masters[0].link is not None
    assert exchange.tally.verdict is Verdict.PENDING

"""Rules of links, without a driver: events that break a promise unless one rule holds."""

from __future__ import annotations

import asyncio
import re
import threading
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from redlock_django.backends.redis import RedisBackend
from redlock_django.engine.protocol.commands import Command, Extend, script
from redlock_django.engine.protocol.statuses import Status
from redlock_django.engine.protocol.votes import Ballot, Vote
from redlock_django.engine.quorum import Tally, Verdict
from redlock_django.engine.steps import Round
from redlock_django.wire.drivers.dialing import Pace
from redlock_django.wire.drivers.loop import LoopDriver
from redlock_django.wire.drivers.sockets import Sockets
from redlock_django.wire.drivers.threads import ThreadDriver
from redlock_django.wire.links import clock_steps
from redlock_django.wire.links.clock_steps import StepWatch
from redlock_django.wire.links.late_masters import (
    GIVE_UP,
    LONGEST,
    MOST_LATE,
    MOST_OWED,
    Lateness,
    LateWatch,
    RunningTime,
)
from redlock_django.wire.links.link import Exchange
from redlock_django.wire.links.link_changes import LinkChanges
from redlock_django.wire.links.links import Links
from redlock_django.wire.links.master import IDLE, Master, find_twins
from redlock_django.wire.links.replies import Replies
from redlock_django.wire.links.sender import Sender
from redlock_django.wire.notice import ignore
from redlock_django.wire.servers import info as server_info
from redlock_django.wire.servers import trust
from redlock_django.wire.servers.info import run_of
from redlock_django.wire.servers.trust import Unfit, check
from tests.engine.masters import Masters
from tests.engine.mutants import kills
from tests.engine.mutation import always, instead, never, returns, together, without
from tests.replies import packed
from tests.wire.manual_links import (
    DIAL,
    NOW,
    TIMEOUT,
    TOKEN,
    WALL,
    Ends,
    ManualLinks,
    Time,
    ballot,
    manual_links,
    one_link,
)  # fmt: skip
from tests.wire.scripted import MARKER, NAMES, resp
from tests.wire.variants import make_backend


def tombstone(said: list[bytes]) -> bool:
    """Return whether a release leaves a tombstone."""
    how = said[5 + int(said[2]) :]
    return bool(how) and how[0].split()[1] == b"1"


@kills("an unexpected reply is ignored", Replies._answer,
       instead("raise ProtocolDesync('a reply without a command')", "return"))  # fmt: skip
def test_an_unexpected_reply_drops_the_link() -> None:
    with manual_links(1) as links:
        exchange = links.ask(links.acquire())
        links.reply(0, exchange.number)
        links.reply(0, exchange.number + 1)
        assert links.masters[0].link is None


@kills("a master without a thread stays lost", Links._look, without("self.changes.retry()"))
def test_a_master_that_no_thread_connects_to_is_dialled_by_the_next_round() -> None:
    dialled: list[tuple[str, float]] = []

    def dial(sockets: Sockets, master: Master, reason: str, delay: float) -> None:
        dialled.append((reason, delay))
        master.undialed = None

    failing = patch.object(threading.Thread, "start", side_effect=RuntimeError("no more threads"))
    with manual_links(1) as links:
        with failing, patch.object(Sockets, "_dial", DIAL):
            links.cut(links.masters[0], "lost")
        with patch.object(Sockets, "_dial", dial):
            exchange = links.ask(links.acquire())
        assert "no more threads" in str(exchange.tally.votes[0])
        assert dialled == [("lost", 0.0)]


@kills("a release overtakes", Links.begin, instead("link.out += data", "link.out[:0] = data"))
def test_a_release_is_sent_after_its_acquire() -> None:
    with manual_links(1) as links:
        tallies = Tally(1), Tally(1)
        for command, tally in zip((links.acquire(), links.release()), tallies, strict=True):
            links.begin(Exchange(Round((command,), tally), lambda: None))
        links.sockets.flush()
        assert links.ends[0].names() == ["acquire", "release"]


@kills("0 is a time", Replies._count_plain, always("time", nth=1))
@kills("a failed release without a clock is a step", Replies._handle_vote,
       always("reply.time != 0"))  # fmt: skip
def test_a_release_without_the_time_is_no_clock_step() -> None:
    """Its script does not read the master's clock, and answers 0 in its place."""
    with manual_links(1) as links:
        links.reply(0, links.ask(links.acquire()).number)
        for more in ([], [1]):  # granted; absent, with the index
            status = Status.ABSENT if more else Status.GRANTED
            number = links.ask(links.release()).number
            links.say(0, resp(packed([number, status, 0, *more])))
        assert links.masters[0].suspect == ""
        assert links.masters[0].fault(links.time()) == ""


@kills("a kept release does not bury", Master.keep_release,
       instead("replace(release, bury=True)", "release"))  # fmt: skip
@kills("a release with no link is lost", Links._fit, without(Master.keep_release))
def test_a_release_for_a_lost_link_is_sent_first_and_buries() -> None:
    with manual_links(1) as links:
        links.cut(links.masters[0], "lost")
        links.ask(links.release())
        ends = links.join(0)
        links.ask(links.acquire("b" * 32))
        said = ends.heard()
        assert [NAMES[one[1]] for one in said] == ["release", "acquire"]
        assert tombstone(said[0])


@kills("an interrupted loss stays unfinished", LinkChanges.retry,
       without(LinkChanges.finish_losing))  # fmt: skip
def test_a_link_whose_loss_was_interrupted_is_lost_by_the_next_round() -> None:
    interrupted = patch.object(Master, "fail_owed", side_effect=KeyboardInterrupt)
    with manual_links(1) as links:
        exchange = links.ask(links.acquire())
        with interrupted, pytest.raises(KeyboardInterrupt):
            links.cut(links.masters[0], "lost")
        links.ask(links.acquire("b" * 32))
        assert exchange.decided
        assert links.masters[0].link is None


@kills("an unanswered release is lost", Master.fail_owed, without(Master.keep_release, nth=1))
def test_a_release_that_was_not_answered_is_sent_again() -> None:
    with manual_links(1) as links:
        links.ask(links.release())
        links.cut(links.masters[0], "lost")
        ends = links.join(0)
        links.sockets.flush()
        assert ends.names() == ["release"]


def _refused(links: ManualLinks) -> Exchange:
    """Ask for a lock that masters 0 and 1 refuse, so that the round is lost before 2 answers."""
    exchange = links.ask(links.acquire())
    for index in (0, 1):
        refusal = packed([exchange.number, 0, links.time.wall, 1, 900, 5, -1, b"b" * 32])
        links.say(index, resp(refusal))
    assert exchange.tally.verdict is Verdict.LOST
    return exchange


@kills("a late grant stays", Replies._count_plain, without("self._sender.undo_late(...)"))
def test_a_grant_after_the_refusal_is_released() -> None:
    with manual_links(3) as links:
        links.reply(2, _refused(links).number)
        assert [ends.names() for ends in links.ends] == [["acquire"]] * 2 + [["acquire", "release"]]


@kills("a grant of a doubtful master stays", Replies._handle_vote,
       without("self._sender.undo_late(...)"))  # fmt: skip
def test_a_grant_of_a_late_or_doubtful_master_is_released() -> None:
    for is_late in (True, False):
        with manual_links(3) as links:
            exchange = _refused(links)
            if is_late:
                age(links, 10.0)
                poll(links, LONGEST * TIMEOUT)
            else:
                links.masters[2].usable = False
            links.reply(2, exchange.number)
            assert links.ends[2].names() == ["acquire", "release"]


@kills("a grant on a lost link stays", Master.fail_owed, without(Master.keep_release, nth=2))
def test_a_link_that_is_lost_after_the_refusal_brings_the_release_later() -> None:
    with manual_links(3) as links:
        _refused(links)
        links.cut(links.masters[2], "lost")
        said = links.join(2)
        links.sockets.flush()
        assert [tombstone(command) for command in said.heard()] == [True]


@kills("closed links leave a grant", Links.finish, without("self.sender.undo_late(...)"))
def test_links_that_close_after_the_refusal_send_the_release() -> None:
    with manual_links(3) as links:
        _refused(links)
        links.ends[2].heard()
        links.ends[2]._ours.settimeout(1)
        with patch("redlock_django.wire.drivers.sockets.clock", side_effect=[0.0, 100.0]):
            links.sockets.shut()
        assert links.ends[2].names() == ["release"]


@kills("late replies are read at once", Sockets.read, never("link.expired"))
def test_replies_that_come_too_late_are_read_in_parts() -> None:
    with manual_links(1) as links:
        numbers = [links.ask(links.acquire()).number for _ in range(200)]
        link = links.link(0)
        age(links, 10.0)
        poll(links, LONGEST * TIMEOUT)
        now = links.time.wall
        links.say(0, b"".join(resp(packed([number, 1, now, 7])) for number in numbers))
        assert 100 < len(link.owed) < 200, "a caller reads for itself as well"
        for _ in range(20):
            links.read(links.masters[0])
        assert not link.owed
        assert not links.masters[0].late


@kills("a refused release is forgotten", Replies._handle_error, without(Master.refuse_release))
@kills("a repeated release never ends", Replies._handle_vote,
       without("master.refused_releases.pop(...)"))  # fmt: skip
def test_a_release_that_a_master_refused_is_sent_again() -> None:
    with manual_links(1) as links:
        links.ask(links.release())
        links.say(0, b"-MISCONF Errors writing to the AOF file\r\n")
        links.ends[0].heard()
        links.changes.retry()
        links.sockets.flush()
        assert links.ends[0].names() == ["release"]
        links.reply(0, 0, fences=0)
        links.time.now += 1.0
        assert links.changes.retry()


@kills("a refused release is repeated for ever", Master.due_releases, never("until < now"))
def test_a_release_that_a_master_refuses_for_ever_is_given_up() -> None:
    with manual_links(1) as links:
        links.ask(links.release())
        links.say(0, b"-MISCONF Errors writing to the AOF file\r\n")
        links.time.now += links.deployment.max_ttl + 1.0
        assert links.changes.retry()


@kills("a token on a lost link is forgotten", Master.fail_owed, without(Master.remember_unanswered))
def test_a_release_after_an_acquire_that_may_still_arrive_buries() -> None:
    with manual_links(1) as links:
        links.ask(links.acquire())
        links.cut(links.masters[0], "lost")
        ends = links.join(0)
        links.ask(links.release())
        said = ends.heard()
        assert [tombstone(one) for one in said] == [True]


@kills(
    "every release buries",
    Links._fit,
    together(
        always("command.token in master.unanswered"),
        without("del master.unanswered[command.token]"),
    ),
)
def test_an_ordinary_release_leaves_no_tombstone() -> None:
    for is_another_unanswered in (False, True):
        with manual_links(1) as links:
            if is_another_unanswered:
                links.ask(links.acquire("b" * 32))
                links.cut(links.masters[0], "lost")
                links.join(0)
            exchange = links.ask(links.acquire())
            links.reply(0, exchange.number)
            links.ask(links.release())
            assert not tombstone(links.ends[0].heard()[-1])


_LOADED = b"$40\r\n%b\r\n" % (b"0" * 40)  # the answer to SCRIPT LOAD


def _no_script(links: ManualLinks, index: int) -> list[bytes]:
    links.ends[index].heard()
    links.say(index, b"-NOSCRIPT No matching script.\r\n")
    said = links.ends[index].heard()
    assert said
    return said[-1]


@kills("NOSCRIPT is a failure", Replies._handle_error, never("code == 'NOSCRIPT'"))
def test_a_script_that_was_flushed_is_sent_at_once() -> None:
    with manual_links(1) as links:
        exchange = links.ask(links.acquire())
        said = _no_script(links, 0)
        assert said[:2] == [b"EVAL", script("acquire", links.deployment)[0].encode()]
        links.ends[0].say(_LOADED)
        links.reply(0, exchange.number)
        assert exchange.tally.verdict is Verdict.WON


@kills("an undo by EVAL", Replies._retry, never("isinstance(command, Acquire)"))
def test_an_undo_is_known_to_a_master_that_learns_to_acquire() -> None:
    """By EVAL, the undo of a call that was cancelled would arrive after the next acquire."""
    with manual_links(1) as links:
        links.ask(links.acquire())
        links.ends[0].heard()
        links.say(0, b"-NOSCRIPT No matching script.\r\n")
        said = links.ends[0].heard()
        assert [verb for verb, *_ in said] == [b"SCRIPT", b"EVAL"]
        assert said[0] == [b"SCRIPT", b"LOAD", script("release", links.deployment)[0].encode()]


@kills("a decided round is sent again", Replies._retry, always("owed.undecided is not None"))
def test_a_decided_round_is_not_sent_again() -> None:
    with manual_links(3) as links:
        exchange = links.ask(links.acquire())
        links.grant(exchange, 0, 1)
        assert exchange.decided
        assert _no_script(links, 2) == [
            b"SCRIPT",
            b"LOAD",
            script("acquire", links.deployment)[0].encode(),
        ]


def _owes(links: ManualLinks, seconds: float = 10.0) -> Exchange:
    """Send an acquire to every master, `seconds` ago."""
    exchange = links.ask(links.acquire())
    age(links, seconds)
    return exchange


def age(links: ManualLinks, seconds: float) -> None:
    for master in links.owing():
        assert master.link is not None
        for owed in master.link.owed:
            owed.sent -= seconds


def poll(links: ManualLinks, seconds: float) -> None:
    links.lateness.running._counted -= seconds
    links.sockets.waited(seconds, seconds, links.time())


def _late(links: ManualLinks) -> Exchange:
    exchange = _owes(links)
    poll(links, 2 * TIMEOUT)
    assert all(master.late for master in links.masters)
    return exchange


@kills("a round waits for a late reply", Lateness.has_expired, returns("False"))
def test_a_late_reply_costs_its_vote() -> None:
    with manual_links(1) as links:
        exchange = _owes(links)
        poll(links, TIMEOUT)
        assert exchange.tally.verdict is Verdict.LOST
        assert not links.masters[0].late


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
    age(links, 100.0)
    while exchange.tally.verdict is Verdict.PENDING:
        poll(links, TIMEOUT / 2)
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


@kills("a busy host is out of time", Lateness.patience, instead("USUAL * usual", "0"),
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
@kills("patience without end", Lateness.patience, instead("LONGEST * self.master_timeout", "100"),
       "all are very slow")  # fmt: skip
@pytest.mark.parametrize("masters", PATIENCE)
def test_a_reply_is_waited_for_as_long_as_replies_usually_take(masters: str) -> None:
    seconds, slow, patience = PATIENCE[masters]
    with manual_links(3) as links:
        if slow:
            _take(links, seconds, *slow)
        assert _expires_after(links) == patience


@kills("a waiter asks again without an answer", Round.waits_on, never("now < self.patient"))
def test_a_patient_round_counts_late_replies() -> None:
    with manual_links(3) as links:
        exchange = links.ask(links.acquire(), patient=60.0)
        age(links, 10.0)
        poll(links, 2 * TIMEOUT)
        assert all(master.late for master in links.masters)
        links.grant(exchange)
        assert exchange.tally.verdict is Verdict.WON


@kills("a patient round never ends", LateWatch.judge, without("self.fail_late(...)"))
def test_a_patient_round_ends() -> None:
    with manual_links(3) as links:
        exchange = links.ask(links.acquire(), patient=60.0)
        age(links, 10.0)
        poll(links, TIMEOUT)
        assert not exchange.decided
        exchange.asked.patient = links.time() + 0.1
        assert links.lateness.poll_timeout(links.time()) == pytest.approx(0.1)
        exchange.asked.patient = links.time()
        assert links.lateness.poll_timeout(links.time()) == 0.0
        poll(links, TIMEOUT / 10)
        assert exchange.tally.verdict is Verdict.LOST


@kills("a waiter waits for a minority", Round.waits_on, always("not self.tally.answered"))
def test_a_patient_round_does_not_wait_for_a_minority() -> None:
    with manual_links(3) as links:
        exchange = links.ask(links.acquire(), patient=60.0)
        age(links, 10.0)
        exchange.cast(0, Vote(Ballot.REFUSED))
        links.reply(1, exchange.number)
        poll(links, TIMEOUT)
        assert exchange.tally.verdict is Verdict.LOST


@kills("a patient round asks no late master", Links._fault_for,
       never("exchange.asked.waits_on(now)"))  # fmt: skip
@kills("a patient round asks all late masters", Links._fault_for,
       always("self.link_wait.usable() < self.link_wait.quorum"))  # fmt: skip
def test_only_a_patient_round_without_a_quorum_asks_late_masters() -> None:
    with manual_links(3) as links:
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
def test_a_new_link_shows_how_long_replies_take() -> None:
    with manual_links(1) as links:
        ends = links.new_ends(0)
        joined = ends.joined("0")
        low, high = joined.trust.offset
        slow = replace(joined.trust, offset=(low - 0.18 * TIMEOUT, high + 0.18 * TIMEOUT))
        links.sockets.arrived(0, replace(joined, trust=slow))
        assert _expires_after(links) == 3.5


def _decided(links: ManualLinks) -> None:
    """Run a round that all masters but the last one have answered, which was asked 10 s ago."""
    exchange = links.ask(links.acquire())
    for index in range(len(links.masters) - 1):
        links.reply(index, exchange.number)
    assert exchange.decided
    age(links, 10.0)


@kills("replies of decided rounds end polls", LateWatch._left, always("owed.undecided is not None"))
def test_no_poll_ends_for_a_reply_of_a_decided_round() -> None:
    with manual_links(3) as links:
        _decided(links)
        poll(links, TIMEOUT / 2)
        _decided(links)
        poll(links, TIMEOUT / 2)
        left = links.lateness.poll_timeout(links.time())
        assert left == pytest.approx(TIMEOUT), "it is late then"


@kills("no poll ends for a vote behind others", LateWatch._left,
       never("owed.undecided is not None"))  # fmt: skip
def test_a_reply_behind_those_of_decided_rounds_costs_its_vote_in_time() -> None:
    with manual_links(3) as links:
        _decided(links)
        links.cut(links.masters[0], "lost")
        poll(links, TIMEOUT / 2)
        exchange = links.ask(links.acquire())
        links.reply(1, exchange.number)
        age(links, 10.0)
        poll(links, TIMEOUT / 2)
        assert not exchange.decided
        left = links.lateness.poll_timeout(links.time())
        assert left == pytest.approx(TIMEOUT / 2)
        poll(links, left)
        assert exchange.tally.verdict is Verdict.LOST
        assert not links.masters[2].late


@kills("late grants take the long way", Replies._count_plain, never("exchange.decided and ..."))
@kills("removed replies are not counted off", Replies._count_plain, without("link.expired -= 1"))
def test_late_grants_of_decided_rounds_are_only_removed() -> None:
    with manual_links(3) as links:
        for _ in range(9):
            _decided(links)
        last = _owes(links)
        poll(links, LONGEST * TIMEOUT)
        assert links.masters[2].late
        with patch.object(Replies, "_answer", side_effect=AssertionError("the long way")):
            for number in range(1, last.number):
                links.reply(2, number)
        link = links.link(2)
        assert len(link.owed) == link.expired == 1


@kills("any late grant counts", Replies._count_plain, always("exchange.decided", nth=1))
def test_a_late_grant_of_a_doubtful_master_has_no_vote() -> None:
    with manual_links(3) as links:
        exchange = links.ask(links.acquire(), patient=60.0)
        age(links, 10.0)
        poll(links, 2 * TIMEOUT)
        links.masters[0].suspect = "its clock stepped"
        links.reply(0, exchange.number)
        assert exchange.tally.reasons()[0] == "its clock stepped"


@kills("one late reply fails all", LateWatch._judge, never("not (late or ...)"))
def test_a_late_reply_costs_no_vote_after_it() -> None:
    with manual_links(1) as links:
        first = _owes(links)
        second = links.ask(links.acquire("b" * 32))
        poll(links, TIMEOUT)
        assert first.tally.verdict is Verdict.LOST
        links.reply(0, first.number)
        links.reply(0, second.number)
        assert second.tally.verdict is Verdict.WON


@kills("expired replies are not counted off", Replies._pop_owed, never("link.expired"))
def test_an_expired_reply_that_has_come_is_not_counted_for_the_next() -> None:
    with manual_links(1) as links:
        first, second = _owes(links), links.ask(links.acquire("b" * 32))
        poll(links, TIMEOUT)
        links.reply(0, first.number, Status.NOT_READY)
        age(links, 10.0)
        poll(links, LONGEST * TIMEOUT)
        assert second.tally.verdict is Verdict.LOST


@kills("a late reply costs its link", LateWatch._judge,
       instead("self._mark_late(...)", "return 'late'"))  # fmt: skip
def test_a_late_reply_never_costs_its_link() -> None:
    with manual_links(1) as links:
        link = links.masters[0].link
        exchange = _late(links)
        assert links.masters[0].link is link
        links.reply(0, exchange.number)
        assert links.masters[0].link is link
        assert ballot(exchange, 0) is Ballot.FAILED, "the vote stays failed"


@kills("a cancelled round of a loop is sent again", LoopDriver._take, without("exchange.abandon()"))
def test_a_round_that_was_cancelled_in_a_loop_is_not_sent_again() -> None:
    """Its release is sent already: an acquire after it would leave a lock behind."""
    assert asyncio.run(_sent_by_a_cancelled_round()) == [
        b"EVALSHA",
        b"EVALSHA",
        b"SCRIPT",
        b"SCRIPT",
    ]


async def _sent_by_a_cancelled_round() -> list[bytes]:
    with one_link(LoopDriver) as (driver, masters, ends):
        task = asyncio.create_task(driver.run(masters.acquire()))
        said = await _until_heard(ends, 1)
        task.cancel()
        await asyncio.wait([task])
        said += await _until_heard(ends, 1)
        ends.say(b"-NOSCRIPT No matching script.\r\n")
        said += await _until_heard(ends, 1)
        return [verb for verb, *_ in said]


async def _until_heard(ends: Ends, commands: int) -> list[list[bytes]]:
    said: list[list[bytes]] = []
    while len(said) < commands:
        await asyncio.sleep(0)
        said += ends.heard()
    return said


@kills("another server has the same clock", LinkChanges.joined, without("master.forget_clock()"))
def test_an_arriving_link_to_another_server_has_a_clock_of_its_own() -> None:
    with manual_links(3) as links:
        links.cut(links.masters[0], "lost")
        links.join(0, run_id="another server", ahead=30.0)
        assert links.masters[0].fault(links.time()) == ""


@kills("a release over other links does not bury", RedisBackend.post_release,
       instead("driver is not home", "False"))  # fmt: skip
def test_a_release_over_other_links_buries() -> None:
    """The links that sent the acquire are gone, and it may still arrive."""
    backend = make_backend(["unix:///nowhere"])
    closed = ThreadDriver(backend._links(), ignore)
    closed.close()
    lease = replace(Masters(1).taken(), home=closed)
    sent: list[Any] = []
    with patch.object(ThreadDriver, "post", lambda driver, protocol: sent.append(next(protocol))):
        assert backend.release(lease) is None
    assert [release.bury for release in sent[0].commands] == [True]


@kills("a link is never given up", Lateness.is_over, never("silent >= longest"))
def test_a_master_that_never_answers_loses_its_link() -> None:
    with manual_links(1) as links:
        _late(links)
        links.ask(links.release())
        poll(links, MOST_LATE * GIVE_UP)
        assert links.masters[0].link is None
        assert [*links.masters[0].pending_releases] == ["a" * 32]


@kills("a starved host connects again", Lateness.longest_silence, never("late > masters // 2"))
@kills("a silent minority is kept", Lateness.longest_silence, always("late > masters // 2"))
def test_links_are_kept_longer_while_most_are_late() -> None:
    with manual_links(3) as links:
        exchange = _late(links)
        age(links, 100.0)
        poll(links, GIVE_UP)
        assert all(master.link is not None for master in links.masters)
        links.grant(exchange, 0, 1)
        poll(links, 0.0)
        assert [master.link is None for master in links.masters] == [False, False, True]


# For how long a link is idle, how it fails then, and whether a vote on it is stale.
FAILING = {
    "ends after a pause": (2 * IDLE, True, True),
    "ends in use": (IDLE / 2, True, False),
    "is given up": (2 * IDLE, False, False),
}


@kills("no link is stale", Master.fail_owed, never("ended and ..."), "ends after a pause")
@kills("any broken link was idle", Master.fail_owed, always("owed.sent - link.heard > IDLE"),
       "ends in use")  # fmt: skip
@kills("a silent link is stale", Master.fail_owed, always("ended"), "is given up")
@pytest.mark.parametrize("how", FAILING)
def test_a_vote_is_stale_if_its_link_ends_after_a_pause(how: str) -> None:
    idle, ends, stale = FAILING[how]
    with manual_links(1) as links:
        links.link(0).heard -= idle
        exchange = links.ask(links.acquire())
        if ends:
            links.ends[0].close()
            links.read(links.masters[0])
        else:
            links.cut(links.masters[0], "did not answer", late=True)
        [vote] = exchange.tally.votes
        assert vote is not None
        assert (vote.ballot, vote.stale) == (Ballot.FAILED, stale)


@kills("a long queue costs the link", LateWatch._silent, returns("self._age(link.owed[0], now)"))
def test_a_master_that_works_off_a_queue_keeps_its_link() -> None:
    with manual_links(1) as links:
        first = links.ask(links.acquire())
        links.ask(links.release())
        age(links, 10.0)
        poll(links, 2 * TIMEOUT)
        poll(links, MOST_LATE * GIVE_UP - 2 * TIMEOUT - 0.1)
        links.reply(0, first.number)
        poll(links, 0.2)
        assert links.masters[0].link is not None
        assert links.masters[0].late


@kills("replies without limit", Lateness.is_over, never("owed > MOST_OWED"))
def test_a_master_that_owes_too_much_loses_its_link() -> None:
    with manual_links(1) as links:
        _late(links)
        link = links.link(0)
        link.owed.extend([link.owed[0]] * MOST_OWED)
        poll(links, 0.0)
        assert links.masters[0].link is None


@kills("any answer is in time", LateWatch._judge, instead("link.owed[0]", "link.owed[-1]"))
def test_a_master_that_always_answers_late_is_late() -> None:
    with manual_links(1) as links:
        first = _owes(links)
        for _ in range(7):
            poll(links, TIMEOUT / 3)
            links.ask(links.release())
            age(links, 10.0)
        assert first.tally.verdict is Verdict.LOST
        assert links.masters[0].late


@kills("a master is never late", Lateness.is_late, returns("False"))
@kills("a late master is waited for", Links._fit, never("master.late and ..."))
def test_no_release_waits_for_a_late_master() -> None:
    with manual_links(1) as links:
        _late(links)
        exchange = links.ask(links.release())
        assert exchange.decided
        assert links.ends[0].names() == ["acquire", "release"]


@kills("a late master is asked", Master.fault, never("self.late", nth=1))
def test_a_late_master_is_sent_releases_only() -> None:
    with manual_links(3) as links:
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
def test_a_late_master_that_has_answered_votes_again() -> None:
    with manual_links(1) as links:
        links.reply(0, _late(links).number)
        exchange = links.ask(links.acquire("b" * 32))
        links.reply(0, exchange.number)
        assert exchange.tally.verdict is Verdict.WON


@kills("in time after one answer", Replies.feed, always("not link.owed"))
def test_a_late_master_must_answer_all_that_it_owes() -> None:
    with manual_links(1) as links:
        first = _late(links)
        links.ask(links.release())
        links.reply(0, first.number)
        assert links.masters[0].late


@kills("a late master is not read first", Sockets.read_late, without("self.read(...)"))
def test_a_late_master_is_read_before_it_is_left_out() -> None:
    with manual_links(1) as links:
        first = _late(links)
        links.ends[0].say(resp(packed([first.number, 1, links.time.wall, 7])))
        exchange = links.ask(links.acquire("b" * 32))
        links.reply(0, exchange.number)
        assert exchange.tally.verdict is Verdict.WON


@kills("a link is judged without a last read", Sockets.judge, without("self._read_all(...)"))
def test_received_replies_are_read_before_they_are_judged() -> None:
    with manual_links(1) as links:
        exchange = _owes(links)
        links.ends[0].say(resp(packed([exchange.number, 1, links.time.wall, 7])))
        poll(links, TIMEOUT)
        assert exchange.tally.verdict is Verdict.WON


@kills("our stall makes masters late", RunningTime.polled, instead("max(asked / 4, ...)", "took"))
def test_a_stall_of_our_own_makes_no_master_late() -> None:
    with manual_links(1) as links:
        exchange = _owes(links)
        links.lateness.running._counted -= 10.0
        links.sockets.waited(TIMEOUT / 5, 10.0, links.time())
        assert links.masters[0].link is not None
        assert exchange.tally.verdict is Verdict.PENDING


@kills("a decision waits for a late master", StepWatch.decide, always("not m.late"))
def test_a_late_master_does_not_hold_up_a_decision() -> None:
    """One master's step is marked although another one does not answer its check."""
    with manual_links(3) as links:
        exchange = links.ask(links.acquire())
        links.reply(0, exchange.number, ahead=30.0)
        links.reply(1, exchange.number)
        links.trusted(1)
        links.ends[0].heard()
        age(links, 10.0)
        poll(links, 2 * TIMEOUT)
        links.sockets.flush()
        assert links.masters[2].late
        assert [said[-1] for said in links.ends[0].heard()] == [b"distrust"]


@kills("all attempts at once", Pace.turn, without("self._next = ..."))
def test_attempts_to_connect_are_paced() -> None:
    pace = Pace()
    with patch("redlock_django.wire.drivers.dialing.clock", Time()):
        turns = [pace.turn() for _ in range(11)]
    assert turns[0] == 0.0
    assert 5 * Pace.SPACING < turns[-1] <= 15 * Pace.SPACING


@kills("one server, two votes", find_twins, never("other is not master"))
def test_one_server_under_two_names_has_no_vote() -> None:
    with manual_links(3) as links:
        links.join(2, run_id="1")
        exchange = links.ask(links.acquire())
        links.reply(0, exchange.number)
        assert exchange.tally.verdict is Verdict.LOST
        assert links.ends[1].names() == links.ends[2].names() == []


@kills("a lost link still has a name", LinkChanges.finish_losing,
       without("find_twins(self._masters)"))  # fmt: skip
def test_a_server_votes_again_once_it_has_one_name_left() -> None:
    with manual_links(3) as links:
        links.join(2, run_id="1")
        assert "same server" in links.masters[1].fault(links.time())
        links.cut(links.masters[0], "lost")
        assert "same server" in links.masters[1].fault(links.time())
        links.join(0)
        links.cut(links.masters[2], "lost")
        exchange = links.ask(links.acquire())
        links.grant(exchange, 0, 1)
        assert exchange.tally.verdict is Verdict.WON


@kills("asked without a majority", Links._fit, never("exchange.decided and ..."))
def test_with_a_majority_down_no_master_is_asked() -> None:
    with manual_links(3) as links:
        for master in links.masters[:2]:
            links.cut(master, "lost")
        exchange = links.ask(links.acquire())
        assert exchange.tally.reasons() == ["lost", "lost", "not asked"]
        assert links.ends[2].names() == []


@kills("asked before it is trusted", Master.fault, never("now < self.trust.ready"), "acquire")
@kills("a master extends before it is trusted", Extend.early, returns("True"), "extend")
@pytest.mark.parametrize("name", ["acquire", "extend"])
def test_a_master_has_no_vote_before_it_is_trusted(name: str) -> None:
    with manual_links(1) as links:
        ends = links.join(0, ready=60.0)
        extend = Extend(links.deployment, ("r",), f"{TOKEN} {{}}", 10)
        exchange = links.ask(links.acquire() if name == "acquire" else extend)
        assert name not in ends.names()
        assert exchange.tally.verdict is Verdict.LOST


@kills("a promoted replica extends nothing", Extend.early, returns("False"))
@kills("a promoted replica grants at once", Command.early, returns("True"))
def test_a_promoted_replica_extends_before_it_is_trusted_and_grants_nothing() -> None:
    with manual_links(1, failover=True) as links:
        ends = links.join(0, ready=60.0)
        assert links.ask(links.acquire()).tally.verdict is Verdict.LOST
        exchange = links.ask(Extend(links.deployment, ("r",), f"{TOKEN} {{}}", 10))
        said = ends.heard()[-1]
        assert said[1] == script("extend", links.deployment)[1].encode()
        assert said[-2:] == [MARKER, b"0"], "whenever it is trusted"
        links.trusted(0)
        links.reply(0, exchange.number, fences=0)
        assert exchange.tally.verdict is Verdict.WON


@kills("another server is not inspected", Replies._handle_vote,
       never("self._deployment.failover and ..."))  # fmt: skip
def test_a_server_behind_a_proxy_that_is_another_one_is_inspected_at_once() -> None:
    with manual_links(1, failover=True) as links:
        exchange = links.ask(links.acquire())
        links.reply(0, exchange.number, -1)
        links.trusted(0)
        links.ends[0].heard()
        links.ask(links.acquire())
        assert [said[0] for said in links.ends[0].heard()] == [b"INFO", b"EVALSHA"]


@kills("a plain reply of any status", Replies._count_plain, never("status < 0"))
@kills("NOT_READY is ignored", Replies._handle_vote, never("reply.status == Status.NOT_READY"))
def test_a_master_that_is_not_ready_is_asked_why() -> None:
    with manual_links(1) as links:
        exchange = links.ask(links.acquire())
        links.ends[0].heard()
        links.reply(0, exchange.number, -1)
        assert links.ends[0].names() == ["join"]


@kills("a mismatch is ignored", trust.read_trust, never("status == Status.MISMATCH"),
       Status.MISMATCH, ".*--reconfigure")  # fmt: skip
@pytest.mark.parametrize(
    ("status", "why"),
    [
        pytest.param(Status.MISMATCH, ".*--reconfigure", id="another marker"),
        pytest.param(Status.UNMARKED, "new: run 'manage.py redlock_init'", id="no marker"),
    ],
)
def test_a_master_without_the_marker_of_the_deployment_is_given_up(status: int, why: str) -> None:
    with manual_links(1) as links:
        exchange = links.ask(links.acquire())
        links.reply(0, exchange.number, -1)
        links.trusted(0, status)
        assert links.masters[0].link is None
        assert re.match(why, links.masters[0].reason)


@kills("another deployment stops nothing", Links.conflict,
       instead("self.membership.conflict", "''"))  # fmt: skip
def test_a_master_of_another_deployment_stops_all_new_locks() -> None:
    with manual_links(3) as links:
        exchange = links.ask(links.acquire())
        links.reply(0, exchange.number, -1)
        links.trusted(0, Status.MISMATCH)
        for ends in links.ends:
            ends.heard()
        exchange = links.ask(links.acquire())
        assert exchange.tally.verdict is Verdict.LOST
        assert links.ends[1].names() == []
        assert "belongs to another deployment" in str(exchange.tally.votes[1])
        links.ask(links.release())
        assert links.ends[1].names() == ["release"]


@kills("a repeated question hides the reason", LinkChanges.trust,
       never("... and master.trust.marker == trust.marker"))  # fmt: skip
@kills("a reason outlives its marker", LinkChanges.trust,
       instead("master.trust.marker == trust.marker", "True"))  # fmt: skip
def test_the_reason_of_a_wait_is_kept_while_the_marker_is_the_same() -> None:
    """A master names it only in the reply that writes its marker, and may be asked again."""
    with manual_links(1) as links:
        links.join(0, ready=60.0)
        master = links.masters[0]
        assert master.trust is not None
        again = master.trust
        links.changes.trust(master, replace(again, marker=b"new", doubt="restarted"))
        links.changes.trust(master, replace(again, marker=b"new"))
        assert master.fault(links.time()).startswith("restarted: trusted in")
        links.changes.trust(master, replace(again, marker=b"newer"))
        assert master.fault(links.time()).startswith("waits to be trusted"), "another marker"


@kills("a master that is not counted stays so", Links._fault_for,
       never("now - master.looked > LOOK_AGAIN"))  # fmt: skip
def test_a_master_that_was_declared_trusted_is_counted_soon() -> None:
    with manual_links(1) as links:
        ends = links.join(0, ready=60.0)
        links.ask(links.acquire())
        assert ends.names() == ["join"]
        links.ask(links.acquire("b" * 32))
        assert ends.names() == [], "not at every try"
        links.trusted(0)
        assert links.ask(links.acquire("c" * 32)).tally.outstanding == 1


def info_of(index: int, **changed: str) -> bytes:
    """Return INFO of a master of `ManualLinks`, as a reply."""
    fields = {"redis_version": "7.2.4", "run_id": f"{index}", "role": "master", **changed}
    return resp("".join(f"{name}:{value}\r\n" for name, value in fields.items()).encode())


# What a master reports in the INFO before a command, and why it is not counted then.
REPORTED: dict[str, dict[str, str]] = {
    "": {},
    "is a replica": {"role": "slave"},
    "may evict": {"maxmemory": "1", "maxmemory_policy": "allkeys-lru"},
    "by replication": {"master_replid": "ab", "master_replid2": "cd"},
    "has evicted keys": {"evicted_keys": "3"},
}


@kills("a live link is never inspected", Links._look, never("now >= master.inspect_at"),
       "may evict")  # fmt: skip
@kills("a copy has the run of its server", server_info.run_of,
       instead("info.get('master_replid', '')", "''"), "by replication")  # fmt: skip
@kills("an old copy is trusted", LinkChanges.inspected, never("run_of(info) != master.run_id"),
       "by replication")  # fmt: skip
@kills("evicted keys are forgotten", server_info.run_of, never("evicted.isdecimal()"),
       "has evicted keys")  # fmt: skip
@pytest.mark.parametrize("why", REPORTED)
def test_a_live_link_is_inspected_before_a_command(why: str) -> None:
    with manual_links(1) as links:
        links.masters[0].inspect_at = 0.0
        exchange = links.ask(links.acquire())
        assert [said[0] for said in links.ends[0].heard()] == [b"INFO", b"EVALSHA"]
        links.ends[0].say(info_of(0, **REPORTED[why]))
        links.reply(0, exchange.number)
        assert exchange.tally.verdict is (Verdict.LOST if why else Verdict.WON)
        links.ask(links.release())
        assert b"INFO" not in [said[0] for said in links.ends[0].heard()]
        reason = links.masters[0].reason
        assert why in reason if why else reason == ""


@kills("a handshake hides what INFO is now", LinkChanges.joined,
       instead("result.inspected", "self._clock()"))  # fmt: skip
def test_what_was_reported_before_a_long_handshake_is_asked_again() -> None:
    with manual_links(1) as links:
        ends = links.new_ends(0)
        links.sockets.arrived(0, replace(ends.joined("0"), inspected=links.time() - 10.0))
        links.ask(links.acquire())
        assert [said[0] for said in ends.heard()] == [b"INFO", b"EVALSHA"]


@kills("tolerated evictions count", server_info.run_of, never("may_evict(info)"))
def test_evictions_that_are_tolerated_end_no_run() -> None:
    evicting = {"maxmemory": "1", "maxmemory_policy": "allkeys-lru"}
    run_ids = {run_of({"run_id": "ab", "evicted_keys": number, **evicting}) for number in "03"}
    assert run_ids == {"ab"}


def _stepped(links: ManualLinks, *indexes: int) -> Exchange:
    exchange = links.ask(links.acquire())
    linked = [master for master in links.masters if master.link is not None]
    for master in linked:
        links.reply(master.index, exchange.number, ahead=30.0 * (master.index in indexes))
    for ends in links.ends:
        ends.heard()
    for master in linked:
        if master.checking:
            links.trusted(master.index, ahead=30.0 * (master.index in indexes))
    return exchange


@kills("clocks may step", StepWatch.note, never("apart > self.deployment.max_clock_skew"))
@kills("the step is not marked", StepWatch.decide, without("self.check(...)"))
@kills("a stepped master still votes", Replies._handle_vote,
       instead("master.doubt(read) if command.trusted else ''", "''"))  # fmt: skip
def test_a_clock_that_steps_is_marked_on_its_master() -> None:
    with manual_links(3) as links, patch.object(clock_steps.logger, "error") as logged:
        exchange = _stepped(links, 0)
        logged.assert_called_once()
        _, *words = logged.call_args.args
        assert words == [links.masters[0].address.name, "its clock stepped by 30.0 s"]
        assert ballot(exchange, 0) is Ballot.FAILED
        assert [said[-1] for said in links.ends[0].heard()] == [b"distrust"]
        assert links.steps.voided == float("-inf")


@kills("our own step is the masters'", StepWatch.decide, never("len(stepped) >= quorum(...)"))
def test_a_majority_that_steps_at_once_is_our_own_clock() -> None:
    with manual_links(3) as links, patch.object(clock_steps.logger, "error") as logged:
        _stepped(links, 0, 1)
        logged.assert_called_once()
        text, _ = logged.call_args.args
        assert text.startswith("the clock of this process stepped relative to a majority")
        assert links.steps.voided > 0, "leases begun before are void"
        assert [ends.names() for ends in links.ends] == [[], [], []], "no master is marked"
        assert "our own clock" in links.masters[0].fault(links.time())


@kills("a master that was away has stepped, not we", StepWatch._blame_ourselves,
       never("master.link is None"))  # fmt: skip
def test_a_master_that_was_away_when_our_clock_stepped_is_counted_again() -> None:
    with manual_links(3) as links:
        links.cut(links.masters[2], "lost")
        _stepped(links, 0, 1)
        ends = links.join(2, ahead=30.0)
        links.sockets.flush()
        assert links.masters[2].fault(links.time()) == ""
        assert ends.names() == [], "it is not marked"


@kills("votes after a step count", Replies._handle_vote, never("command.trusted"))
def test_a_command_sent_before_a_step_was_noticed_has_no_vote() -> None:
    """Another thread's round is answered after the reply that shows the step."""
    with manual_links(3) as links:
        first, second = links.ask(links.acquire()), links.ask(links.acquire("b" * 32))
        links.reply(0, first.number, ahead=30.0)
        links.reply(0, second.number, ahead=30.0)
        assert ballot(second, 0) is Ballot.FAILED


@kills("a release after a step is unknown", Replies._handle_vote, always("command.trusted"))
def test_a_release_is_counted_although_its_reply_shows_a_step() -> None:
    with manual_links(3) as links:
        exchange = links.ask(links.release())
        for index in (0, 1):
            links.reply(index, exchange.number, ahead=30.0 * index, fences=0)
        assert exchange.tally.verdict is Verdict.WON


@kills("a mark is forgotten", StepWatch.must_mark, returns("False"))
def test_a_step_is_marked_although_another_master_steps_and_the_link_breaks() -> None:
    with manual_links(3) as links:
        _stepped(links, 0)
        assert [said[-1] for said in links.ends[0].heard()] == [b"distrust"]
        exchange = links.ask(links.acquire("b" * 32), 1, 2)
        links.reply(1, exchange.number, ahead=30.0)
        links.cut(links.masters[0], "lost")
        ends = links.join(0, ahead=30.0)
        links.sockets.flush()
        assert [said[-1] for said in ends.heard()] == [b"distrust"]


@kills("a master that must be marked is settled", StepWatch.checked,
       always("master.check_mode == 'join'"))  # fmt: skip
def test_a_step_that_a_check_shows_is_marked_although_no_other_master_answers() -> None:
    """It is decided at once, before the check is settled: commands under way have no votes."""
    with manual_links(3) as links:
        for index in (1, 2):
            links.cut(links.masters[index], "lost")
        links.sender.check_all()
        links.sockets.flush()
        links.masters[0].late = "late"
        links.trusted(0, ahead=30.0)
        assert links.ends[0].heard()[-1][-1] == b"distrust"
        assert "stepped" in links.masters[0].doubt(links.time())


@kills("a check replaces a mark", Sender.check, never("mode == 'join' and ..."))
def test_a_mark_is_settled_although_another_master_steps_meanwhile() -> None:
    with manual_links(3) as links:
        _stepped(links, 0)
        assert [said[-1] for said in links.ends[0].heard()] == [b"distrust"]
        exchange = links.ask(links.acquire("b" * 32), 1, 2)
        links.reply(1, exchange.number, ahead=30.0)
        links.trusted(0, Status.MARKED, ahead=30.0)
        assert links.masters[0].doubt(links.time()) == ""
        assert "stepped" in links.masters[1].doubt(links.time())


@kills("a check that failed is not made again", Replies._handle_error, never("command is None"))
def test_a_step_is_marked_although_the_master_refuses_the_mark_at_first() -> None:
    with manual_links(3) as links:
        _stepped(links, 0)
        links.say(0, b"-OOM command not allowed when used memory > 'maxmemory'.\r\n")
        assert links.masters[0].fault(links.time()).startswith("answered OOM")
        ends = links.join(0, ahead=30.0)
        links.sockets.flush()
        assert [said[-1] for said in ends.heard()] == [b"distrust"]


def _marked_while_a_check_is_owed(links: ManualLinks) -> None:
    """Make master 0 late, then let its clock step: it owes an earlier check, and the mark."""
    exchange = links.ask(links.acquire())
    links.sender.check_all()
    links.sockets.flush()
    for index in (1, 2):
        links.reply(index, exchange.number)
        links.trusted(index)
    age(links, 10.0)
    poll(links, 2 * TIMEOUT)
    assert links.masters[0].late
    links.reply(0, exchange.number, ahead=30.0)
    for index in (1, 2):
        links.trusted(index)
    checks = [said for said in links.ends[0].heard() if NAMES[said[1]] == "join"]
    assert [said[-1] for said in checks] == [b"join", b"distrust"]


@kills("any answer settles a mark", Replies._handle_check, always("owed.mode == master.check_mode"))
def test_an_answer_to_an_older_check_does_not_settle_the_mark() -> None:
    """The link is lost before the master has run the mark, so the next link brings it."""
    with manual_links(3) as links:
        _marked_while_a_check_is_owed(links)
        links.trusted(0, ahead=30.0)
        assert "stepped" in links.masters[0].doubt(links.time())
        links.cut(links.masters[0], "lost")
        ends = links.join(0, ahead=30.0)
        links.sockets.flush()
        assert [said[-1] for said in ends.heard()] == [b"distrust"]
        exchange = links.ask(links.acquire("b" * 32))
        assert "stepped" in str(exchange.tally.votes[0])
        links.trusted(0, Status.MARKED, ahead=30.0)
        assert links.masters[0].doubt(links.time()) == "", "from here on its ready-at decides"
        links.cut(links.masters[0], "lost")
        assert links.join(0, ahead=30.0).names() == [], "a mark that was answered is not repeated"


@kills("a mark is sent again as a check", Replies._retry, instead("owed.mode", "'join'", nth=1))
def test_a_mark_whose_script_was_flushed_is_sent_again_as_a_mark() -> None:
    with manual_links(3) as links:
        _marked_while_a_check_is_owed(links)
        for mode in (b"join", b"distrust"):
            assert _no_script(links, 0)[-1] == mode
        links.trusted(0, ahead=30.0)
        assert "stepped" in links.masters[0].doubt(links.time())
        links.trusted(0, Status.MARKED, ahead=30.0)
        assert links.masters[0].doubt(links.time()) == ""


@kills("a lost link holds up a decision", LinkChanges.finish_losing,
       without("self._steps.decide()"))  # fmt: skip
def test_a_step_is_marked_although_the_last_master_to_be_checked_is_lost() -> None:
    with manual_links(3) as links:
        exchange = links.ask(links.acquire())
        links.reply(0, exchange.number, ahead=30.0)
        links.reply(1, exchange.number)
        links.ends[0].heard()
        links.trusted(0, ahead=30.0)
        links.trusted(1)
        assert links.ends[0].names() == [], "the answer of master 2 is awaited"
        links.cut(links.masters[2], "lost")
        links.sockets.flush()
        assert [said[-1] for said in links.ends[0].heard()] == [b"distrust"]


@kills("a steady range that is wide on both sides", StepWatch._keep,
       instead("master.steady = ...",
               "master.steady = (low - little, high + little, now + KNOWN_FOR)"))  # fmt: skip
@kills("a steady range that is wide below", StepWatch._keep,
       instead("master.steady = ...",
               "master.steady = (low - little, low + little, now + KNOWN_FOR)"))  # fmt: skip
@kills("a steady range that is wide above", StepWatch._keep,
       instead("master.steady = ...",
               "master.steady = (high - little, high + little, now + KNOWN_FOR)"))  # fmt: skip
def test_a_step_is_noticed_soon_after_replies_that_narrow_the_bounds() -> None:
    """They narrow one bound only, and come while the last bounds are still fresh."""
    for step in (0.8, -0.8):
        with manual_links(3) as links:
            took = 0.05
            for index in range(3):
                joined = links.new_ends(index).joined(f"5{index}")  # another server
                low, high = joined.trust.offset
                wide = (low, high + 0.6) if step > 0 else (low - 0.6, high)
                links.sockets.arrived(
                    index, replace(joined, trust=replace(joined.trust, offset=wide))
                )
            exchange = links.ask(links.acquire())
            links.time.now += took
            for index in range(3):  # answered at once, or just before the reply was read
                links.reply(index, exchange.number, ahead=-took if step > 0 else 0.0)
            assert exchange.tally.granted == 3
            exchange = links.ask(links.acquire("b" * 32))
            links.reply(0, exchange.number, ahead=step)
            assert "stepped by" in links.masters[0].doubt(links.time())


@kills("voided by the clock that went back", StepWatch._blame_ourselves,
       instead("max(...)", "now"))  # fmt: skip
def test_a_clock_that_goes_back_voids_earlier_leases() -> None:
    with manual_links(3) as links:
        lease = replace(Masters(3).taken(), started=links.time())
        exchange = links.ask(links.acquire("b" * 32))
        links.grant(exchange)
        assert lease.started > links.steps.voided
        links.steps.clock = lambda: links.time() - 30.0
        _stepped(links, 0, 1)
        assert lease.started <= links.steps.voided
        assert "our own clock" in links.masters[0].fault(links.time() + 4.0), (
            "the clock has not caught up yet"
        )


@kills("a clock that goes back within a round is not noticed", StepWatch.note, never("high < low"))
def test_a_clock_that_goes_back_within_a_round_voids_its_lease() -> None:
    with manual_links(3) as links:
        lease = replace(Masters(3).taken(), started=links.time())
        exchange = links.ask(links.acquire())
        back = links.replies._clock = links.steps.clock = lambda: links.time() - 30.0
        with patch("redlock_django.wire.drivers.sockets.clock", back):
            links.grant(exchange)
            for index in range(3):
                links.trusted(index)
        assert lease.started <= links.steps.voided


def test_a_clock_that_goes_back_between_replies_voids_the_leases_before() -> None:
    with manual_links(3) as links:
        for master in links.masters:
            links.steps.note(master, WALL - NOW, WALL - NOW)  # known exactly
        early = links.ask(links.acquire())
        links.grant(early, 0, 1)
        links.time.now += 0.01
        lease = replace(Masters(3).taken(), started=links.time())
        links.masters[2].late = "late"
        won = links.ask(links.acquire("b" * 32))
        links.time.now += 0.001
        granted = links.time.wall
        for index, exchange in enumerate((won, won, early)):
            links.ends[index].say(resp(packed([exchange.number, Status.GRANTED, granted, 7])))
        connection = links.connection(2)
        receive = connection.recv

        def step_back(size: int) -> bytes:
            links.time.now -= 10.0
            return receive(size)

        connection.recv = step_back
        links.read(*links.masters)
        assert won.tally.verdict is Verdict.WON
        links.steps._blame_ourselves(links.masters)  # as once the masters have confirmed the step
        assert lease.started <= links.steps.voided


@kills("drift is a step", StepWatch.note, instead("0.01 * abs(...)", "0.0"))
def test_a_clock_that_runs_a_little_fast_has_not_stepped() -> None:
    with manual_links(1) as links:
        master = links.masters[0]
        assert master.offset is not None
        low, high, at = master.offset
        master.offset = low, high, at - 3600.0
        exchange = links.ask(links.acquire())
        links.reply(0, exchange.number, ahead=20.0)
        assert exchange.tally.verdict is Verdict.WON


@kills("a child sends for its parent", Sockets.abandon,
       instead("self.closed.set()", "self.flush()"))  # fmt: skip
def test_a_child_sends_nothing_that_its_parent_had_queued() -> None:
    with manual_links(1) as links:
        tally = Tally(1)
        links.begin(Exchange(Round((links.release(),), tally), lambda: None))
        links.sockets.abandon()
        assert links.ends[0].heard() == []
        assert links.masters[0].link is None


SAFE = {"redis_version": "7.0.15", "run_id": "12ab", "role": "master"}
UNSAFE: tuple[dict[str, str], ...] = (
    {"redis_version": "4.0.1"}, {"redis_version": "?"}, {"run_id": ""}, {"role": "slave"},
    {"cluster_enabled": "1"}, {"loading": "1"},
    {"maxmemory": "1000", "maxmemory_policy": "allkeys-lru"},
)  # fmt: skip


@kills("replicas vote", server_info.faults, never("info.get('role', 'master') != ..."))
@kills("evicting servers vote", server_info.faults, never("may_evict(info)"))
@kills("cluster nodes vote", server_info.faults, never("info.get('cluster_enabled', ...) == ..."))
def test_an_unsafe_server_is_not_counted() -> None:
    assert check(SAFE, frozenset()) == ()
    for fault in UNSAFE:
        with pytest.raises(Unfit):
            check({**SAFE, **fault}, frozenset())

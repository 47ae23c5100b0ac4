"""Clocks that step: a master's, or our own, and the marks on masters whose clock has stepped."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import pytest

from redlock_django.engine.protocol.statuses import Status
from redlock_django.engine.protocol.votes import Ballot
from redlock_django.engine.quorum import Verdict
from redlock_django.wire.links import clock_steps
from redlock_django.wire.links.clock_steps import StepWatch
from redlock_django.wire.links.link import Exchange
from redlock_django.wire.links.link_changes import LinkChanges
from redlock_django.wire.links.replies import Replies
from redlock_django.wire.links.sender import Sender
from tests.engine.masters import Masters
from tests.engine.mutants import kills
from tests.engine.mutation import Mutation, always, instead, never, returns, without
from tests.replies import packed
from tests.wire.manual_links import NOW, TIMEOUT, WALL, ManualLinks, ballot
from tests.wire.scripted import NAMES, resp


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
def test_a_clock_that_steps_is_marked_on_its_master(links: ManualLinks) -> None:
    with patch.object(clock_steps.logger, "error") as logged:
        exchange = _stepped(links, 0)
        logged.assert_called_once()
        _, *words = logged.call_args.args
        assert words == [links.masters[0].address.name, "its clock stepped by 30.0 s"]
        assert ballot(exchange, 0) is Ballot.FAILED
        assert [said[-1] for said in links.ends[0].heard()] == [b"distrust"]
        assert links.steps.voided == float("-inf")


@kills("our own step is the masters'", StepWatch.decide, never("len(stepped) >= quorum(...)"))
def test_a_majority_that_steps_at_once_is_our_own_clock(links: ManualLinks) -> None:
    with patch.object(clock_steps.logger, "error") as logged:
        _stepped(links, 0, 1)
        logged.assert_called_once()
        text, _ = logged.call_args.args
        assert text.startswith("the clock of this process stepped relative to a majority")
        assert links.steps.voided > 0, "leases begun before are void"
        assert [ends.names() for ends in links.ends] == [[], [], []], "no master is marked"
        assert "our own clock" in links.masters[0].fault(links.time())


@kills("a master that was away has stepped, not we", StepWatch._blame_ourselves,
       never("master.link is None"))  # fmt: skip
def test_a_master_that_was_away_when_our_clock_stepped_is_counted_again(links: ManualLinks) -> None:
    links.cut(links.masters[2], "lost")
    _stepped(links, 0, 1)
    ends = links.join(2, ahead=30.0)
    links.sockets.flush()
    assert links.masters[2].fault(links.time()) == ""
    assert ends.names() == [], "it is not marked"


@kills("votes after a step count", Replies._handle_vote, never("command.trusted"))
def test_a_command_sent_before_a_step_was_noticed_has_no_vote(links: ManualLinks) -> None:
    """Another thread's round is answered after the reply that shows the step."""
    first, second = links.ask(links.acquire()), links.ask(links.acquire("b" * 32))
    links.reply(0, first.number, ahead=30.0)
    links.reply(0, second.number, ahead=30.0)
    assert ballot(second, 0) is Ballot.FAILED


@kills("a release after a step is unknown", Replies._handle_vote, always("command.trusted"))
def test_a_release_is_counted_although_its_reply_shows_a_step(links: ManualLinks) -> None:
    exchange = links.ask(links.release())
    for index in (0, 1):
        links.reply(index, exchange.number, ahead=30.0 * index, fences=0)
    assert exchange.tally.verdict is Verdict.WON


@kills("a mark is forgotten", StepWatch.must_mark, returns("False"))
def test_a_step_is_marked_although_another_master_steps_and_the_link_breaks(
    links: ManualLinks,
) -> None:
    _stepped(links, 0)
    assert [said[-1] for said in links.ends[0].heard()] == [b"distrust"]
    links.grant(links.ask(links.acquire("b" * 32), 1, 2), 1, ahead=30.0)
    links.cut(links.masters[0], "lost")
    ends = links.join(0, ahead=30.0)
    links.sockets.flush()
    assert [said[-1] for said in ends.heard()] == [b"distrust"]


@kills("a master that must be marked is settled", StepWatch.checked,
       always("master.check_mode == 'join'"))  # fmt: skip
def test_a_step_that_a_check_shows_is_marked_although_no_other_master_answers(
    links: ManualLinks,
) -> None:
    """It is decided at once, before the check is settled: commands under way have no votes."""
    for index in (1, 2):
        links.cut(links.masters[index], "lost")
    links.sender.check_all()
    links.sockets.flush()
    links.masters[0].late = "late"
    links.trusted(0, ahead=30.0)
    assert links.ends[0].heard()[-1][-1] == b"distrust"
    assert "stepped" in links.masters[0].doubt(links.time())


@kills("a check replaces a mark", Sender.check, never("mode == 'join' and ..."))
def test_a_mark_is_settled_although_another_master_steps_meanwhile(links: ManualLinks) -> None:
    _stepped(links, 0)
    assert [said[-1] for said in links.ends[0].heard()] == [b"distrust"]
    links.grant(links.ask(links.acquire("b" * 32), 1, 2), 1, ahead=30.0)
    links.trusted(0, Status.MARKED, ahead=30.0)
    assert links.masters[0].doubt(links.time()) == ""
    assert "stepped" in links.masters[1].doubt(links.time())


@kills("a check that failed is not made again", Replies._handle_error, never("command is None"))
def test_a_step_is_marked_although_the_master_refuses_the_mark_at_first(links: ManualLinks) -> None:
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
    links.poll(2 * TIMEOUT, age=10.0)
    assert links.masters[0].late
    links.reply(0, exchange.number, ahead=30.0)
    for index in (1, 2):
        links.trusted(index)
    checks = [said for said in links.ends[0].heard() if NAMES[said[1]] == "join"]
    assert [said[-1] for said in checks] == [b"join", b"distrust"]


@kills("any answer settles a mark", Replies._handle_check, always("owed.mode == master.check_mode"))
def test_an_answer_to_an_older_check_does_not_settle_the_mark(links: ManualLinks) -> None:
    """The link is lost before the master has run the mark, so the next link brings it."""
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
def test_a_mark_whose_script_was_flushed_is_sent_again_as_a_mark(links: ManualLinks) -> None:
    _marked_while_a_check_is_owed(links)
    for mode in (b"join", b"distrust"):
        assert links.no_script(0)[-1] == mode
    links.trusted(0, ahead=30.0)
    assert "stepped" in links.masters[0].doubt(links.time())
    links.trusted(0, Status.MARKED, ahead=30.0)
    assert links.masters[0].doubt(links.time()) == ""


@kills("a lost link holds up a decision", LinkChanges.finish_losing,
       without("self._steps.decide()"))  # fmt: skip
def test_a_step_is_marked_although_the_last_master_to_be_checked_is_lost(
    links: ManualLinks,
) -> None:
    exchange = links.grant(links.ask(links.acquire()), 0, ahead=30.0)
    links.reply(1, exchange.number)
    links.ends[0].heard()
    links.trusted(0, ahead=30.0)
    links.trusted(1)
    assert links.ends[0].names() == [], "the answer of master 2 is awaited"
    links.cut(links.masters[2], "lost")
    links.sockets.flush()
    assert [said[-1] for said in links.ends[0].heard()] == [b"distrust"]


def _known(bounds: str) -> Mutation:
    """Return a mutation by which these bounds of the steady range are known."""
    return instead("master.steady = ...", f"master.steady = ({bounds}, now + KNOWN_FOR)")


@kills("a steady range that is wide on both sides", StepWatch._keep,
       _known("low - little, high + little"), 0.8)  # fmt: skip
@kills("a steady range that is wide below", StepWatch._keep,
       _known("low - little, low + little"), 0.8)  # fmt: skip
@kills("a steady range that is wide above", StepWatch._keep,
       _known("high - little, high + little"), -0.8)  # fmt: skip
@pytest.mark.parametrize("step", [0.8, -0.8])
def test_a_step_is_noticed_soon_after_replies_that_narrow_the_bounds(
    step: float, links: ManualLinks
) -> None:
    """They narrow one bound only, and come while the last bounds are still fresh."""
    took = 0.05
    for index in range(3):
        joined = links.new_ends(index).joined(f"5{index}")  # another server
        low, high = joined.trust.offset
        wide = (low, high + 0.6) if step > 0 else (low - 0.6, high)
        links.sockets.arrived(index, replace(joined, trust=replace(joined.trust, offset=wide)))
    exchange = links.ask(links.acquire())
    links.time.now += took
    for index in range(3):  # answered at once, or just before the reply was read
        links.reply(index, exchange.number, ahead=-took if step > 0 else 0.0)
    assert exchange.tally.granted == 3
    exchange = links.grant(links.ask(links.acquire("b" * 32)), 0, ahead=step)
    assert "stepped by" in links.masters[0].doubt(links.time())


@kills("voided by the clock that went back", StepWatch._blame_ourselves,
       instead("max(...)", "now"))  # fmt: skip
def test_a_clock_that_goes_back_voids_earlier_leases(links: ManualLinks) -> None:
    lease = replace(Masters(3).taken(), started=links.time())
    links.grant(links.ask(links.acquire("b" * 32)))
    assert lease.started > links.steps.voided
    links.steps.clock = lambda: links.time() - 30.0
    _stepped(links, 0, 1)
    assert lease.started <= links.steps.voided
    assert "our own clock" in links.masters[0].fault(links.time() + 4.0), (
        "the clock has not caught up yet"
    )


@kills("a clock that goes back within a round is not noticed", StepWatch.note, never("high < low"))
def test_a_clock_that_goes_back_within_a_round_voids_its_lease(links: ManualLinks) -> None:
    lease = replace(Masters(3).taken(), started=links.time())
    exchange = links.ask(links.acquire())
    back = links.replies._clock = links.steps.clock = lambda: links.time() - 30.0
    with patch("redlock_django.wire.drivers.sockets.clock", back):
        links.grant(exchange)
        for index in range(3):
            links.trusted(index)
    assert lease.started <= links.steps.voided


def test_a_clock_that_goes_back_between_replies_voids_the_leases_before(links: ManualLinks) -> None:
    for master in links.masters:
        links.steps.note(master, WALL - NOW, WALL - NOW)  # known exactly
    early = links.grant(links.ask(links.acquire()), 0, 1)
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
def test_a_clock_that_runs_a_little_fast_has_not_stepped(single: ManualLinks) -> None:
    master = single.masters[0]
    assert master.offset is not None
    low, high, at = master.offset
    master.offset = low, high, at - 3600.0
    exchange = single.grant(single.ask(single.acquire()), 0, ahead=20.0)
    assert exchange.tally.verdict is Verdict.WON


@kills("a decision waits for a late master", StepWatch.decide, always("not m.late"))
def test_a_late_master_does_not_hold_up_a_decision(links: ManualLinks) -> None:
    """One master's step is marked although another one does not answer its check."""
    exchange = links.grant(links.ask(links.acquire()), 0, ahead=30.0)
    links.reply(1, exchange.number)
    links.trusted(1)
    links.ends[0].heard()
    links.poll(2 * TIMEOUT, age=10.0)
    links.sockets.flush()
    assert links.masters[2].late
    assert [said[-1] for said in links.ends[0].heard()] == [b"distrust"]


@kills("another server has the same clock", LinkChanges.joined, without("master.forget_clock()"))
def test_an_arriving_link_to_another_server_has_a_clock_of_its_own(links: ManualLinks) -> None:
    links.cut(links.masters[0], "lost")
    links.join(0, run_id="another server", ahead=30.0)
    assert links.masters[0].fault(links.time()) == ""

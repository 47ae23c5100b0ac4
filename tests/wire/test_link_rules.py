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
from redlock_django.engine.protocol.votes import Ballot
from redlock_django.engine.quorum import Tally, Verdict
from redlock_django.engine.steps import Round
from redlock_django.wire.drivers.dialing import Pace
from redlock_django.wire.drivers.loop import LoopDriver
from redlock_django.wire.drivers.sockets import Sockets
from redlock_django.wire.drivers.threads import ThreadDriver
from redlock_django.wire.links.late_masters import LONGEST
from redlock_django.wire.links.link import Exchange
from redlock_django.wire.links.link_changes import LinkChanges
from redlock_django.wire.links.links import Links
from redlock_django.wire.links.master import IDLE, Master, find_twins
from redlock_django.wire.links.replies import Replies
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
    TIMEOUT,
    TOKEN,
    Ends,
    ManualLinks,
    Time,
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
def test_an_unexpected_reply_drops_the_link(single: ManualLinks) -> None:
    exchange = single.grant(single.ask(single.acquire()), 0)
    single.reply(0, exchange.number + 1)
    assert single.masters[0].link is None


@kills("a master without a thread stays lost", Links._look, without("self.changes.retry()"))
def test_a_master_that_no_thread_connects_to_is_dialled_by_the_next_round(
    single: ManualLinks,
) -> None:
    dialled: list[tuple[str, float]] = []

    def dial(sockets: Sockets, master: Master, reason: str, delay: float) -> None:
        dialled.append((reason, delay))
        master.undialed = None

    failing = patch.object(threading.Thread, "start", side_effect=RuntimeError("no more threads"))
    with failing, patch.object(Sockets, "_dial", DIAL):
        single.cut(single.masters[0], "lost")
    with patch.object(Sockets, "_dial", dial):
        exchange = single.ask(single.acquire())
    assert "no more threads" in str(exchange.tally.votes[0])
    assert dialled == [("lost", 0.0)]


@kills("a release overtakes", Links.begin, instead("link.out += data", "link.out[:0] = data"))
def test_a_release_is_sent_after_its_acquire(single: ManualLinks) -> None:
    tallies = Tally(1), Tally(1)
    for command, tally in zip((single.acquire(), single.release()), tallies, strict=True):
        single.begin(Exchange(Round((command,), tally), lambda: None))
    single.sockets.flush()
    assert single.ends[0].names() == ["acquire", "release"]


@kills("0 is a time", Replies._count_plain, always("time", nth=1))
@kills("a failed release without a clock is a step", Replies._handle_vote,
       always("reply.time != 0"))  # fmt: skip
def test_a_release_without_the_time_is_no_clock_step(single: ManualLinks) -> None:
    """Its script does not read the master's clock, and answers 0 in its place."""
    single.reply(0, single.ask(single.acquire()).number)
    for more in ([], [1]):  # granted; absent, with the index
        status = Status.ABSENT if more else Status.GRANTED
        number = single.ask(single.release()).number
        single.say(0, resp(packed([number, status, 0, *more])))
    assert single.masters[0].suspect == ""
    assert single.masters[0].fault(single.time()) == ""


@kills("a kept release does not bury", Master.keep_release,
       instead("replace(release, bury=True)", "release"))  # fmt: skip
@kills("a release with no link is lost", Links._fit, without(Master.keep_release))
def test_a_release_for_a_lost_link_is_sent_first_and_buries(single: ManualLinks) -> None:
    single.cut(single.masters[0], "lost")
    single.ask(single.release())
    ends = single.join(0)
    single.ask(single.acquire("b" * 32))
    said = ends.heard()
    assert [NAMES[one[1]] for one in said] == ["release", "acquire"]
    assert tombstone(said[0])


@kills("an interrupted loss stays unfinished", LinkChanges.retry,
       without(LinkChanges.finish_losing))  # fmt: skip
def test_a_link_whose_loss_was_interrupted_is_lost_by_the_next_round(single: ManualLinks) -> None:
    interrupted = patch.object(Master, "fail_owed", side_effect=KeyboardInterrupt)
    exchange = single.ask(single.acquire())
    with interrupted, pytest.raises(KeyboardInterrupt):
        single.cut(single.masters[0], "lost")
    single.ask(single.acquire("b" * 32))
    assert exchange.decided
    assert single.masters[0].link is None


@kills("an unanswered release is lost", Master.fail_owed, without(Master.keep_release, nth=1))
def test_a_release_that_was_not_answered_is_sent_again(single: ManualLinks) -> None:
    single.ask(single.release())
    single.cut(single.masters[0], "lost")
    ends = single.join(0)
    single.sockets.flush()
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
def test_a_grant_after_the_refusal_is_released(links: ManualLinks) -> None:
    links.reply(2, _refused(links).number)
    assert [ends.names() for ends in links.ends] == [["acquire"]] * 2 + [["acquire", "release"]]


@kills("a grant of a doubtful master stays", Replies._handle_vote,
       without("self._sender.undo_late(...)"), False)  # fmt: skip
@pytest.mark.parametrize("is_late", [True, False], ids=["late", "doubtful"])
def test_a_grant_of_a_late_or_doubtful_master_is_released(
    is_late: bool, links: ManualLinks
) -> None:
    exchange = _refused(links)
    if is_late:
        links.poll(LONGEST * TIMEOUT, age=10.0)
    else:
        links.masters[2].usable = False
    links.reply(2, exchange.number)
    assert links.ends[2].names() == ["acquire", "release"]


@kills("a grant on a lost link stays", Master.fail_owed, without(Master.keep_release, nth=2))
def test_a_link_that_is_lost_after_the_refusal_brings_the_release_later(links: ManualLinks) -> None:
    _refused(links)
    links.cut(links.masters[2], "lost")
    said = links.join(2)
    links.sockets.flush()
    assert [tombstone(command) for command in said.heard()] == [True]


@kills("closed links leave a grant", Links.finish, without("self.sender.undo_late(...)"))
def test_links_that_close_after_the_refusal_send_the_release(links: ManualLinks) -> None:
    _refused(links)
    links.ends[2].heard()
    links.ends[2]._ours.settimeout(1)
    with patch("redlock_django.wire.drivers.sockets.clock", side_effect=[0.0, 100.0]):
        links.sockets.shut()
    assert links.ends[2].names() == ["release"]


@kills("a refused release is forgotten", Replies._handle_error, without(Master.refuse_release))
@kills("a repeated release never ends", Replies._handle_vote,
       without("master.refused_releases.pop(...)"))  # fmt: skip
def test_a_release_that_a_master_refused_is_sent_again(single: ManualLinks) -> None:
    single.ask(single.release())
    single.say(0, b"-MISCONF Errors writing to the AOF file\r\n")
    single.ends[0].heard()
    single.changes.retry()
    single.sockets.flush()
    assert single.ends[0].names() == ["release"]
    single.reply(0, 0, fences=0)
    single.time.now += 1.0
    assert single.changes.retry()


@kills("a refused release is repeated for ever", Master.due_releases, never("until < now"))
def test_a_release_that_a_master_refuses_for_ever_is_given_up(single: ManualLinks) -> None:
    single.ask(single.release())
    single.say(0, b"-MISCONF Errors writing to the AOF file\r\n")
    single.time.now += single.deployment.max_ttl + 1.0
    assert single.changes.retry()


@kills("a token on a lost link is forgotten", Master.fail_owed, without(Master.remember_unanswered))
def test_a_release_after_an_acquire_that_may_still_arrive_buries(single: ManualLinks) -> None:
    single.ask(single.acquire())
    single.cut(single.masters[0], "lost")
    ends = single.join(0)
    single.ask(single.release())
    said = ends.heard()
    assert [tombstone(one) for one in said] == [True]


@kills("every release buries", Links._fit,
       together(
           always("command.token in master.unanswered"),
           without("del master.unanswered[command.token]"),
       ), True)  # fmt: skip
@pytest.mark.parametrize("is_another_unanswered", [False, True])
def test_an_ordinary_release_leaves_no_tombstone(
    is_another_unanswered: bool, single: ManualLinks
) -> None:
    if is_another_unanswered:
        single.ask(single.acquire("b" * 32))
        single.cut(single.masters[0], "lost")
        single.join(0)
    single.grant(single.ask(single.acquire()))
    single.ask(single.release())
    assert not tombstone(single.ends[0].heard()[-1])


_LOADED = b"$40\r\n%b\r\n" % (b"0" * 40)  # the answer to SCRIPT LOAD


@kills("NOSCRIPT is a failure", Replies._handle_error, never("code == 'NOSCRIPT'"))
def test_a_script_that_was_flushed_is_sent_at_once(single: ManualLinks) -> None:
    exchange = single.ask(single.acquire())
    said = single.no_script(0)
    assert said[:2] == [b"EVAL", script("acquire", single.deployment)[0].encode()]
    single.ends[0].say(_LOADED)
    single.reply(0, exchange.number)
    assert exchange.tally.verdict is Verdict.WON


@kills("an undo by EVAL", Replies._retry, never("isinstance(command, Acquire)"))
def test_an_undo_is_known_to_a_master_that_learns_to_acquire(single: ManualLinks) -> None:
    """By EVAL, the undo of a call that was cancelled would arrive after the next acquire."""
    single.ask(single.acquire())
    single.ends[0].heard()
    single.say(0, b"-NOSCRIPT No matching script.\r\n")
    said = single.ends[0].heard()
    assert [verb for verb, *_ in said] == [b"SCRIPT", b"EVAL"]
    assert said[0] == [b"SCRIPT", b"LOAD", script("release", single.deployment)[0].encode()]


@kills("a decided round is sent again", Replies._retry, always("owed.undecided is not None"))
def test_a_decided_round_is_not_sent_again(links: ManualLinks) -> None:
    exchange = links.grant(links.ask(links.acquire()), 0, 1)
    assert exchange.decided
    assert links.no_script(2) == [
        b"SCRIPT",
        b"LOAD",
        script("acquire", links.deployment)[0].encode(),
    ]


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
def test_a_vote_is_stale_if_its_link_ends_after_a_pause(how: str, single: ManualLinks) -> None:
    idle, ends, stale = FAILING[how]
    single.link(0).heard -= idle
    exchange = single.ask(single.acquire())
    if ends:
        single.ends[0].close()
        single.read(single.masters[0])
    else:
        single.cut(single.masters[0], "did not answer", late=True)
    [vote] = exchange.tally.votes
    assert vote is not None
    assert (vote.ballot, vote.stale) == (Ballot.FAILED, stale)


@kills("all attempts at once", Pace.turn, without("self._next = ..."))
def test_attempts_to_connect_are_paced() -> None:
    pace = Pace()
    with patch("redlock_django.wire.drivers.dialing.clock", Time()):
        turns = [pace.turn() for _ in range(11)]
    assert turns[0] == 0.0
    assert 5 * Pace.SPACING < turns[-1] <= 15 * Pace.SPACING


@kills("one server, two votes", find_twins, never("other is not master"))
def test_one_server_under_two_names_has_no_vote(links: ManualLinks) -> None:
    links.join(2, run_id="1")
    exchange = links.grant(links.ask(links.acquire()), 0)
    assert exchange.tally.verdict is Verdict.LOST
    assert links.ends[1].names() == links.ends[2].names() == []


@kills("a lost link still has a name", LinkChanges.finish_losing,
       without("find_twins(self._masters)"))  # fmt: skip
def test_a_server_votes_again_once_it_has_one_name_left(links: ManualLinks) -> None:
    links.join(2, run_id="1")
    assert "same server" in links.masters[1].fault(links.time())
    links.cut(links.masters[0], "lost")
    assert "same server" in links.masters[1].fault(links.time())
    links.join(0)
    links.cut(links.masters[2], "lost")
    exchange = links.grant(links.ask(links.acquire()), 0, 1)
    assert exchange.tally.verdict is Verdict.WON


@kills("asked without a majority", Links._fit, never("exchange.decided and ..."))
def test_with_a_majority_down_no_master_is_asked(links: ManualLinks) -> None:
    for master in links.masters[:2]:
        links.cut(master, "lost")
    exchange = links.ask(links.acquire())
    assert exchange.tally.reasons() == ["lost", "lost", "not asked"]
    assert links.ends[2].names() == []


@kills("asked before it is trusted", Master.fault, never("now < self.trust.ready"), "acquire")
@kills("a master extends before it is trusted", Extend.early, returns("True"), "extend")
@pytest.mark.parametrize("name", ["acquire", "extend"])
def test_a_master_has_no_vote_before_it_is_trusted(name: str, single: ManualLinks) -> None:
    ends = single.join(0, ready=60.0)
    extend = Extend(single.deployment, ("r",), f"{TOKEN} {{}}", 10)
    exchange = single.ask(single.acquire() if name == "acquire" else extend)
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
def test_a_master_that_is_not_ready_is_asked_why(single: ManualLinks) -> None:
    exchange = single.ask(single.acquire())
    single.ends[0].heard()
    single.reply(0, exchange.number, -1)
    assert single.ends[0].names() == ["join"]


@kills("a mismatch is ignored", trust.read_trust, never("status == Status.MISMATCH"),
       Status.MISMATCH, ".*--reconfigure")  # fmt: skip
@pytest.mark.parametrize(
    ("status", "why"),
    [
        pytest.param(Status.MISMATCH, ".*--reconfigure", id="another marker"),
        pytest.param(Status.UNMARKED, "new: run 'manage.py redlock_init'", id="no marker"),
    ],
)
def test_a_master_without_the_marker_of_the_deployment_is_given_up(
    status: int, why: str, single: ManualLinks
) -> None:
    exchange = single.ask(single.acquire())
    single.reply(0, exchange.number, -1)
    single.trusted(0, status)
    assert single.masters[0].link is None
    assert re.match(why, single.masters[0].reason)


@kills("another deployment stops nothing", Links.conflict,
       instead("self.membership.conflict", "''"))  # fmt: skip
def test_a_master_of_another_deployment_stops_all_new_locks(links: ManualLinks) -> None:
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
def test_the_reason_of_a_wait_is_kept_while_the_marker_is_the_same(single: ManualLinks) -> None:
    """A master names it only in the reply that writes its marker, and may be asked again."""
    single.join(0, ready=60.0)
    master = single.masters[0]
    assert master.trust is not None
    again = master.trust
    single.changes.trust(master, replace(again, marker=b"new", doubt="restarted"))
    single.changes.trust(master, replace(again, marker=b"new"))
    assert master.fault(single.time()).startswith("restarted: trusted in")
    single.changes.trust(master, replace(again, marker=b"newer"))
    assert master.fault(single.time()).startswith("waits to be trusted"), "another marker"


@kills("a master that is not counted stays so", Links._fault_for,
       never("now - master.looked > LOOK_AGAIN"))  # fmt: skip
def test_a_master_that_was_declared_trusted_is_counted_soon(single: ManualLinks) -> None:
    ends = single.join(0, ready=60.0)
    single.ask(single.acquire())
    assert ends.names() == ["join"]
    single.ask(single.acquire("b" * 32))
    assert ends.names() == [], "not at every try"
    single.trusted(0)
    assert single.ask(single.acquire("c" * 32)).tally.outstanding == 1


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
def test_a_live_link_is_inspected_before_a_command(why: str, single: ManualLinks) -> None:
    single.masters[0].inspect_at = 0.0
    exchange = single.ask(single.acquire())
    assert [said[0] for said in single.ends[0].heard()] == [b"INFO", b"EVALSHA"]
    single.ends[0].say(info_of(0, **REPORTED[why]))
    single.reply(0, exchange.number)
    assert exchange.tally.verdict is (Verdict.LOST if why else Verdict.WON)
    single.ask(single.release())
    assert b"INFO" not in [said[0] for said in single.ends[0].heard()]
    reason = single.masters[0].reason
    assert why in reason if why else reason == ""


@kills("a handshake hides what INFO is now", LinkChanges.joined,
       instead("result.inspected", "self._clock()"))  # fmt: skip
def test_what_was_reported_before_a_long_handshake_is_asked_again(single: ManualLinks) -> None:
    ends = single.new_ends(0)
    single.sockets.arrived(0, replace(ends.joined("0"), inspected=single.time() - 10.0))
    single.ask(single.acquire())
    assert [said[0] for said in ends.heard()] == [b"INFO", b"EVALSHA"]


@kills("tolerated evictions count", server_info.run_of, never("may_evict(info)"))
def test_evictions_that_are_tolerated_end_no_run() -> None:
    evicting = {"maxmemory": "1", "maxmemory_policy": "allkeys-lru"}
    run_ids = {run_of({"run_id": "ab", "evicted_keys": number, **evicting}) for number in "03"}
    assert run_ids == {"ab"}


@kills("a child sends for its parent", Sockets.abandon,
       instead("self.closed.set()", "self.flush()"))  # fmt: skip
def test_a_child_sends_nothing_that_its_parent_had_queued(single: ManualLinks) -> None:
    tally = Tally(1)
    single.begin(Exchange(Round((single.release(),), tally), lambda: None))
    single.sockets.abandon()
    assert single.ends[0].heard() == []
    assert single.masters[0].link is None


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

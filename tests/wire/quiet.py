"""Links in the hand of a test: no thread, no server; the test reads what is sent and answers.

Then directed schedules over them, each a story that one rule of the wire decides. Whoever calls
one is told by an AssertionError that the rule was broken.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

import hiredis

from redlock_django.engine.commands import Acquire, Command, Release, script
from redlock_django.engine.deployment import Deployment
from redlock_django.engine.quorum import Ballot, Tally, Verdict
from redlock_django.engine.rounds import Round
from redlock_django.engine.statuses import MISMATCH
from redlock_django.wire.address import Address
from redlock_django.wire.clock import clock
from redlock_django.wire.join import Joined, Trust, Unfit, check
from redlock_django.wire.link import Exchange
from redlock_django.wire.links import Links
from redlock_django.wire.master import Master
from tests.engine.masters import Masters
from tests.wire.scripted import MARKER, NAMES, resp

TIMEOUT = 0.25
TOKEN = "a" * 32


class Ends:
    """The far end of one link: what it hears, and what it says."""

    def __init__(self) -> None:
        self.theirs, self._ours = socket.socketpair()
        self._ours.setblocking(False)
        self._reader = hiredis.Reader()

    def heard(self) -> list[list[bytes]]:
        """Every command since the last look."""
        commands: list[list[bytes]] = []
        while True:
            try:
                data = self._ours.recv(1 << 16)
            except BlockingIOError:
                data = b""
            if not data:
                return commands
            self._reader.feed(data)
            while (command := self._reader.gets()) is not False:
                commands.append(command)

    def names(self) -> list[str]:
        """What those commands are."""
        return [NAMES.get(said[1], said[0].decode()) for said in self.heard()]

    def say(self, data: bytes) -> None:
        """Answer, asked or not."""
        self._ours.sendall(data)

    def close(self) -> None:
        """Both ends."""
        self._ours.close()
        self.theirs.close()


class QuietLinks(Links):
    """Links that nothing drives: they connect to nobody and wait for nothing."""

    def __init__(self, masters: int = 3) -> None:
        urls = [f"unix:///nowhere/{index}.sock" for index in range(masters)]
        addresses = [Address.from_url(url, None) for url in urls]
        deployment = Deployment(
            names=tuple(a.name for a in addresses), max_clock_skew=0.5, restart_delay=5
        )
        super().__init__(addresses, deployment, master_timeout=TIMEOUT, connect_timeout=1.0)
        self.ends: list[Ends] = []
        for index in range(masters):
            self.ends.append(Ends())
            self.join(index)

    def _watch(self, master: Master) -> None: ...

    def _unwatch(self, master: Master) -> None: ...

    def _changed(self) -> None: ...

    def _dial(self, master: Master, reason: str, delay: float) -> None:
        master.reason = reason

    def join(self, index: int, *, run_id: str = "", ready: float = 0.0, ahead: float = 0.0) -> Ends:
        """A master is reached (again)."""
        self.ends[index].close()
        self.ends[index] = ends = Ends()
        offset = time.time() + ahead - clock()
        bounds = (offset - 0.05, offset + 0.05)
        trust = Trust(MARKER, 0, clock() + ready, "waits to be trusted", bounds)
        self.arrived(index, Joined(ends.theirs, run_id or f"{index}", trust, (), True))
        return ends

    def ask(self, command: Command, *indexes: int) -> Exchange:
        """Put a round on its way, to some masters or to all."""
        where = indexes or range(len(self.masters))
        commands = tuple(command if m.index in where else None for m in self.masters)
        rivals = isinstance(command, Acquire)
        tally = Tally(len(self.masters), skew=self.deployment.skew, rivals=rivals)
        exchange = self.exchange(Round(commands, tally), lambda: None)
        self.begin(exchange)
        self.flush()
        return exchange

    def acquire(self, token: str = TOKEN) -> Acquire:
        """A command that takes a lock."""
        return Acquire(
            deployment=self.deployment, resources=("r",), value=f"{token} {{}}", ttl=10, proposal=1
        )

    def release(self, token: str = TOKEN) -> Release:
        """A command that frees it."""
        return Release(deployment=self.deployment, resources=("r",), value=f"{token} {{}}")

    def reply(self, index: int, number: int, status: int = 1, *, ahead: float = 0.0) -> None:
        """A master answers an acquire, by a clock that may be wrong."""
        now = int((time.time() + ahead) * 1e6)
        self.ends[index].say(resp([number, status, now, *[7] * (status == 1)]))
        self.read(self.masters[index])
        self.flush()

    def trusted(self, index: int, status: int = 1, *, ahead: float = 0.0) -> None:
        """A master answers a check of its trust."""
        now = int((time.time() + ahead) * 1e6)
        why = b"n=9,ttl=9,skew=9,delay=9" if status == MISMATCH else b""
        self.ends[index].say(resp([0, status, now, now, MARKER, why]))
        self.read(self.masters[index])
        self.flush()


@contextmanager
def quiet(masters: int = 3) -> Iterator[QuietLinks]:
    """Such links, and nothing left of them afterwards."""
    links = QuietLinks(masters)
    try:
        yield links
    finally:
        links.abandon()
        for ends in links.ends:
            ends.close()


def _tomb(said: list[bytes]) -> bytes:
    """What a release says about its tombstone (ms; 0 for none)."""
    keys = int(said[2])
    return said[5 + keys]


def a_reply_of_another_round_is_no_vote() -> None:
    with quiet(1) as links:
        exchange = links.ask(links.acquire())
        links.reply(0, exchange.number + 1)
        assert exchange.tally.verdict is Verdict.LOST
        assert links.masters[0].link is None


def a_reply_too_many_drops_the_link() -> None:
    with quiet(1) as links:
        exchange = links.ask(links.acquire())
        links.reply(0, exchange.number)
        links.reply(0, exchange.number + 1)
        assert links.masters[0].link is None


def a_late_reply_is_skipped_and_not_read_as_the_next_one() -> None:
    with quiet(1) as links:
        first, second = links.ask(links.acquire()), links.ask(links.acquire("b" * 32))
        first.abandon()
        links.reply(0, first.number)
        assert second.tally.outstanding == 1
        links.reply(0, second.number)
        assert second.tally.verdict is Verdict.WON


def a_release_leaves_behind_its_acquire() -> None:
    with quiet(1) as links:
        tallies = Tally(1), Tally(1)
        for command, tally in zip((links.acquire(), links.release()), tallies, strict=True):
            links.begin(links.exchange(Round((command,), tally), lambda: None))
        links.flush()
        assert links.ends[0].names() == ["acquire", "release"]


def a_release_for_a_lost_link_is_the_first_thing_said_and_buries() -> None:
    with quiet(1) as links:
        links.lose(links.masters[0], "lost")
        links.ask(links.release())
        ends = links.join(0)
        links.ask(links.acquire("b" * 32))
        said = ends.heard()
        assert [NAMES[one[1]] for one in said] == ["release", "acquire"]
        assert _tomb(said[0]) != b"0"


def a_release_that_was_not_answered_is_said_again() -> None:
    with quiet(1) as links:
        links.ask(links.release())
        links.lose(links.masters[0], "lost")
        ends = links.join(0)
        links.flush()
        assert ends.names() == ["release"]


def a_release_after_an_acquire_that_may_still_arrive_buries() -> None:
    with quiet(1) as links:
        links.ask(links.acquire())
        links.lose(links.masters[0], "lost")
        ends = links.join(0)
        links.ask(links.release())
        said = ends.heard()
        assert [_tomb(one) != b"0" for one in said] == [True]


def an_ordinary_release_leaves_no_tombstone() -> None:
    with quiet(1) as links:
        exchange = links.ask(links.acquire())
        links.reply(0, exchange.number)
        links.ask(links.release())
        assert _tomb(links.ends[0].heard()[-1]) == b"0"


def _no_script(links: QuietLinks, index: int) -> list[bytes]:
    links.ends[index].heard()
    links.ends[index].say(b"-NOSCRIPT No matching script.\r\n")
    links.read(links.masters[index])
    links.flush()
    said = links.ends[index].heard()
    assert len(said) == 1
    return said[0]


def a_script_that_was_flushed_is_sent_at_once() -> None:
    with quiet(1) as links:
        exchange = links.ask(links.acquire())
        said = _no_script(links, 0)
        assert said[:2] == [b"EVAL", script("acquire")[0].encode()]
        links.reply(0, exchange.number)
        assert exchange.tally.verdict is Verdict.WON


def a_decided_round_is_not_sent_again() -> None:
    with quiet(3) as links:
        exchange = links.ask(links.acquire())
        links.reply(0, exchange.number)
        links.reply(1, exchange.number)
        assert exchange.decided
        assert _no_script(links, 2)[0] == b"SCRIPT"


def _owes(links: QuietLinks) -> Exchange:
    exchange = links.ask(links.acquire())
    link = links.masters[0].link
    assert link is not None
    link.since -= 10  # long ago
    return exchange


def a_master_that_never_answers_loses_its_link() -> None:
    with quiet(1) as links:
        exchange = _owes(links)
        links.waited(links.masters, TIMEOUT, TIMEOUT)
        assert links.masters[0].link is None
        assert exchange.tally.verdict is Verdict.LOST


def what_lies_there_already_is_read_before_a_master_is_judged() -> None:
    with quiet(1) as links:
        exchange = _owes(links)
        links.ends[0].say(resp([exchange.number, 1, int(time.time() * 1e6), 7]))
        links.waited(links.masters, TIMEOUT, TIMEOUT)
        assert links.masters[0].link is not None
        assert exchange.tally.verdict is Verdict.WON


def a_stall_of_our_own_makes_no_master_late() -> None:
    with quiet(1) as links:
        _owes(links)
        links.waited(links.masters, TIMEOUT / 5, 10.0)
        assert links.masters[0].link is not None


def one_server_under_two_names_has_no_vote() -> None:
    with quiet(3) as links:
        links.join(2, run_id="1")
        exchange = links.ask(links.acquire())
        links.reply(0, exchange.number)
        assert exchange.tally.verdict is Verdict.LOST
        assert links.ends[1].names() == links.ends[2].names() == []


def with_a_majority_down_nobody_is_asked() -> None:
    with quiet(3) as links:
        for master in links.masters[:2]:
            links.lose(master, "lost")
        links.ask(links.acquire())
        assert links.ends[2].names() == []


def a_master_has_no_vote_before_it_is_trusted() -> None:
    with quiet(1) as links:
        ends = links.join(0, ready=60.0)
        exchange = links.ask(links.acquire())
        assert ends.names() == []
        assert exchange.tally.verdict is Verdict.LOST


def a_master_that_is_not_ready_is_asked_why() -> None:
    with quiet(1) as links:
        exchange = links.ask(links.acquire())
        links.ends[0].heard()
        links.reply(0, exchange.number, -1)
        assert links.ends[0].names() == ["join"]


def another_deployments_master_is_given_up() -> None:
    with quiet(1) as links:
        exchange = links.ask(links.acquire())
        links.reply(0, exchange.number, -1)
        links.trusted(0, MISMATCH)
        assert links.masters[0].link is None
        assert "--reconfigure" in links.masters[0].reason


def _stepped(links: QuietLinks, *indexes: int) -> Exchange:
    exchange = links.ask(links.acquire())
    for index in range(3):
        links.reply(index, exchange.number, ahead=30.0 * (index in indexes))
    for ends in links.ends:
        ends.heard()
    for index in range(3):
        if links.masters[index].checking:
            links.trusted(index, ahead=30.0 * (index in indexes))
    return exchange


def a_clock_that_steps_is_marked_on_its_master() -> None:
    with quiet(3) as links:
        exchange = _stepped(links, 0)
        assert exchange.tally.votes[0] is not None
        assert exchange.tally.votes[0].ballot is Ballot.FAILED
        assert [said[-1] for said in links.ends[0].heard()] == [b"distrust"]
        assert links.steps.voided == float("-inf")


def the_clocks_of_a_majority_do_not_step_at_once() -> None:
    with quiet(3) as links:
        _stepped(links, 0, 1)
        assert links.steps.voided > 0, "our own leases are what cannot be believed"
        assert [ends.names() for ends in links.ends] == [[], [], []], "no master is marked"
        assert "our own clock" in links.masters[0].fault(clock())


def what_was_asked_before_a_step_was_seen_has_no_vote() -> None:
    """Another thread's round is answered behind the reply that shows the step."""
    with quiet(3) as links:
        first, second = links.ask(links.acquire()), links.ask(links.acquire("b" * 32))
        links.reply(0, first.number, ahead=30.0)
        links.reply(0, second.number, ahead=30.0)
        vote = second.tally.votes[0]
        assert vote is not None
        assert vote.ballot is Ballot.FAILED


def a_step_is_marked_although_another_is_seen_and_the_link_breaks() -> None:
    with quiet(3) as links:
        _stepped(links, 0)
        assert [said[-1] for said in links.ends[0].heard()] == [b"distrust"]
        exchange = links.ask(links.acquire("b" * 32), 1, 2)
        links.reply(1, exchange.number, ahead=30.0)
        links.lose(links.masters[0], "lost")
        ends = links.join(0, ahead=30.0)
        links.flush()
        assert [said[-1] for said in ends.heard()] == [b"distrust"]


def a_step_is_marked_although_the_master_cannot_take_the_mark_now() -> None:
    with quiet(3) as links:
        _stepped(links, 0)
        links.ends[0].say(b"-OOM command not allowed when used memory > 'maxmemory'.\r\n")
        links.read(links.masters[0])
        assert links.masters[0].fault(clock()) == "answered OOM"
        ends = links.join(0, ahead=30.0)
        links.flush()
        assert [said[-1] for said in ends.heard()] == [b"distrust"]


def a_clock_that_goes_back_voids_what_was_begun_before() -> None:
    with quiet(3) as links:
        lease = replace(Masters(3).taken(), started=clock())
        exchange = links.ask(links.acquire("b" * 32))
        for index in range(3):
            links.reply(index, exchange.number)
        assert not links.steps.void(lease)
        links.steps.clock = lambda: clock() - 30.0
        _stepped(links, 0, 1)
        assert links.steps.void(lease)
        assert "our own clock" in links.masters[0].fault(clock() + 4.0), "it is not there again"


def a_clock_that_goes_back_under_a_round_voids_what_comes_of_it() -> None:
    with quiet(3) as links:
        lease = replace(Masters(3).taken(), started=clock())
        exchange = links.ask(links.acquire())
        links.steps.clock = lambda: clock() - 30.0
        with patch("redlock_django.wire.links.clock", links.steps.clock):
            for index in range(3):
                links.reply(index, exchange.number)
            for index in range(3):
                links.trusted(index)
        assert links.steps.void(lease)


def a_clock_that_runs_a_little_fast_has_not_stepped() -> None:
    with quiet(1) as links:
        master = links.masters[0]
        assert master.offset is not None
        low, high, at = master.offset
        master.offset = low, high, at - 3600.0
        exchange = links.ask(links.acquire())
        links.reply(0, exchange.number, ahead=20.0)
        assert exchange.tally.verdict is Verdict.WON


def a_child_says_nothing_of_what_its_parent_had_to_say() -> None:
    with quiet(1) as links:
        tally = Tally(1)
        links.begin(links.exchange(Round((links.release(),), tally), lambda: None))
        links.abandon()
        assert links.ends[0].heard() == []
        assert links.masters[0].link is None


def _unfit(**info: str) -> None:
    fit = {"redis_version": "7.0.15", "role": "master"}
    try:
        check({**fit, **info}, frozenset())
    except Unfit:
        return
    raise AssertionError(f"counted although {info}")


def a_server_that_is_no_safe_master_is_not_counted() -> None:
    assert check({"redis_version": "7.0.15", "role": "master"}, frozenset()) == ()
    _unfit(role="slave")
    _unfit(cluster_enabled="1")
    _unfit(loading="1")
    _unfit(maxmemory="1000", maxmemory_policy="allkeys-lru")

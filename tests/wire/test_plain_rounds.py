"""Plain replies: the same bytes, votes and owed replies as if every reply is parsed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from itertools import product
from random import Random
from typing import Any
from unittest.mock import patch

import pytest

from redlock_django.engine.protocol.commands import (
    Acquire,
    Command,
    Confirm,
    Extend,
    Heal,
    Release,
    Restore,
    Take,
)
from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.engine.quorum import Tally, Verdict
from redlock_django.engine.steps import Round
from redlock_django.wire.links.clock_steps import StepWatch
from redlock_django.wire.links.late_masters import LateWatch
from redlock_django.wire.links.link import Exchange, Kind
from redlock_django.wire.links.link_changes import LinkChanges
from redlock_django.wire.links.links import Links
from redlock_django.wire.links.master import INSPECTED, Master, find_twins
from redlock_django.wire.links.replies import Replies
from redlock_django.wire.links.resp import MOST, PLAIN, Templates, pack_command
from tests.engine.mutants import kills
from tests.engine.mutation import always, instead, never, without
from tests.replies import packed, refused
from tests.wire.manual_links import NOW, TOKEN, WALL, ManualLinks, Time, fences, manual_links
from tests.wire.scripted import push, resp

PUSH = push(b"message", b"a channel", b"a waiter")
"""After a push, replies are parsed."""


@contextmanager
def timed_links(masters: int = 3) -> Iterator[tuple[ManualLinks, Time]]:
    """Open links to masters whose clocks are known exactly."""
    with ExitStack() as stack:
        # The reason of a late vote names the load average, which changes between two runs.
        stack.enter_context(
            patch("redlock_django.wire.links.late_masters.load_average", lambda: (0.0, 1))
        )
        links = stack.enter_context(manual_links(masters))
        for master in links.masters:
            links.steps._keep(master, WALL - NOW, WALL - NOW, links.time.now)
        yield links, links.time


Said = list[object]


class Session:
    """A client that asks at random, and masters that answer at random."""

    def __init__(self, links: ManualLinks, time: Time, seed: int) -> None:
        self.links, self.time, self.rng = links, time, Random(seed)
        self.rounds: list[tuple[Any, list[int]]] = []
        self.trace: Said = []
        self.owed: list[list[bytes]] = [[] for _ in links.ends]

    def run(self, steps: int) -> Said:
        """Do so many things; return all that could be observed."""
        for _ in range(steps):
            self.time.now += self.rng.choice((0.0, 0.0001, 0.001, 0.02, 0.3))
            what = self.rng.choices((self.ask, self.answer, self.disturb), (3, 9, 0.4))[0]
            what()
            self.observe()
        return self.trace

    def ask(self) -> None:
        links, rng = self.links, self.rng
        token = f"{rng.getrandbits(128):032x}"
        command: Command = rng.choice((links.acquire(token), links.release(token)))
        if rng.random() < 0.2:
            command = replace(command, resources=("r", "s"))
        commands: list[Command | None] = [command] * len(links.masters)
        if rng.random() < 0.2:
            commands[rng.randrange(len(commands))] = None
        rivals = isinstance(command, Acquire)
        skew = links.deployment.skew if command.trusted else None
        tally = Tally(len(commands), skew=skew, rivals=rivals)
        woken: list[int] = []
        exchange = Exchange(Round(tuple(commands), tally), lambda: woken.append(1))
        links.begin(exchange)
        links.sockets.flush()
        self.rounds.append((exchange, woken))

    def answer(self) -> None:
        rng, index = self.rng, self.rng.randrange(len(self.links.ends))
        for said in self.links.ends[index].heard():
            self.trace.append((index, said))
            self.owed[index].append(b" ".join(said))
        link = self.links.masters[index].link
        if not self.owed[index] or link is None or not link.owed:
            return
        self.owed[index].pop(0)
        owed = link.owed[0]
        number = owed.exchange.number if owed.exchange is not None else 0
        command = owed.command
        many = len(command.resources) if command is not None and command.fenced else 0
        time = self.time.wall
        word = rng.choices(
            (
                "grant",
                "higher",
                "ahead",
                "refuse",
                "another",
                "not ready",
                "error",
                "number",
                "shape",
            ),
            (30, 1, 1, 12, 1, 1, 1, 0.3, 0.3),
        )[0]
        self.trace.append(word)
        reply: Any = {
            "grant": [number, 1, time, *[7] * many],
            "higher": [number, 1, time, *[9] * many],
            "ahead": [number, 1, time + 400_000, *[7] * many],
            "refuse": [number, 0, time, 1, 900, 5, -1, b"a" * 32],
            "another": [number, 0, time, 1, 900, 5, rng.choice((-1, 0)), b"b" * 32],
            "not ready": [number, -1, time],
            "number": [number + 1, 1, time, *[7] * many],
            "shape": [number, 1, time, *[7] * many, 7],
        }.get(word)
        answer = b"run_id:%d" % index if owed.kind is Kind.INFO else packed(reply or ())
        self.say(index, b"-ERR no\r\n" if word == "error" else resp(answer))

    def say(self, index: int, data: bytes) -> None:
        cut = self.rng.randrange(1, len(data))
        for piece in (data,) if self.rng.random() < 0.7 else (data[:cut], data[cut:]):
            self.links.say(index, piece)

    def disturb(self) -> None:
        index = self.rng.randrange(len(self.links.ends))
        self.rng.choice((self._lose, self._push, self._wait))(index)

    def _lose(self, index: int) -> None:
        self.links.cut(self.links.masters[index], "lost")
        self.owed[index].clear()
        if self.rng.random() < 0.8:
            self.links.join(index)
            self.links.sockets.flush()

    def _push(self, index: int) -> None:
        if self.links.masters[index].link is not None:
            self.say(index, push(b"message", b"channel", b"waiter"))

    def _wait(self, index: int) -> None:
        self.links.sockets.waited(0.26, 0.26, self.time.now)
        self.time.now += 0.26

    def observe(self) -> None:
        for master in self.links.masters:
            link = master.link
            self.trace.append((
                master.fault(self.time.now), master.failures, sorted(master.unanswered),
                sorted(master.pending_releases), sorted(master.refused_releases),
                link and (len(link.owed), link.expired, link.heard, link.ran),
            ))  # fmt: skip
        self.trace += [
            (exchange.decided, exchange.tally.verdict, exchange.tally.outstanding, woken[:])
            for exchange, woken in self.rounds[-8:]
        ]


@pytest.mark.parametrize("seed", range(40))
def test_random_sessions_are_the_same_if_every_reply_is_parsed(seed: int) -> None:
    traces = []
    parsed = patch.dict(PLAIN, clear=True)
    for way in (nullcontext(), parsed):
        with way, timed_links() as (links, time):
            session = Session(links, time, seed)
            trace = session.run(150)
            traces.append([*trace, *(exchange.tally.votes for exchange, _ in session.rounds)])
    assert traces[0] == traces[1]


def _answered(links: ManualLinks, time: Time, exchange: Any) -> None:
    for index in range(len(links.ends)):
        links.say(index, resp(packed([exchange.number, 1, time.wall, 7])))


def test_plain_replies_are_not_parsed() -> None:
    """Otherwise the tests above would compare nothing."""
    with timed_links() as (links, time):
        with patch.object(LinkChanges, "retry", side_effect=AssertionError("the long way")):
            first = Exchange(Round((links.acquire(),) * 3, Tally(3)), lambda: None)
            links.begin(first)
            links.sockets.flush()
        _answered(links, time, first)  # and now the clocks are known
        with patch.object(Replies, "_answer", side_effect=AssertionError("the long way")):
            exchange = Exchange(Round((links.acquire(),) * 3, Tally(3)), lambda: None)
            links.begin(exchange)
            links.sockets.flush()
            _answered(links, time, exchange)
        assert isinstance(exchange.tally, Tally)
        assert exchange.tally.verdict is Verdict.WON


def _suspected(links: ManualLinks) -> None:
    links.steps._suspect(links.masters[0], 5.0)


def _blamed(links: ManualLinks) -> None:
    links.steps._blame_ourselves(links.masters[:1])


def _twin(links: ManualLinks) -> None:
    links.masters[0].run_id = links.masters[1].run_id
    find_twins(links.masters)


def _untrusted(links: ManualLinks) -> None:
    trust = links.masters[0].trust
    assert trust is not None
    links.changes.trust(links.masters[0], replace(trust, ready=NOW + 9))


def _late(links: ManualLinks) -> None:
    links.lateness._mark_late(links.masters[0], "did not answer")


def _lost(links: ManualLinks) -> None:
    links.cut(links.masters[0], "lost")


DOUBTS: dict[str, Callable[[ManualLinks], None]] = {
    "suspect": _suspected,
    "our clock stepped": _blamed,
    "twin": _twin,
    "untrusted": _untrusted,
    "late": _late,
    "lost": _lost,
    "another deployment": lambda links: setattr(links.membership, "conflict", "another"),
}


@kills("suspect hides from rounds", StepWatch._suspect, without("master.usable = False"), "suspect")
@kills("our clock stepped hides from rounds", StepWatch._blame_ourselves,
       without("master.usable = False"), "our clock stepped")  # fmt: skip
@kills(
    "twin hides from rounds", find_twins, without("master.usable = other.usable = False"), "twin"
)
@kills("late hides from rounds", LateWatch._mark_late, without("master.usable = False"), "late")
@kills("a faulty master is asked", Links.begin, never("not m.usable"), "suspect")
@kills("a marker is good for ever", LinkChanges.trust,
       instead("master.trust, master.usable = ...", "master.trust = trust"),
       "untrusted")  # fmt: skip
@kills("another deployment's masters are asked", Links.begin, never("self.membership.conflict"),
       "another deployment")  # fmt: skip
@pytest.mark.parametrize("doubt", DOUBTS)
def test_no_lock_is_asked_of_a_master_from_a_doubt_on(doubt: str) -> None:
    with timed_links() as (links, time):
        _answered(links, time, links.ask(links.acquire()))
        links.ends[0].heard()
        DOUBTS[doubt](links)
        links.ask(links.acquire("b" * 32))
        assert "acquire" not in links.ends[0].names()


FAULTS: dict[str, tuple[Callable[[ManualLinks], None], str]] = {
    "late": (_late, "did not answer"),
    "lost": (_lost, "lost"),
}


def _reasons(links: ManualLinks, time: Time, command: Command, *masters: int) -> list[str]:
    """Return the votes of a round that asks masters 1 and 2, once both have answered."""
    exchange = links.ask(command, *masters)
    assert exchange.tally.asked == {1, 2}
    for index in exchange.tally.asked:
        links.say(index, resp(packed([exchange.number, 1, time.wall, *[7] * command.fenced])))
    assert exchange.tally.verdict is Verdict.WON
    return exchange.tally.reasons()


@kills("a master that is left out is reached", Links._fit,
       instead("failed(..., sent=False)", "failed(fault)"), "late")  # fmt: skip
@pytest.mark.parametrize("fault", FAULTS)
def test_a_master_that_is_known_not_to_answer_is_left_out(fault: str) -> None:
    fail, reason = FAULTS[fault]
    with timed_links() as (links, time):
        _answered(links, time, links.ask(links.acquire()))
        links.ends[0].heard()
        fail(links)
        acquire = links.acquire("b" * 32)
        assert _reasons(links, time, acquire) == [reason, "granted", "granted"]
        released = _reasons(links, time, links.release("b" * 32), 1, 2)
        assert released == ["not asked", "granted", "granted"]
        assert links.ends[0].names() == []


@pytest.mark.parametrize("fault", FAULTS)
def test_a_round_names_why_a_master_is_left_out_now(fault: str) -> None:
    with timed_links() as (links, _):
        FAULTS[fault][0](links)
        links.ask(links.acquire())
        master = links.masters[0]
        setattr(master, "late" if fault == "late" else "reason", "something else")
        exchange = links.ask(links.acquire("b" * 32))
        assert exchange.tally.reasons()[0] == "something else"


@kills("a usable master is never inspected", Links.begin, never("now >= m.inspect_at"))
def test_a_master_that_must_be_inspected_is_looked_at() -> None:
    with timed_links() as (links, time):
        _answered(links, time, links.ask(links.acquire()))
        links.ends[0].heard()
        time.now += INSPECTED + 0.01
        links.ask(links.acquire("b" * 32))
        assert [said[0] for said in links.ends[0].heard()] == [b"INFO", b"EVALSHA"]


@pytest.mark.parametrize("end", ["close", "abandon"])
def test_a_round_that_begins_after_the_links_were_closed_has_failed(end: str) -> None:
    with manual_links(3) as links:
        first = links.ask(links.acquire())  # from here on no master is looked at
        for index in range(3):
            links.reply(index, first.number)
        getattr(links, end)()
        exchange = links.ask(links.acquire())
        assert exchange.decided
        assert exchange.tally.reasons() == ["closed"] * 3


def test_masters_are_looked_at_once_for_many_rounds() -> None:
    with timed_links() as (links, time):
        _answered(links, time, links.ask(links.acquire()))
        with patch.object(Master, "fault", side_effect=AssertionError("looked at again")):
            _answered(links, time, links.ask(links.acquire("b" * 32)))


@kills("all masters are sent one command", Links.begin, never("owed.command is not command"))
def test_each_master_is_sent_its_own_command() -> None:
    with timed_links() as (links, _):
        commands = links.acquire(), links.release(), None
        exchange = Exchange(Round(commands, Tally(3)), lambda: None)
        links.begin(exchange)
        links.sockets.flush()
        assert [ends.names() for ends in links.ends] == [["acquire"], ["release"], []]
        assert exchange.tally.asked == {0, 1}


@kills("a plain reply of any length", Replies._count_plain, never("len(data) < plain.size"))
def test_a_grant_that_comes_in_two_parts_has_its_fence() -> None:
    with timed_links(masters=1) as (links, time):
        _answered(links, time, links.ask(links.acquire()))
        for cut in range(1, len(resp(packed([1, 1, time.wall, 7])))):
            exchange = links.ask(links.acquire("b" * 32))
            reply = resp(packed([exchange.number, 1, time.wall, 7]))
            for part in (reply[:cut], reply[cut:]):
                links.say(0, part)
                assert links.masters[0].link is not None, f"cut after {cut} bytes"
            assert fences(exchange) == [(7,)], f"cut after {cut} bytes"


def test_an_empty_reply_to_another_command_drops_the_link() -> None:
    with timed_links() as (links, time):
        _answered(links, time, links.ask(links.acquire()))
        links.ask(links.acquire("b" * 32), 0, 1)
        links.say(0, resp([]))
        assert links.masters[0].link is None


@kills("a stepped clock grants", Replies._believes, always("self._steps.note(...)"), b"")
@pytest.mark.parametrize("before", [b"", PUSH], ids=["plain", "parsed"])
def test_no_vote_counts_from_a_clock_step_on(before: bytes) -> None:
    with timed_links() as (links, time):
        _answered(links, time, links.ask(links.acquire()))
        exchange = links.ask(links.acquire("b" * 32))
        links.say(0, before + resp(packed([exchange.number, 1, time.wall + 5_000_000, 7])))
        assert "stepped" in exchange.tally.reasons()[0]
        assert not links.link(0).owed or links.masters[0].checking


@kills("a step ends with its reply", Replies._count_plain, never("not master.usable and ..."),
       False)  # fmt: skip
@pytest.mark.parametrize("together", [True, False], ids=["together", "apart"])
def test_no_reply_that_comes_with_or_after_a_clock_step_counts(together: bool) -> None:
    with timed_links() as (links, time):
        _answered(links, time, links.ask(links.acquire()))
        asked = [links.ask(links.acquire(word * 32)) for word in "bc"]
        ahead = time.wall + 5_000_000
        replies = [resp(packed([one.number, 1, ahead, 7])) for one in asked]
        for said in [b"".join(replies)] if together else replies:
            links.say(0, said)
        assert ["stepped" in one.tally.reasons()[0] for one in asked] == [True, True]


@pytest.mark.parametrize("asks", ["acquire", "release"])
def test_a_plain_reply_alone_grants(asks: str) -> None:
    with timed_links() as (links, time):
        command = links.acquire() if asks == "acquire" else links.release()
        exchange = links.ask(command)
        fence = [7] * command.fenced
        for index in range(2):
            links.ends[index].say(resp(packed([exchange.number, 1, time.wall, *fence])))
            with patch.object(Replies, "_answer", side_effect=AssertionError("the long way")):
                links.read(links.masters[index])
        assert fences(exchange) == [tuple(fence)] * 2


def _refusal(number: int, time: Time, *, ahead: int = 0, rival: bytes = b"f" * 32) -> Any:
    """Return the reply that refuses one resource to a client that does not wait."""
    return packed([number, 0, time.wall + ahead, 1, 900, 5, -1, rival])


def test_a_plain_reply_alone_refuses() -> None:
    with timed_links() as (links, time):
        exchange = links.ask(links.acquire())
        with patch.object(Replies, "_answer", side_effect=AssertionError("the long way")):
            for index in range(3):
                links.say(index, resp(_refusal(exchange.number, time)))
        assert exchange.tally.rival_won
        assert exchange.tally.verdict is Verdict.LOST
        assert not links.link(2).owed
        assert links.ends[2].names() == ["acquire"], "a late refusal needs no release"
        assert exchange.tally.votes == [refused(time.wall, 900, 5, b"f" * 32)] * 3


def test_plain_refusals_that_come_together_are_not_parsed() -> None:
    with timed_links() as (links, time):
        asked = [links.ask(links.acquire(word * 32)) for word in "bc"]
        with patch.object(Replies, "_answer", side_effect=AssertionError("the long way")):
            for index in range(2):
                links.say(index, b"".join(resp(_refusal(one.number, time)) for one in asked))
        assert [one.tally.rival_won for one in asked] == [True, True]


@kills("a part of a reply is lost", Replies._parse,
       instead("return", "return link.received.clear()"))  # fmt: skip
@kills("a cut reply is parsed", Replies._parse, never("is_cut(...)"))
def test_a_refusal_that_comes_in_two_parts_counts() -> None:
    with timed_links(masters=1) as (links, time):
        for cut in range(1, len(resp(_refusal(1, time)))):
            exchange = links.ask(links.acquire("b" * 32))
            reply = resp(_refusal(exchange.number, time))
            with patch.object(Replies, "_answer", side_effect=AssertionError("the long way")):
                for part in (reply[:cut], reply[cut:]):
                    links.say(0, part)
            assert exchange.tally.rival_won, f"cut after {cut} bytes"


@kills("a part of a reply is read twice", Replies._parse, without("del link.received[:]"))
def test_a_refusal_that_is_parsed_in_two_parts_counts() -> None:
    with timed_links(masters=1) as (links, time):
        for cut in range(1, len(PUSH + resp(_refusal(1, time)))):
            exchange = links.ask(links.acquire("b" * 32))
            reply = PUSH + resp(_refusal(exchange.number, time))
            links.say(0, reply[:cut], reply[cut:])
            assert exchange.tally.refusals, f"cut after {cut} bytes"


@pytest.mark.parametrize("together", [1, 2])
def test_a_refusal_of_another_round_is_not_a_vote(together: int) -> None:
    with timed_links() as (links, time):
        asked = [links.ask(links.acquire(word * 32)) for word in "bc"]
        links.say(0, resp(_refusal(asked[1].number, time)) * together)
        assert links.masters[0].link is None
        assert all(b"f" * 32 not in str(one.tally.votes).encode() for one in asked)
        assert [one.tally.refusals for one in asked] == [[], []]


def test_another_reply_of_the_length_of_a_refusal_is_not_a_vote() -> None:
    with timed_links() as (links, time):
        exchange = links.ask(links.acquire())
        links.say(0, b"+abc\n" + resp(_refusal(exchange.number, time))[5:])
        assert links.masters[0].link is None
        assert not exchange.tally.refusals


@kills(
    "a refusal shows no step",
    Replies._count_plain,
    instead(
        "self._believes(...)", "(status == 0 or self._believes(master, time, oldest.sent, heard))"
    ),
)
def test_a_refusal_whose_clock_stepped_has_no_vote() -> None:
    with timed_links() as (links, time):
        _answered(links, time, links.ask(links.acquire()))
        exchange = links.ask(links.acquire("b" * 32))
        links.say(0, resp(_refusal(exchange.number, time, ahead=5_000_000)))
        assert "stepped" in exchange.tally.reasons()[0]


@kills("a plain grant of any round", Replies._count_plain, never("number != oldest.number"))
def test_a_grant_of_another_round_is_not_a_vote() -> None:
    with timed_links() as (links, time):
        exchange = links.ask(links.acquire())
        links.say(0, resp(packed([exchange.number + 1, 1, time.wall, 7])))
        assert links.masters[0].link is None
        assert exchange.tally.granted == 0


@kills("a plain release of any round", Replies._count_plain,
       instead("number != oldest.number", "time and number != oldest.number"))  # fmt: skip
def test_a_release_of_another_round_is_not_a_vote() -> None:
    with timed_links() as (links, _):
        exchange = links.ask(links.release())
        links.say(0, resp(packed([exchange.number + 1, 1, 0])))
        assert links.masters[0].link is None
        assert exchange.tally.granted == 0


@kills("bytes inside a reply grant", Replies._count_plain, always("not link.parsing"))
def test_bytes_inside_a_refusal_do_not_grant() -> None:
    with timed_links() as (links, time):
        exchange = links.ask(links.release())
        grant = resp(packed([exchange.number, 1, 0]))
        refusal = resp(packed([exchange.number, 0, time.wall, 1, 900, 5, -1, grant]))
        begin = refusal.index(grant)
        for piece in PUSH + refusal[:begin], grant, refusal[begin + len(grant) :]:
            links.say(0, piece)
        assert exchange.tally.reasons()[0].startswith("held by another client")


@kills("an old look at the clock", Replies._believes, always("heard < until"))
def test_bounds_of_clocks_are_not_old() -> None:
    """The longer ago they were noted, the larger are the steps that may be drift."""
    with timed_links(masters=1) as (links, time):
        links.masters[0].inspect_at = NOW + 1000
        for stepped in [0] * 100 + [1_200_000]:
            time.now += 1.0
            exchange = links.ask(links.acquire())
            links.say(0, resp(packed([exchange.number, 1, time.wall + stepped, 7])))
        assert "stepped by 1.2 s" in exchange.tally.reasons()[0]


def test_one_reply_of_a_batch_tells_the_clock_of_its_master() -> None:
    with timed_links(masters=1) as (links, time):
        _answered(links, time, links.ask(links.acquire()))
        time.now += 1.0
        links.steps.clock = lambda: time.now + 0.001  # to count replies takes time, too
        asked = [links.ask(links.acquire(word * 32)) for word in "bcd"]
        links.ends[0].say(b"".join(resp(packed([one.number, 1, time.wall, 7])) for one in asked))
        with patch.object(links.steps, "note", wraps=links.steps.note) as note:
            links.read(links.masters[0])
        assert note.call_count == 1
        assert [one.tally.verdict for one in asked] == [Verdict.WON] * 3


@kills("our clock's latest time is lost", StepWatch._blame_ourselves,
       instead("self.latest + KNOWN_FOR", "self.latest"))  # fmt: skip
def test_our_clock_that_goes_back_voids_a_lease_that_began_since() -> None:
    with timed_links() as (links, time):
        _answered(links, time, links.ask(links.acquire()))
        time.now += 0.05
        began = time.now
        _answered(links, time, links.ask(links.acquire("b" * 32)))
        time.now -= 10.0
        links.steps._blame_ourselves(links.masters)
        assert links.steps.voided >= began


@kills("our clock never goes back a little", Replies._believes, always("heard >= sent"))
def test_our_clock_that_goes_back_a_little_within_a_round_is_noted() -> None:
    with timed_links() as (links, time):
        _answered(links, time, links.ask(links.acquire()))
        time.now += 0.05
        exchange, sent = links.ask(links.acquire("b" * 32)), time.now
        time.now -= 0.004
        _answered(links, time, exchange)
        assert links.steps.latest >= sent, "a lease of this round must be voided by a later step"


# Templates.

DEPLOYMENT = Deployment(names=("a", "b", "c"), prefix="100%s red")
NAMES = ("r", "order:4711", "naïve ☃", "50%", "x" * 300, "a\x01b")


def _commands() -> Iterator[Command]:
    rng = Random(3)
    for name, holder, ttl in product(NAMES, ("{}", '{"pid":77,"task":"é%d"}', ""), (10, 0.25)):
        for resources in ((name,), (name, "second")):
            value = f"{rng.getrandbits(128):032x} {holder}"
            common: dict[str, Any] = {
                "deployment": DEPLOYMENT, "resources": resources, "value": value,
            }  # fmt: skip
            proposal = rng.randrange(10**15, 10**16)
            for waiter in ("", "wake 7", "wake 77"):
                for ticket in (proposal, 7):
                    yield Acquire(
                        **common, ttl=ttl, proposal=proposal, waiter=waiter, ticket=ticket
                    )
                for bury, calls in product((True, False), repeat=2):
                    for left in (0.0, rng.random()):
                        yield Release(**common, bury=bury, left=left, calls=calls, waiter=waiter)
            numbers = tuple(range(7, 7 + len(resources)))
            yield Extend(**common, ttl=ttl)
            yield Heal(**common, ttl=ttl, fences=numbers)
            yield Confirm(**common, fences=numbers)
            yield Take(**common, ttl=ttl, proposal=1, expected="f" * 32, fences=numbers)
            yield Restore(**common, old="f" * 32)


def test_templates_spell_commands_as_pack_command_does() -> None:
    templates = Templates()
    commands = list(_commands())
    for number in (1, 9, 10, 12345, 2**63):
        for command in [*commands, *commands]:
            assert templates.pack(command, number) == pack_command(command, number)


def test_a_value_may_have_no_holder() -> None:
    command = Release(deployment=DEPLOYMENT, resources=("r",), value=TOKEN)
    assert Templates().pack(command, 7) == pack_command(command, 7)


def test_templates_are_limited() -> None:
    templates = Templates()
    for length in range(1, 2 * MOST):
        release = Release(deployment=DEPLOYMENT, resources=("r" * length,), value=f"{TOKEN} {{}}")
        assert templates.pack(release, 7) == pack_command(release, 7)
    assert len(templates._templates) <= MOST

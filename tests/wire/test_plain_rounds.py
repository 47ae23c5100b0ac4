"""Plain replies: the same bytes, votes and owed replies as if every reply is parsed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
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
from redlock_django.wire.links.link import Exchange, Link
from redlock_django.wire.links.link_changes import LinkChanges
from redlock_django.wire.links.links import Links
from redlock_django.wire.links.master import INSPECTED, Master, find_twins
from redlock_django.wire.links.replies import Replies, _of_round
from redlock_django.wire.links.resp import MOST, PLAIN, Templates, pack_command
from tests.engine.mutants import fixture, kills
from tests.engine.mutation import always, instead, never, without
from tests.engine.simulator import Simulation, replay
from tests.replies import packed, refused
from tests.wire.manual_links import NOW, TOKEN, WALL, ManualLinks, fences, manual_links
from tests.wire.scripted import push, resp

PUSH = push(b"message", b"a channel", b"a waiter")
"""After a push, replies are parsed."""
NO_LONG_WAY = patch.object(Replies, "_answer", side_effect=AssertionError("the long way"))
"""With this, replies that are parsed fail the test."""


def know_clocks(links: ManualLinks) -> ManualLinks:
    """Note the clocks of masters, exactly."""
    for master in links.masters:
        links.steps._keep(master, WALL - NOW, WALL - NOW, links.time.now)
    return links


@fixture
def timed() -> Iterator[ManualLinks]:
    """Open links to three masters whose clocks are known exactly."""
    with manual_links() as links:
        yield know_clocks(links)


def _trace(seed: int) -> list[object]:
    """Return what a simulation did, and the state of links after all they received."""
    seen: list[object] = []
    feed = Replies.feed

    def noted(replies: Replies, master: Master, link: Link, heard: float) -> None:
        feed(replies, master, link, heard)
        seen.append((
            master.fault(heard), master.failures, sorted(master.unanswered),
            sorted(master.pending_releases), sorted(master.refused_releases),
            len(link.owed), link.expired, link.heard, link.ran, link.took,
        ))  # fmt: skip

    setup = replace(Simulation(seed).setup, seconds=2.0)
    with patch.object(Replies, "feed", noted):
        return [replay(seed, setup), *seen]


@pytest.mark.parametrize("seed", range(6))
def test_a_seed_is_the_same_if_every_reply_is_parsed(seed: int) -> None:
    as_usual = _trace(seed)
    with patch.dict(PLAIN, clear=True):
        assert _trace(seed) == as_usual


def _twin(links: ManualLinks) -> None:
    links.masters[0].run_id = links.masters[1].run_id
    find_twins(links.masters)


def _untrusted(links: ManualLinks) -> None:
    trust = links.masters[0].trust
    assert trust is not None
    links.changes.trust(links.masters[0], replace(trust, ready=NOW + 9))


DOUBTS: dict[str, Callable[[ManualLinks], None]] = {
    "suspect": lambda links: links.steps._suspect(links.masters[0], 5.0),
    "our clock stepped": lambda links: links.steps._blame_ourselves(links.masters[:1]),
    "twin": _twin,
    "untrusted": _untrusted,
    "late": lambda links: links.lateness._mark_late(links.masters[0], "did not answer"),
    "lost": lambda links: links.cut(links.masters[0], "lost"),
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
def test_no_lock_is_asked_of_a_master_from_a_doubt_on(doubt: str, timed: ManualLinks) -> None:
    timed.grant(timed.ask(timed.acquire()))
    timed.ends[0].heard()
    DOUBTS[doubt](timed)
    timed.ask(timed.acquire("b" * 32))
    assert "acquire" not in timed.ends[0].names()


FAULTS = {"late": "did not answer", "lost": "lost"}


def _reasons(links: ManualLinks, command: Command, *masters: int) -> list[str]:
    """Return the votes of a round that asks masters 1 and 2, once both have answered."""
    exchange = links.ask(command, *masters)
    assert exchange.tally.asked == {1, 2}
    for index in exchange.tally.asked:
        links.say(index, resp(packed([exchange.number, 1, links.time.wall, *[7] * command.fenced])))
    assert exchange.tally.verdict is Verdict.WON
    return exchange.tally.reasons()


@kills("a master that is left out is reached", Links._fit,
       instead("failed(..., sent=False)", "failed(fault)"), "late")  # fmt: skip
@pytest.mark.parametrize("fault", FAULTS)
def test_a_master_that_is_known_not_to_answer_is_left_out(fault: str, timed: ManualLinks) -> None:
    reason = FAULTS[fault]
    timed.grant(timed.ask(timed.acquire()))
    timed.ends[0].heard()
    DOUBTS[fault](timed)
    acquire = timed.acquire("b" * 32)
    assert _reasons(timed, acquire) == [reason, "granted", "granted"]
    released = _reasons(timed, timed.release("b" * 32), 1, 2)
    assert released == ["not asked", "granted", "granted"]
    assert timed.ends[0].names() == []
    setattr(timed.masters[0], "late" if fault == "late" else "reason", "something else")
    assert timed.ask(timed.acquire("c" * 32)).tally.reasons()[0] == "something else"


@kills("a usable master is never inspected", Links.begin, never("now >= m.inspect_at"))
def test_a_master_that_must_be_inspected_is_looked_at(timed: ManualLinks) -> None:
    timed.grant(timed.ask(timed.acquire()))
    timed.ends[0].heard()
    timed.time.now += INSPECTED + 0.01
    timed.ask(timed.acquire("b" * 32))
    assert [said[0] for said in timed.ends[0].heard()] == [b"INFO", b"EVALSHA"]


@pytest.mark.parametrize("end", ["close", "abandon"])
def test_a_round_that_begins_after_the_links_were_closed_has_failed(
    end: str, links: ManualLinks
) -> None:
    first = links.ask(links.acquire())  # from here on no master is looked at
    for index in range(3):
        links.reply(index, first.number)
    getattr(links, end)()
    exchange = links.ask(links.acquire())
    assert exchange.decided
    assert exchange.tally.reasons() == ["closed"] * 3


def test_masters_are_looked_at_once_for_many_rounds(timed: ManualLinks) -> None:
    timed.grant(timed.ask(timed.acquire()))
    with patch.object(Master, "fault", side_effect=AssertionError("looked at again")):
        timed.grant(timed.ask(timed.acquire("b" * 32)))


@kills("all masters are sent one command", Links.begin, never("owed.command is not command"))
def test_each_master_is_sent_its_own_command(timed: ManualLinks) -> None:
    commands = timed.acquire(), timed.release(), None
    exchange = Exchange(Round(commands, Tally(3)), lambda: None)
    timed.begin(exchange)
    timed.sockets.flush()
    assert [ends.names() for ends in timed.ends] == [["acquire"], ["release"], []]
    assert exchange.tally.asked == {0, 1}


@kills("a stepped clock grants", Replies._believes, always("self._steps.note(...)"), "granted")
@kills(
    "a refusal shows no step",
    Replies._count_plain,
    instead(
        "self._believes(...)", "(status == 0 or self._believes(master, time, oldest.sent, heard))"
    ),
    "refused",
)
@pytest.mark.parametrize("answer", ["granted", "granted, parsed", "refused"])
def test_no_vote_counts_from_a_clock_step_on(answer: str, timed: ManualLinks) -> None:
    timed.grant(timed.ask(timed.acquire()))
    exchange = timed.ask(timed.acquire("b" * 32))
    grant = packed([exchange.number, 1, timed.time.wall + 5_000_000, 7])
    refusal = _refusal(timed, exchange.number, ahead=5_000_000)
    before = PUSH if answer == "granted, parsed" else b""
    timed.say(0, before + resp(refusal if answer == "refused" else grant))
    assert "stepped" in exchange.tally.reasons()[0]
    assert not timed.link(0).owed or timed.masters[0].checking


@kills("a step ends with its reply", Replies._count_plain, never("not master.usable and ..."),
       False)  # fmt: skip
@pytest.mark.parametrize("together", [True, False], ids=["together", "apart"])
def test_no_reply_that_comes_with_or_after_a_clock_step_counts(
    together: bool, timed: ManualLinks
) -> None:
    timed.grant(timed.ask(timed.acquire()))
    asked = [timed.ask(timed.acquire(word * 32)) for word in "bc"]
    ahead = timed.time.wall + 5_000_000
    replies = [resp(packed([one.number, 1, ahead, 7])) for one in asked]
    for said in [b"".join(replies)] if together else replies:
        timed.say(0, said)
    assert ["stepped" in one.tally.reasons()[0] for one in asked] == [True, True]


@pytest.mark.parametrize("asks", ["acquire", "release"])
def test_a_plain_reply_alone_grants(asks: str, timed: ManualLinks) -> None:
    command = timed.acquire() if asks == "acquire" else timed.release()
    exchange = timed.ask(command)
    fence = [7] * command.fenced
    for index in range(2):
        timed.ends[index].say(resp(packed([exchange.number, 1, timed.time.wall, *fence])))
        with NO_LONG_WAY:
            timed.read(timed.masters[index])
    assert fences(exchange) == [tuple(fence)] * 2


def _refusal(links: ManualLinks, number: int, *, ahead: int = 0, rival: bytes = b"f" * 32) -> Any:
    """Return the reply that refuses one resource to a client that does not wait."""
    return packed([number, 0, links.time.wall + ahead, 1, 900, 5, -1, rival])


def test_plain_replies_refuse_alone_and_together(timed: ManualLinks) -> None:
    asked = [timed.ask(timed.acquire(word * 32)) for word in "bc"]
    refusals = [resp(_refusal(timed, one.number)) for one in asked]
    with NO_LONG_WAY:
        timed.say(0, *refusals)
        for index in (1, 2):
            timed.say(index, b"".join(refusals))
    for exchange in asked:
        assert exchange.tally.rival_won
        assert exchange.tally.verdict is Verdict.LOST
        assert exchange.tally.votes == [refused(timed.time.wall, 900, 5, b"f" * 32)] * 3
    assert not timed.link(2).owed
    assert timed.ends[2].names() == ["acquire"] * 2, "a late refusal needs no release"


def _of(kind: str, links: ManualLinks, number: int) -> bytes:
    """Return a reply of this kind to the round of that number."""
    refusal = resp(_refusal(links, number))
    return {
        "a grant": resp(packed([number, 1, links.time.wall, 7])),
        "a release": resp(packed([number, 1, 0])),
        "a refusal": refusal,
        "a refusal, parsed": PUSH + refusal,
        "two refusals": refusal * 2,
        "another reply as long as a refusal": b"+abc\n" + refusal[5:],
    }[kind]


@kills("a plain reply of any length", Replies._count_plain, never("len(data) < plain.size"),
       "a grant")  # fmt: skip
@kills("a part of a reply is lost", Replies._parse,
       instead("return", "return link.received.clear()"), "a refusal")  # fmt: skip
@kills("a cut reply is parsed", Replies._parse, never("is_cut(...)"), "a refusal")
@kills("a part of a reply is read twice", Replies._parse, without("del link.received[:]"),
       "a refusal, parsed")  # fmt: skip
@pytest.mark.parametrize("kind", ["a grant", "a refusal", "a refusal, parsed"])
def test_a_reply_that_comes_in_two_parts_counts(kind: str, single: ManualLinks) -> None:
    know_clocks(single)
    for cut in range(1, len(_of(kind, single, 1))):
        exchange = single.ask(single.acquire("b" * 32))
        reply = _of(kind, single, exchange.number)
        with nullcontext() if "parsed" in kind else NO_LONG_WAY:
            single.say(0, reply[:cut], reply[cut:])
        assert single.masters[0].link is not None, f"cut after {cut} bytes"
        if kind == "a grant":
            assert fences(exchange) == [(7,)], f"cut after {cut} bytes"
        else:
            assert exchange.tally.rival_won, f"cut after {cut} bytes"


@kills("a plain grant of any round", Replies._count_plain, never("number != oldest.number"),
       "a grant")  # fmt: skip
@kills("a reply of any round counts", _of_round, never("decoded.number != number"), "a grant")
@kills("a plain release of any round", Replies._count_plain,
       instead("number != oldest.number", "time and number != oldest.number"),
       "a release")  # fmt: skip
@pytest.mark.parametrize(
    "kind",
    ["a grant", "a release", "a refusal", "two refusals", "another reply as long as a refusal"],
)
def test_a_reply_of_another_round_is_not_a_vote(kind: str, timed: ManualLinks) -> None:
    ask = timed.release if kind == "a release" else timed.acquire
    asked = [timed.ask(ask(word * 32)) for word in "bc"]
    timed.say(0, _of(kind, timed, asked[1].number))
    assert timed.masters[0].link is None
    assert [one.tally.granted for one in asked] == [0, 0]
    assert [one.tally.refusals for one in asked] == [[], []]


@kills("bytes inside a reply grant", Replies._count_plain, always("not link.parsing"))
def test_bytes_inside_a_refusal_do_not_grant(timed: ManualLinks) -> None:
    exchange = timed.ask(timed.release())
    grant = resp(packed([exchange.number, 1, 0]))
    refusal = resp(packed([exchange.number, 0, timed.time.wall, 1, 900, 5, -1, grant]))
    begin = refusal.index(grant)
    for piece in PUSH + refusal[:begin], grant, refusal[begin + len(grant) :]:
        timed.say(0, piece)
    assert exchange.tally.reasons()[0].startswith("held by another client")


@kills("an old look at the clock", Replies._believes, always("heard < until"))
def test_bounds_of_clocks_are_not_old(single: ManualLinks) -> None:
    """The longer ago they were noted, the larger are the steps that may be drift."""
    know_clocks(single)
    single.masters[0].inspect_at = NOW + 1000
    for stepped in [0] * 100 + [1_200_000]:
        single.time.now += 1.0
        exchange = single.ask(single.acquire())
        single.say(0, resp(packed([exchange.number, 1, single.time.wall + stepped, 7])))
    assert "stepped by 1.2 s" in exchange.tally.reasons()[0]


def test_one_reply_of_a_batch_tells_the_clock_of_its_master(single: ManualLinks) -> None:
    know_clocks(single)
    single.grant(single.ask(single.acquire()))
    single.time.now += 1.0
    single.steps.clock = lambda: single.time.now + 0.001  # to count replies takes time, too
    asked = [single.ask(single.acquire(word * 32)) for word in "bcd"]
    single.ends[0].say(
        b"".join(resp(packed([one.number, 1, single.time.wall, 7])) for one in asked)
    )
    with patch.object(single.steps, "note", wraps=single.steps.note) as note:
        single.read(single.masters[0])
    assert note.call_count == 1
    assert [one.tally.verdict for one in asked] == [Verdict.WON] * 3


@kills("our clock's latest time is lost", StepWatch._blame_ourselves,
       instead("self.latest + KNOWN_FOR", "self.latest"))  # fmt: skip
def test_our_clock_that_goes_back_voids_a_lease_that_began_since(timed: ManualLinks) -> None:
    timed.grant(timed.ask(timed.acquire()))
    timed.time.now += 0.05
    began = timed.time.now
    timed.grant(timed.ask(timed.acquire("b" * 32)))
    timed.time.now -= 10.0
    timed.steps._blame_ourselves(timed.masters)
    assert timed.steps.voided >= began


@kills("our clock never goes back a little", Replies._believes, always("heard >= sent"))
def test_our_clock_that_goes_back_a_little_within_a_round_is_noted(timed: ManualLinks) -> None:
    timed.grant(timed.ask(timed.acquire()))
    timed.time.now += 0.05
    exchange, sent = timed.ask(timed.acquire("b" * 32)), timed.time.now
    timed.time.now -= 0.004
    timed.grant(exchange)
    assert timed.steps.latest >= sent, "a lease of this round must be voided by a later step"


# Templates.

DEPLOYMENT = Deployment(names=("a", "b", "c"), prefix="100%s red")
NAMES = ("r", "exam", "order:4711", "naïve ☃", "50%", "x" * 300, "a\x01b")


def _commands() -> Iterator[Command]:
    yield Release(deployment=DEPLOYMENT, resources=("r",), value=TOKEN)
    # The queue is that of the name, so a slot's release has more gaps than that of a lock.
    for slot, digit, waiter in product(("r[1]", "s[2]", "exam"), "ab", ("", "wake 7")):
        of_slot: dict[str, Any] = {
            "deployment": DEPLOYMENT, "resources": (slot,), "value": f"{digit * 32} {{}}",
            "waiter": waiter, "limit": 3,
        }  # fmt: skip
        yield Acquire(**of_slot, ttl=5.0, proposal=7, ticket=5)
        yield Release(**of_slot)
        yield Release(**of_slot, calls=False)
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


def test_templates_are_limited() -> None:
    templates = Templates()
    for length in range(1, 2 * MOST):
        release = Release(deployment=DEPLOYMENT, resources=("r" * length,), value=f"{TOKEN} {{}}")
        assert templates.pack(release, 7) == pack_command(release, 7)
    assert len(templates._templates) <= MOST

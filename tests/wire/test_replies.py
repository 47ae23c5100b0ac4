"""Replies that come late, wrong, in pieces or never, and releases that are kept, without a driver.

More of these rules are in `test_link_rules`, `test_lateness` and `test_clock_steps`, each with the
mutant that breaks it.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

from redlock_django.engine.quorum import Verdict
from redlock_django.engine.steps import Pause
from redlock_django.wire.links import master as master_module
from tests.replies import packed
from tests.wire.manual_links import ManualLinks, fences
from tests.wire.scripted import push, resp

NUMBER, EARLIER, NOW = object(), object(), object()
"""The number of the round or of the one before, and the time of the master, in these replies."""
WRONG: dict[str, Any] = {
    "a string": b"OK",
    "an older round": [EARLIER, 1, NOW, 5],
    "no number": [b"x", 1, NOW, 5],
    "too short": [NUMBER],
    "no time": [NUMBER, 1],
    "no fence": [NUMBER, 1, NOW],
    "no fence and no time": [NUMBER, 1, 0],
    "half a fence": [NUMBER, 1, NOW, b"7"],
    "two fences": [NUMBER, 1, NOW, 5, 5],
    "an unknown status": [NUMBER, 77, NOW],
    "an unknown status that fails": [NUMBER, -77, NOW],
    "half a refusal": [NUMBER, 0, NOW, 1],
    "nothing": [],
    "an empty array": b"*0\r\n",
    "an array": b"*3\r\n:1\r\n:1\r\n:1\r\n",
    "nil": b"$-1\r\n",
    "not RESP": None,
}


@pytest.mark.fault(without=("a reply of any round counts",))
@pytest.mark.parametrize("wrong", WRONG)
def test_a_reply_that_cannot_be_right_drops_the_link(
    wrong: str, caplog: pytest.LogCaptureFixture, single: ManualLinks
) -> None:
    exchange = single.ask(single.acquire())
    if (reply := WRONG[wrong]) is None:
        data = b"HTTP/1.1 400 Bad Request\r\n\r\n"
    elif isinstance(reply, bytes):
        data = reply if reply[:1] in b"*$" else resp(reply)
    else:
        number, now = exchange.number, single.time.wall
        meant = {NUMBER: number, EARLIER: number - 1, NOW: now}
        data = resp(packed([p if isinstance(p, bytes) else meant.get(p, p) for p in reply]))
    single.say(0, data)
    assert exchange.tally.verdict is Verdict.LOST
    assert "out of step" in exchange.tally.reasons()[0]
    assert single.ends[0].names() == ["acquire"]
    assert single.ends[0].is_closed_by_the_other()
    assert single.ask(single.acquire("b" * 32)).tally.verdict is Verdict.LOST
    assert any(record.levelno == logging.ERROR for record in caplog.records)


@pytest.mark.parametrize(
    "unexpected",
    [push(b"subscribe", b"x", 1), resp([b"subscribe", b"x", 1])],
    ids=["not asked for", "not a push"],
)
def test_an_unexpected_answer_to_subscribe_drops_the_link(
    unexpected: bytes, single: ManualLinks
) -> None:
    if unexpected[:1] == b"*":  # as in RESP2
        single.changes.waiter()
        single.sockets.flush()
    exchange = single.ask(single.acquire())
    single.say(0, unexpected)
    assert exchange.tally.verdict is Verdict.LOST
    assert single.ends[0].names()[-1] == "acquire"
    assert single.ends[0].is_closed_by_the_other()


@pytest.mark.fault(without=("a lost link is not reported",))
def test_every_round_in_flight_fails_with_its_link(single: ManualLinks) -> None:
    rounds = [single.ask(single.acquire(f"{number:032x}")) for number in range(4)]
    single.say(0, resp(b"rubbish"))
    assert all("out of step" in exchange.tally.reasons()[0] for exchange in rounds)


PUSHES = b"".join((
    push(b"message", b"redlock:wake:0", b"redlock:wake:0 1"),
    push(b"message", b"redlock:wake:0", b""),
    push(b"message", b"redlock:wake:0"),
    push(b"message", 7, 7),
    push(b"invalidate", 1, 1, 5),
    push(1, 1, 1_760_000_000_000_000, 5),
    push(),
))  # fmt: skip


def _grant(links: ManualLinks, number: int) -> bytes:
    """Return a reply that grants; the fence is the round's number."""
    return resp(packed([number, 1, links.time.wall, number]))


@pytest.mark.fault(without=("of several replies one is read",))
@pytest.mark.parametrize("pushes", [b"", PUSHES], ids=["replies", "replies among pushes"])
@pytest.mark.parametrize("size", [1, 100_000], ids=["in pieces of a byte", "in one piece"])
def test_replies_in_any_pieces_are_told_apart_from_pushes(
    size: int, pushes: bytes, single: ManualLinks
) -> None:
    for _ in range(6):
        taken = single.ask(single.acquire())
        data = pushes + _grant(single, taken.number) + pushes
        single.say(0, *(data[start : start + size] for start in range(0, len(data), size)))
        assert fences(taken) == [(taken.number,)]
        released = single.ask(single.release())
        single.say(0, pushes + resp(packed([released.number, 1, 0])) + pushes)
        assert released.tally.verdict is Verdict.WON
    assert single.masters[0].link is not None


@pytest.mark.fault(without=("of several replies one is read",))
def test_several_replies_in_one_segment_go_each_to_its_own_round(single: ManualLinks) -> None:
    rounds = [single.ask(single.acquire(f"{number:032x}")) for number in range(4)]
    single.say(0, b"".join(_grant(single, asked.number) for asked in rounds))
    assert [fences(asked) for asked in rounds] == [[(asked.number,)] for asked in rounds]


@pytest.mark.fault(without=("votes after the verdict are dropped",))
def test_late_replies_count_in_their_own_round(links: ManualLinks) -> None:
    link = links.masters[2].link
    rounds = [links.ask(links.acquire(f"{number:032x}")) for number in range(3)]
    for asked in rounds:
        for index in (0, 1):
            links.reply(index, asked.number)
        assert asked.tally.verdict is Verdict.WON
        assert asked.tally.votes[2] is None
    for fence, asked in enumerate(rounds, 7):
        links.reply(2, asked.number, fence=fence)
    votes = [asked.tally.votes[2] for asked in rounds]
    assert [vote and vote.fences for vote in votes] == [(7,), (8,), (9,)]
    assert links.masters[2].link is link


def test_the_number_of_kept_releases_is_limited(
    monkeypatch: pytest.MonkeyPatch, links: ManualLinks
) -> None:
    assert master_module.MAX_REMEMBERED == 10_000
    most = 2_500  # still more than a socket takes at once
    monkeypatch.setattr(master_module, "MAX_REMEMBERED", most)
    tokens = [f"{number:032x}" for number in range(most + 7)]
    master = links.masters[2]
    links.cut(master, "lost")
    for token in tokens:
        master.keep_release(links.release(token))
        master.remember_unanswered(token)
    assert [*master.pending_releases] == [*master.unanswered] == tokens[7:]
    ends, heard = links.join(2), 0
    while heard < most:
        links.dirty.add(links.masters[2])  # as a driver does once the socket takes more
        links.sockets.flush()
        names = ends.names()
        assert {*names} == {"release"}
        heard += len(names)
    for _ in range(most):
        links.reply(2, 0, fences=0)
    assert not master.pending_releases
    assert not master.unanswered
    assert master.link is not None


def test_every_link_is_subscribed_to_from_the_first_waiter_on(single: ManualLinks) -> None:
    single.changes.waiter()
    single.changes.waiter()
    single.sockets.flush()
    assert single.ends[0].names() == ["SUBSCRIBE"]
    ends = single.join(0)
    single.sockets.flush()
    assert ends.names() == ["SUBSCRIBE"]


def test_a_waiter_does_not_poll_once_its_masters_have_answered_the_subscription(
    single: ManualLinks,
) -> None:
    waiter = single.changes.waiter()
    assert waiter.rest(Pause(2.0, 0.1)) == 0.1
    waiter.end_rest()
    single.say(0, push(b"subscribe", single.waiters.channel.encode(), 1))
    assert waiter.rest(Pause(2.0, 0.1)) == 2.0


NO_CALLS = {
    "does not support RESP3": False,
    "its ACL forbids 'subscribe'": True,
}


@pytest.mark.parametrize("why", NO_CALLS)
def test_a_master_that_cannot_call_waiters_is_logged_once(
    why: str, caplog: pytest.LogCaptureFixture, single: ManualLinks
) -> None:
    pushes = NO_CALLS[why]
    for _ in range(2):
        ends = single.new_ends(0)
        single.sockets.arrived(0, replace(ends.joined("0"), pushes=pushes))
        single.changes.waiter()
        single.sockets.flush()
        if pushes:
            assert ends.names() == ["SUBSCRIBE"]
            single.say(
                0, b"-NOPERM User poor has no permissions to run the 'subscribe' command\r\n"
            )
        single.reply(0, single.ask(single.acquire()).number)
        assert ends.names() == ["acquire"]
    said = [record.getMessage() for record in caplog.records]
    assert [why in text and "cannot call waiters" in text for text in said].count(True) == 1


def test_one_server_under_two_names_is_logged_once(
    caplog: pytest.LogCaptureFixture, links: ManualLinks
) -> None:
    for _ in range(2):
        links.join(2, run_id="1")
    links.cut(links.masters[0], "lost")
    links.join(0)
    [record] = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert "/nowhere/1.sock and /nowhere/2.sock are the same server" in record.getMessage()


def test_a_round_that_began_twice_is_repeated_by_its_number(single: ManualLinks) -> None:
    """An interrupt struck before the round was removed from the queue."""
    exchange = single.ask(single.acquire())
    single.begin(exchange)
    single.sockets.flush()
    single.say(0, b"-NOSCRIPT No matching script.\r\n")
    *_, (verb, _, keys, *rest) = single.ends[0].heard()
    assert verb == b"EVAL"
    single.reply(0, exchange.number)  # to the second
    single.say(0, resp(b"a hash"))  # to the load of the script that releases
    single.reply(0, int(rest[int(keys)]))
    assert single.masters[0].link is not None
    assert exchange.tally.verdict is Verdict.WON

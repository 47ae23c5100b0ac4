"""A lock that passes to a waiter of the same process: its round leaves with the release."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from redlock_django.engine.attempt import Attempt
from redlock_django.engine.protocol.statuses import GRANTED
from redlock_django.engine.quorum import Tally
from redlock_django.engine.steps import Pause, Round
from redlock_django.wire.drivers.loop import LoopDriver
from redlock_django.wire.link.link import wake_none
from redlock_django.wire.links.waiter import Waiter
from tests.wire.manual_links import ManualLinks, one_link
from tests.wire.scripted import NAMES, push, resp
from tests.wire.test_plain_rounds import timed_links

CALLING, SILENT, ASKING = ("release", True), ("release", False), ("acquire", True)


def _asleep(links: ManualLinks, ticket: int = 1, ahead: int = 0) -> Waiter:
    """Make a waiter sleep in the queue of "r"."""
    waiter = links.waiters.new()
    ask = replace(links.acquire(f"{ticket:032x}"), waiter=waiter.name, ticket=ticket)
    attempt = Attempt(ask, 0.0)
    links.waiters.begin_pause(waiter, Pause(60.0, 60.0, "r", ahead, ticket, lambda now: (attempt,)))
    return waiter


def _release(links: ManualLinks, *resources: str) -> None:
    release = replace(links.release(), resources=resources)
    asked = Round((release,) * 3, Tally(3), frees=resources)
    links.outbox.begin(links.outbox.exchange(asked, wake_none))
    links.outbox.flush()


def _heard(links: ManualLinks, index: int) -> list[tuple[str, bool]]:
    """Return the commands that a master got, and whether they name a queue."""
    return [
        (NAMES[said[1]], any(b":queue:" in key for key in said[3 : 3 + int(said[2])]))
        for said in links.ends[index].heard()
    ]


def test_a_release_calls_no_waiter_if_the_next_one_follows_it() -> None:
    with timed_links(True) as (links, _):
        _asleep(links, 2)
        waiter = _asleep(links, 1)
        _release(links, "r")
        assert [_heard(links, index) for index in range(3)] == [[SILENT, ASKING]] * 3
        assert waiter.sent is not None


async def _called_by_a_master_that_is_silent_then() -> None:
    """Return once the round of a task that sleeps is decided."""
    with one_link(LoopDriver, master_timeout=0.1) as (driver, masters, ends):
        waiters = driver.links.waiters
        waiter, attempt = waiters.new(), next(masters.acquire())
        assert isinstance(attempt, Round)
        asked = Round(attempt.commands, Tally(1))
        pause = Pause(600.0, begin=lambda now: (asked,))
        sleeping = asyncio.create_task(driver._sleep(waiter, pause))
        await asyncio.sleep(0)
        ends.say(push(b"message", waiters.channel.encode(), waiter.name.encode()))
        await asyncio.wait_for(sleeping, 60)
        assert waiter.takes_verdict(asked)
        assert asked.tally.account.unreachable


def test_a_round_that_a_call_has_sent_in_a_loop_ends_if_no_master_answers() -> None:
    asyncio.run(_called_by_a_master_that_is_silent_then())


def test_what_precedes_the_round_of_a_waiter_is_sent_before_it() -> None:
    with timed_links(True) as (links, _):
        waiter = _asleep(links)
        begin = waiter.pause.begin
        assert begin is not None
        undo = Round((None, links.release(), None), Tally(3), awaited=False)
        waiter.pause = waiter.pause._replace(begin=lambda now: (undo, *begin(now)))
        links.outbox.resume(waiter)
        links.outbox.flush()
        assert [len(_heard(links, index)) for index in range(3)] == [1, 2, 1]
        assert waiter.sent is not None
        assert isinstance(waiter.sent.asked, Attempt)


def test_a_release_that_is_sent_again_calls() -> None:
    with timed_links(True) as (links, _):
        _asleep(links)
        _release(links, "r")
        links.lose(links.masters[0], "lost")
        links.join(0)
        links.outbox.flush()
        assert _heard(links, 0) == [CALLING]


def test_a_release_calls_a_waiter_of_another_process() -> None:
    with timed_links(True) as (links, _):
        _asleep(links, ahead=1)
        _release(links, "r")
        assert _heard(links, 0) == [CALLING]


def test_a_release_calls_if_one_of_its_locks_has_no_waiter_here() -> None:
    with timed_links(True) as (links, _):
        _asleep(links)
        _release(links, "r", "s")
        assert _heard(links, 0) == [CALLING, ASKING]


def test_a_release_calls_a_waiter_that_is_called_while_it_begins() -> None:
    with timed_links(True) as (links, _):
        waiter = _asleep(links)
        waiter._callers.add(0)
        owed = links.ask(links.acquire("c" * 32))
        for index in (0, 1):
            links.reply(index, owed.number)
        for ends in links.ends:
            ends.heard()
        master = links.masters[2]
        assert master.link is not None
        master.link.behind = master.link.heard  # so it is read while the plan is made
        master.look_closer()
        call = push(b"message", links.waiters.channel.encode(), waiter.name.encode())
        links.ends[2].say(resp([owed.number, GRANTED, links.time.wall, 7]) + call)
        links.time.now += 0.001
        _release(links, "r")
        assert waiter.sent is not None
        assert [_heard(links, index) for index in range(3)] == [[ASKING, CALLING]] * 3


def test_a_release_calls_a_waiter_that_has_asked_before_it() -> None:
    with timed_links(True) as (links, _):
        links.outbox.resume(_asleep(links))
        links.outbox.flush()
        _release(links, "r")
        assert _heard(links, 0) == [ASKING, CALLING]


def test_a_release_calls_if_the_next_waiter_must_ask_by_itself() -> None:
    woken: list[int] = []
    with timed_links(True) as (links, _):
        _asleep(links).wake = lambda: woken.append(1)
        links.masters[1].suspect = "its clock stepped"
        _release(links, "r")
        assert _heard(links, 0) == [CALLING]
        assert woken


def test_a_link_that_is_lost_as_a_called_waiter_asks_keeps_the_release_of_another_call() -> None:
    with timed_links(True) as (links, _):
        waiter = _asleep(links)
        waiter._callers.add(0)
        links.masters[2].late = "owes a reply"  # so it is read before the release is sent
        links.ends[2].say(push(b"message", links.waiters.channel.encode(), waiter.name.encode()))
        links.ends[0].hang_up()
        _release(links, "s")
        assert waiter.sent is not None
        assert list(links.masters[0].pending_releases) == [links.release().token]
        assert _heard(links, 1) == [ASKING, CALLING]

"""Connecting: how long a round waits for links, how their results arrive, and when they close."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from unittest.mock import patch
from weakref import WeakSet

import pytest

from redlock_django.engine.errors import QuorumUnreachable
from redlock_django.engine.inspection.queries import ListHeld
from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.engine.quorum import Tally
from redlock_django.engine.steps import Round
from redlock_django.wire.drivers.loop import Arrival, LoopDriver
from redlock_django.wire.drivers.threads import ThreadDriver
from redlock_django.wire.links.link_changes import JOINING, LinkWait
from redlock_django.wire.links.master import Master
from redlock_django.wire.servers import survey as survey_module
from redlock_django.wire.servers.address import Address
from redlock_django.wire.servers.survey import Survey
from redlock_django.wire.servers.trust import Unfit
from tests.engine.mutants import fixture, kills
from tests.engine.mutation import always, instead, never
from tests.waiting import until
from tests.wire.manual_links import ManualLinks, manual_links
from tests.wire.variants import make_backend


@fixture
def five() -> Iterator[ManualLinks]:
    """Open links to five masters."""
    with manual_links(5) as opened:
        yield opened


def connect(links: ManualLinks, under_way: int, failed: int = 0) -> None:
    """Lose the links to the first masters; those under way are connecting again."""
    for master in links.masters[: under_way + failed]:
        links.cut(master, "lost")
        if master.index < under_way:
            links.changes.connecting.add(master)


def wait(links: ManualLinks, since: float = 0.0) -> float:
    """Return for how many seconds a round waits that began `since` seconds ago."""
    return links.link_wait.seconds(links.time.now - since)


def test_a_round_waits_for_a_quorum_until_its_time_to_connect_is_over(five: ManualLinks) -> None:
    connect(five, 3)
    assert wait(five) == pytest.approx(five.link_wait._connect_timeout)
    assert wait(five, since=five.link_wait._connect_timeout + 1) < 0


@pytest.mark.parametrize("failed", [0, 5])
def test_a_round_waits_for_no_connection_if_none_is_under_way(
    failed: int, five: ManualLinks
) -> None:
    connect(five, 0, failed)
    assert wait(five) == 0


@kills("links are waited for without hope", LinkWait.seconds,
       never("usable + connecting < self._quorum"))  # fmt: skip
def test_a_round_does_not_wait_without_hope_for_a_quorum(five: ManualLinks) -> None:
    connect(five, 2, failed=3)
    assert wait(five) == 0


@kills("the first lock is on a bare majority", LinkWait.seconds,
       instead("self._joining_until - now", "0.0"))  # fmt: skip
def test_the_first_round_waits_a_moment_for_the_links_that_a_quorum_does_not_need(
    five: ManualLinks,
) -> None:
    connect(five, 2)
    assert wait(five) == pytest.approx(JOINING)
    five.time.now += JOINING / 2
    assert wait(five) == pytest.approx(JOINING / 2), "the same moment for all rounds"


@kills("a slow network joins at once", LinkWait.seconds,
       instead("max(now - began, JOINING)", "JOINING"))  # fmt: skip
def test_the_moment_is_longer_where_a_quorum_took_longer(five: ManualLinks) -> None:
    connect(five, 1)
    assert wait(five, since=0.3) == pytest.approx(0.3)


@kills("a master that hangs is waited for again", LinkWait.seconds,
       always("self._joining_until is None"))  # fmt: skip
def test_a_master_that_hangs_is_waited_for_once(five: ManualLinks) -> None:
    connect(five, 1)
    assert wait(five) > 0
    five.time.now += JOINING
    assert wait(five) <= 0
    five.time.now += 60
    assert wait(five) <= 0


def test_a_master_that_has_a_link_is_not_waited_for(five: ManualLinks) -> None:
    connect(five, 1)
    five.join(0)
    assert wait(five) == 0


def test_a_quorum_that_is_lost_again_is_waited_for(five: ManualLinks) -> None:
    connect(five, 1)
    assert wait(five) > 0
    five.time.now += 60
    for master in five.masters[1:3]:
        five.cut(master, "lost")
        five.changes.connecting.add(master)
    assert wait(five) == pytest.approx(five.link_wait._connect_timeout)


@kills("releases wait for links", LinkWait.is_needed, instead("any(...)", "True"))
def test_a_release_waits_for_no_link(five: ManualLinks) -> None:
    connect(five, 1)
    release, acquire = five.release(), five.acquire()
    assert not five.link_wait.is_needed(Round((release,) * 5, Tally(5)))
    assert five.link_wait.is_needed(Round((acquire,) * 5, Tally(5)))


def test_a_master_that_is_trusted_ends_the_waits_for_links(links: ManualLinks) -> None:
    """They wait for a quorum, and another master may not answer for as long as one may connect."""
    with patch.object(links.sockets._driver, "changed") as changed:
        links.sender.check_all()
        links.sockets.flush()
        changed.reset_mock()
        with patch.object(links.sockets, "flush"):  # not done by the test, as `trusted` does
            links.trusted(0)
        assert links.dirty, "the driver flushes if something is to be done"
        links.sockets.flush()
        changed.assert_called_once()


# Results of connecting, and markers to read again, that other threads report.

URLS = [f"unix:///nowhere/{index}.sock" for index in range(3)]


def test_a_loop_that_stands_still_keeps_one_result_for_each_master(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Master, "backoff", lambda self: 0.002)
    attempts: list[Unfit] = []
    real = LoopDriver.deliver

    def deliver(self: LoopDriver, index: int, result: Unfit) -> bool:
        attempts.append(result)
        return real(self, index, result)

    monkeypatch.setattr(LoopDriver, "deliver", deliver)
    backend = make_backend(URLS)
    loop = asyncio.new_event_loop()

    async def ask() -> LoopDriver:
        with suppress(QuorumUnreachable):
            await backend.aacquire(("r",), 5.0, 0.0, "{}")
        return backend.loop_driver()

    links = loop.run_until_complete(ask()).links
    begun = len(attempts)
    until(lambda: len(attempts) > begun + 15, "many attempts to connect")
    assert len(loop._ready) <= 3 + 2  # type: ignore[attr-defined]
    assert all(result.__traceback__ is None for result in attempts)
    gc.collect()
    # isinstance() would also ask weak proxies for their class, of which some are dead.
    waiting = [one for one in gc.get_objects() if type(one) is Arrival]
    assert all(len(arrival._results) <= 1 for arrival in waiting)
    # The loop still hears of the next attempts, and of the end.
    failures = links.masters[0].failures

    async def turn() -> None:
        for _ in range(6000):
            await asyncio.sleep(0.01)
            if links.masters[0].failures > failures + 3:
                return
        raise AssertionError("no result arrives any more")

    loop.run_until_complete(turn())
    loop.run_until_complete(backend.aclose())
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


def test_the_latest_result_counts() -> None:
    arrival = Arrival()
    first, second = Unfit("first"), Unfit("second")
    arrival.scheduled = True
    arrival.put(first)
    arrival.put(second)
    assert arrival.take() is second
    assert arrival.scheduled is False
    assert arrival.take() is None


class AskedAtOnce(WeakSet):  # type: ignore[type-arg]
    """Readers that are asked to read again as soon as they are known, as by another thread."""

    def add(self, item: LoopDriver | ThreadDriver) -> None:
        super().add(item)
        item.look_again()


async def test_links_can_be_asked_to_read_markers_from_the_first_moment() -> None:
    backend = make_backend(URLS)
    backend.membership.readers = AskedAtOnce()
    assert backend.thread_driver() in backend.membership.readers
    assert backend.loop_driver() in backend.membership.readers
    backend.close()
    await backend.aclose()


# Surveys.


def test_a_connection_whose_answer_comes_too_late_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    goes_on, closed = threading.Event(), threading.Event()

    class Late:
        def __init__(self, *args: Any) -> None:
            pass

        def run(self, query: Any) -> None:
            goes_on.wait(60)

        def close(self) -> None:
            closed.set()

    monkeypatch.setattr(survey_module, "Probe", Late)
    deployment = Deployment(names=("a",))
    survey = Survey([Address.from_url("redis://a/0")], deployment, 60.0)
    query = ListHeld(deployment=deployment, most=1)
    assert survey.ask(lambda send: send(query), within=0.0) == {}
    goes_on.set()  # the caller waits for it no more
    assert closed.wait(60), "its thread has left the connection open"
    survey.close()

"""Tasks and threads share their sends, but masters need not wait until all tasks have asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event, get_ident
from time import monotonic
from typing import Any
from unittest.mock import Mock, patch

import pytest

from redlock_django.engine import rounds
from redlock_django.engine.steps import Protocol
from redlock_django.engine.validity import LeaseState
from redlock_django.wire.drivers.combiner import Poller
from redlock_django.wire.drivers.loop import SENT_TOGETHER, LoopDriver
from redlock_django.wire.drivers.sockets import LinkSocket
from redlock_django.wire.drivers.threads import ThreadDriver
from redlock_django.wire.links.link import Exchange
from tests.engine.masters import Masters
from tests.waiting import until
from tests.wire.manual_links import one_link
from tests.wire.scripted import ScriptedMaster
from tests.wire.test_link import scripted


async def _heard(tasks: int) -> list[int]:
    """Return how many rounds the master has heard before each begins, and at last."""
    heard = [0]
    with one_link(LoopDriver) as (driver, masters, ends):
        await driver.start()
        begin, before = driver._begin, []

        def noted(exchange: Exchange) -> None:
            heard[0] += len(ends.heard())
            before.append(heard[0])
            begin(exchange)

        with patch.object(driver, "_begin", noted):
            running = [asyncio.create_task(driver.run(masters.acquire())) for _ in range(tasks)]
            for _ in range(2):  # the tasks begin, and what they have begun is sent
                await asyncio.sleep(0)
        for task in running:
            task.cancel()
        heard[0] += len(ends.heard())
        await asyncio.wait(running)
    return [*before, heard[0]]


@pytest.mark.parametrize("tasks", [1, SENT_TOGETHER - 1])
def test_a_few_rounds_are_sent_together(tasks: int) -> None:
    assert asyncio.run(_heard(tasks)) == [*[0] * tasks, tasks]


def test_masters_get_the_first_of_many_rounds_before_the_last_has_begun() -> None:
    sent = asyncio.run(_heard(2 * SENT_TOGETHER + 1))
    assert sent == [
        *[0] * SENT_TOGETHER, *[SENT_TOGETHER] * SENT_TOGETHER, 2 * SENT_TOGETHER,
        2 * SENT_TOGETHER + 1,
    ]  # fmt: skip


def _sent_by_two_threads(after: Callable[[], None]) -> list[int]:
    """Return how many commands each send has, if a second thread runs before the first one sends.

    The first thread gives way to a third one, which was woken before. It calls `after` before it
    goes on; it may be interrupted.
    """
    seconds: list[Future[Any]] = []
    sent: list[int] = []
    is_over, first = Event(), get_ident()
    with (
        scripted("threads", ScriptedMaster(), master_timeout=60.0) as variant,
        ThreadPoolExecutor(1) as pool,
    ):
        assert isinstance(variant.driver, ThreadDriver)
        combiner = variant.driver.combiner
        link = variant.driver.links.masters[0].link
        assert link is not None
        connection: LinkSocket = link.connection
        send = connection.send_some

        def noted(data: bytearray) -> int:
            sent.append(data.count(b"EVALSHA"))
            return send(data)

        def give_way() -> None:
            if get_ident() != first:  # the second thread gives way in turn
                is_over.wait(20)
                return
            seconds.append(pool.submit(variant.acquire, "second"))
            until(lambda: len(combiner.queue) == 2)
            is_over.set()
            after()

        connection.send_some = noted
        combiner.waiting[Mock(decided=True)] = None
        with patch("os.sched_yield", give_way):
            try:
                variant.acquire("first")
            finally:
                seconds[0].result(20)
    return sent


def test_threads_that_were_woken_together_send_together() -> None:
    assert _sent_by_two_threads(after=lambda: None) == [2]


def test_an_interrupt_before_a_send_drops_no_round_of_another_thread() -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        _sent_by_two_threads(after=interrupt)


async def _flushed_after_an_interrupt() -> list[object]:
    """Return the links left to close, if one was lost and an interrupt left it closed."""
    with one_link(LoopDriver) as (driver, _, _):
        [master] = driver.links.masters
        assert master.link is not None
        connection = master.link.connection
        driver.links.changes.lose(master, "lost")
        driver.unwatch(connection)
        connection.close(cut=True)
        driver.sockets.flush()
        return [master.lost]


def test_a_loop_sends_after_an_interrupt_has_left_a_closed_connection() -> None:
    assert asyncio.run(_flushed_after_an_interrupt()) == [None]


def test_a_waiter_of_links_that_were_closed_does_not_poll_all_the_time() -> None:
    poller = Poller()
    for _ in range(2):
        poller.close()
    began = monotonic()
    assert poller.poll(0.02) == ([], [])
    assert monotonic() - began >= 0.02


async def _run_in_a_loop(protocol: Protocol[Any]) -> Any:
    with one_link(LoopDriver) as (driver, _, _):
        return await driver.run(protocol)


def test_an_extension_that_begins_too_late_is_a_loss_and_sends_nothing() -> None:
    """The deadline may pass after the caller reads the clock and before the engine does."""
    masters = Masters(1)
    lease = masters.taken()

    def late() -> Protocol[Any]:
        return rounds.extend(masters.deployment, lease, 10.0, now=lease.until)

    with one_link(ThreadDriver) as (driver, _, ends):
        results = [driver.run(late()) for _ in range(2)]  # the first one has ended
        assert ends.heard() == []
    results.append(asyncio.run(_run_in_a_loop(late())))
    assert results == [(LeaseState.LOST, lease)] * 3

"""One thread reads for all; however it stops, another one goes on."""

from __future__ import annotations

import inspect
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from linecache import getline
from unittest.mock import Mock, patch

import pytest

from redlock_django.engine.errors import QuorumUnreachable
from redlock_django.engine.protocol.statuses import Status
from redlock_django.engine.steps import Pause, Round
from redlock_django.wire.clock import clock, wall_ns
from redlock_django.wire.drivers import combiner, threads
from redlock_django.wire.drivers.combiner import Combiner
from redlock_django.wire.drivers.threads import ThreadDriver
from redlock_django.wire.links import master as master_module
from redlock_django.wire.links.link import Exchange, wake_none
from tests.engine.mutants import kills
from tests.engine.mutation import instead
from tests.live.test_locking_interrupts import Lines, Place
from tests.replies import packed
from tests.waiting import until
from tests.wire.manual_links import one_link
from tests.wire.scripted import Received, ScriptedMaster, honest, resp
from tests.wire.test_interrupted_replies import Checks
from tests.wire.test_link import scripted
from tests.wire.variants import make_backend

FOREVER = 60.0  # MASTER_TIMEOUT: nothing here goes on because time has passed


def test_at_every_line_of_a_reader_another_thread_goes_on() -> None:
    """Except in `leave`, after which the tender thread reads, half a MASTER_TIMEOUT later."""
    lines, visits = Lines(), Counter[Place]()

    def strike(wanted: tuple[Place, int] | None = None) -> None:
        asked: list[Received] = []
        player = ScriptedMaster(asked.append)

        def first() -> None:
            with suppress(KeyboardInterrupt):
                lines.run(partial(variant.acquire, "first"), wanted)

        def answer(to: bytes) -> bool:
            """Answer in order, up to the first acquire of a lock; return whether it was there."""
            while asked:
                said = asked.pop(0)
                player.send(honest(said))
                if to in b" ".join(said.keys):
                    return True
            return False

        with (
            scripted("threads", player, master_timeout=FOREVER) as variant,
            ThreadPoolExecutor(2) as pool,
        ):
            assert isinstance(variant.driver, ThreadDriver)
            shared = variant.driver.combiner
            reading = pool.submit(first)
            until(lambda: shared.reader or reading.done())
            waiting = pool.submit(variant.acquire, "second")
            until(lambda: shared.waiting or reading.done() or player.ended.is_set())
            until(lambda: answer(b"first") or reading.done())
            reading.result(20)
            with suppress(QuorumUnreachable):  # the interrupt may have cost the link
                until(lambda: answer(b"second") or waiting.done())
                waiting.result(20)
            player.answer = honest
            answer(b"all")

    strike()
    files = {module.__file__ for module in (threads, combiner)}
    source, start = inspect.getsourcelines(Combiner.leave)
    leave = {(combiner.__file__, start + line) for line in range(len(source))}
    for place, times in lines.seen.items():
        if place[0] in files and place not in leave and "self.leave(" not in getline(*place):
            visits[place] = times
    assert len(visits) > 20
    for place in visits:
        for nth in {1, visits[place]}:
            try:
                strike((place, nth))
            except Exception as error:
                raise AssertionError(f"after an interrupt at {place}, time {nth}") from error


def test_a_scripted_master_answers_info_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise these tests fail if two seconds pass: a command is preceded by INFO then."""
    monkeypatch.setattr(master_module, "INSPECTED", 0.0)
    asked: list[Received] = []
    player = ScriptedMaster(asked.append)
    with (
        scripted("threads", player, master_timeout=FOREVER) as variant,
        ThreadPoolExecutor(2) as pool,
    ):
        first = pool.submit(variant.acquire, "first")
        until(lambda: len(asked) == 1)
        second = pool.submit(variant.acquire, "second")
        until(lambda: len(asked) == 2)
        for said in asked:
            player.send(honest(said))
        first.result(20)
        second.result(20)
        player.answer = honest


def test_a_thread_is_woken_although_an_interrupt_struck_before() -> None:
    asked: list[Received] = []
    player = ScriptedMaster(asked.append)
    with (
        scripted("threads", player, master_timeout=FOREVER) as variant,
        ThreadPoolExecutor(2) as pool,
    ):
        assert isinstance(variant.driver, ThreadDriver)
        shared = variant.driver.combiner
        reading = pool.submit(variant.acquire, "first")
        until(lambda: shared.reader and len(asked) == 1)
        waiting = pool.submit(variant.acquire, "second")
        until(lambda: shared.waiting and len(asked) == 2)
        player.answer = honest
        sleeper = next(iter(shared.waiting))
        wake, calls = sleeper.wake, iter([True, False])

        def interrupted() -> None:
            if next(calls, False):
                raise KeyboardInterrupt
            wake()

        sleeper.wake = interrupted
        player.send(b"".join(map(honest, asked)))
        with pytest.raises(KeyboardInterrupt):
            reading.result(20)
        waiting.result(20)


@kills("an interrupt leaves a thread asleep that was called", Combiner.wake_decided,
       instead("[*self.waiting, *self.sleeping]", "[*self.waiting]"))  # fmt: skip
def test_a_thread_that_waits_to_be_called_is_woken_although_an_interrupt_struck_before() -> None:
    with one_link(ThreadDriver, FOREVER) as (driver, _, _):
        shared = driver.combiner
        shared.reader = Mock(decided=False)  # so that the other thread does not read
        waiter = driver.waiter()
        waiting = threading.Thread(target=driver._sleep, args=(waiter, Pause(FOREVER)), daemon=True)
        waiting.start()
        until(lambda: waiter in shared.sleeping)
        until(lambda: waiter.until > clock() + 1, "it sleeps")
        wake = Mock(wraps=waiter.wake)
        waiter.wake = Mock(side_effect=KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            waiter.call(0)
        waiter.wake = wake
        try:
            shared.wake_decided()  # as the driver does
            assert wake.called
        finally:
            wake()
            waiting.join(20)
            assert not waiting.is_alive()


def test_a_thread_of_several_rounds_is_woken_although_an_interrupt_struck_at_any_moment() -> None:
    checks = Checks()

    def strike(nth: int) -> None:
        with one_link(ThreadDriver, FOREVER) as (driver, masters, ends):
            shared = driver.combiner
            shared.reader = Mock(decided=False)  # so that the other thread does not read
            rounds = [masters.acquire(), masters.acquire()]
            waiting = threading.Thread(target=driver.run_all, args=(rounds,), daemon=True)
            waiting.start()
            until(lambda: shared.waiting)
            now = wall_ns() // 1000
            ends.say(b"".join(resp(packed([number, Status.GRANTED, now, 7])) for number in (1, 2)))
            with suppress(KeyboardInterrupt):
                checks.run(shared.read_idle, nth)
            shared.wake_decided()  # as the driver does
            shared.read_idle()
            waiting.join(20)
            assert not waiting.is_alive()
            driver.close()

    checks.everywhere(strike, least=10)


def test_a_thread_that_leaves_wakes_another_thread_if_no_thread_reads() -> None:
    """For example, a thread that was woken to read, but was decided or interrupted meanwhile."""
    driver = make_backend(["unix:///nowhere"]).thread_driver()
    shared = driver.combiner
    decided, waiting, sleeping = (Mock(decided=is_decided) for is_decided in (True, False, False))
    wakes = [Mock(), Mock(), Mock()]
    for other, wake in zip((decided, waiting, sleeping), wakes, strict=True):
        other.wake = wake
    shared.waiting = {decided: None, waiting: None}
    shared.sleeping = {sleeping: None}

    def leave(reader: Mock | None) -> list[int]:
        shared.reader = reader
        shared.leave()
        assert shared.reader is reader
        return [wake.call_count for wake in wakes]

    assert leave(sleeping) == [0, 0, 0]
    assert leave(None) == [0, 1, 0]
    shared.waiting.clear()
    assert leave(None) == [0, 1, 1]
    driver.close()


def test_between_two_parts_of_a_backlog_other_threads_get_their_turn() -> None:
    with one_link(ThreadDriver, FOREVER) as (driver, masters, ends):
        links = driver.links
        link = links.masters[0].link
        assert link is not None
        for number in range(1, 201):
            asked = next(masters.acquire())
            assert isinstance(asked, Round)
            links.begin(Exchange(asked, wake_none))
            ends.say(resp(packed([number, 1, 0, 7])))
        driver.sockets.flush()
        link.expired = len(link.owed)
        turns: list[int] = []

        def turn(seconds: float) -> None:
            assert not driver.combiner.inside()
            turns.append(len(link.owed))

        with patch("redlock_django.wire.drivers.threads.time.sleep", turn):
            driver.tender.read_backlogs()
        assert len(turns) > 2
        assert turns == sorted({*turns}, reverse=True)
        assert turns[-1] == 0


@pytest.mark.slow
def test_replies_that_no_thread_waits_for_are_read_whether_the_tender_sleeps_or_not() -> None:
    asked: list[Received] = []
    late = ScriptedMaster(asked.append)
    with scripted("threads", ScriptedMaster(), ScriptedMaster(), late, master_timeout=0.4) as used:
        driver = used.driver
        assert isinstance(driver, ThreadDriver)
        link = used.links.masters[2].link
        assert link is not None
        for turn in range(30):
            used.release(used.acquire(f"r{turn}"))
            until(lambda: len(asked) >= 2, "the late master has both commands")
            for said in asked:
                late.send(honest(said))
            asked.clear()
            if turn % 3:
                time.sleep(0.02 * (turn % 7))  # so that the tender sleeps, wakes or is about to
                continue
            until(lambda: not link.owed, "the tender has read the replies")
        until(lambda: not link.owed, "the tender has read the replies")
        until(lambda: driver.tender.is_asleep, "nothing is left to read")

"""Interrupts at random moments, thousands of them: nothing hangs, and no other lock is lost.

What is interrupted may stay locked for its TTL. That it is freed at once is an effort, which the
tests of `test_locking_interrupts.py` show.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from redlock_django.testing.masters import LocalMaster
from tests.live.left_over import locked
from tests.programs import Program, started
from tests.waiting import until

pytestmark = [pytest.mark.live]

MANY, SOME = 10_000, 1_000
TTL = 5.0

SETUP = """
    import asyncio, itertools, random, signal, threading, time
    from redlock_django import RedlockError, resume_lock
    many, numbers = int(sys.argv[1]), itertools.count()
    ready = lock("order:0", wait=30).acquire()
    ready.release()
    print("ready", flush=True)
"""

THREADS = (
    SETUP
    + """
    class Interrupt(BaseException):
        pass

    def interrupt(*_):
        raise Interrupt

    over, turns, lost = threading.Event(), [0, 0], []

    def go_on(number):
        # Another thread, whose locks and waits the interrupts must not touch.
        with lock(f"kept:{number}") as kept:
            while not over.is_set():
                try:
                    with lock("shared", wait=30) as held:
                        held.ensure_held()
                    kept.ensure_held()
                    turns[number] += 1
                except RedlockError as error:
                    lost.append(repr(error))

    def work(name):
        with lock(name) as held:
            held.extend()
        resume_lock(lock(name).acquire().transfer(ttl=5)).acquire().release()

    others = [threading.Thread(target=go_on, args=(number,), daemon=True) for number in (0, 1)]
    for other in others:
        other.start()
    began = time.perf_counter()
    for _ in range(100):
        work("order:0")
    usual = (time.perf_counter() - began) / 100
    signal.signal(signal.SIGALRM, interrupt)
    struck, seen = 0, list(turns)
    while struck < many:
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, usual))
                work(f"order:{next(numbers)}")
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except Interrupt:
            struck += 1
        except RedlockError as error:
            lost.append(repr(error))
        if struck and struck % 500 == 0 and turns != seen:
            until = time.monotonic() + 60
            while not all(now > before for now, before in zip(turns, seen)):
                assert time.monotonic() < until, f"another thread hangs: {turns} {seen}"
                time.sleep(0.01)
            seen = list(turns)
    with lock("order:0", wait=30) as held:
        held.verify()
    over.set()
    for other in others:
        other.join(60)
        assert not other.is_alive()
    print(json.dumps({"struck": struck, "lost": lost}), flush=True)
"""
)

TASKS = (
    SETUP
    + """
    async def go_on(number, over, turns, lost):
        async with lock(f"kept:{number}") as kept:
            while not over.is_set():
                try:
                    async with lock("shared", wait=30) as held:
                        held.ensure_held()
                    kept.ensure_held()
                    turns[number] += 1
                except RedlockError as error:
                    lost.append(repr(error))

    async def work(name):
        async with lock(name) as held:
            await held.aextend()
        held = await lock(name).aacquire()
        resumed = await resume_lock(await held.atransfer(ttl=5)).aacquire()
        await resumed.arelease()

    async def main():
        over, turns, lost, struck = asyncio.Event(), [0, 0], [], 0
        others = [asyncio.create_task(go_on(number, over, turns, lost)) for number in (0, 1)]
        began = time.perf_counter()
        for _ in range(100):
            await work("order:0")
        usual = (time.perf_counter() - began) / 100
        loop = asyncio.get_running_loop()
        while struck < many:
            tasks = [asyncio.create_task(work(f"order:{next(numbers)}")) for _ in range(10)]
            for task in tasks:
                loop.call_later(random.uniform(0, 4 * usual), task.cancel)
            before = list(turns)
            for result in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(result, asyncio.CancelledError):
                    struck += 1
                elif result is not None:
                    lost.append(repr(result))
            async with asyncio.timeout(60):
                while struck % 500 < 10 and not all(a > b for a, b in zip(turns, before)):
                    await asyncio.sleep(0.01)
        async with lock("order:0", wait=30) as held:
            await held.averify()
        over.set()
        async with asyncio.timeout(60):
            await asyncio.gather(*others)
        return {"struck": struck, "lost": lost}

    print(json.dumps(asyncio.run(main())), flush=True)
"""
)


@pytest.fixture(
    params=[
        SOME,
        pytest.param(MANY, marks=pytest.mark.nightly),
    ]
)
def many(request: pytest.FixtureRequest) -> int:
    number: int = request.param
    return number


@pytest.fixture(params=[THREADS, TASKS], ids=["threads", "tasks"])
def program(
    request: pytest.FixtureRequest, masters: list[LocalMaster], many: int
) -> Iterator[Program]:
    urls = [master.url for master in masters]
    section = {"MASTERS": urls, "RESTART_DELAY": 0, "TTL": TTL, "MASTER_TIMEOUT": 2}
    with started(request.param, str(many), redlock={"default": section}) as process:
        yield process


@pytest.mark.slow
def test_random_interrupts_stop_and_cost_no_other_lock(
    program: Program, masters: list[LocalMaster], many: int
) -> None:
    found = json.loads(program.hear())
    assert found["struck"] >= many
    assert found["lost"] == []
    left = {name for name in locked(masters) if "order" in name}
    until(lambda: not left & locked(masters).keys(), "they end with their TTL", seconds=4 * TTL)

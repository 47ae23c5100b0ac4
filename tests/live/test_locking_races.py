"""Competition for a lock, on five real masters.

The bugs of other libraries (B1-B34) that concern `Lock`, and the tests for them:

=====  ==========================================================================================
B8     app/test_lock.py::test_acquiring_again_with_the_same_object_keeps_the_lock
B9     contract/test_leases.py::test_a_late_release_leaves_the_next_holder_alone
B10    app/test_lock.py::test_the_bodys_exception_wins_*
B11    test_locking_interrupts.py::test_cancelled_at_every_step
B12    app/test_lock.py::test_an_interrupted_release_is_posted_again,
       test_a_release_during_an_outage_is_sent_again
B13    test_locks_work_in_one_loop_after_the_other
B14    contract/test_leases.py::test_an_expired_lease_is_not_extended
B15    app/test_renewal_service.py::test_an_outage_shorter_*, ::test_a_longer_outage_*,
       test_renewal_survives_a_short_outage, test_a_long_outage_is_reported
B16    app/test_lock.py::test_lost_when_its_lease_expires
B18    app/test_lock.py::test_the_real_clock_is_not_the_wall_clock
B19    app/test_lock.py::test_a_bad_ttl_is_refused, ::test_a_bad_wait_is_refused
B20    test_every_key_has_its_ttl
B21    app/test_lock.py::test_release_of_a_lock_that_a_majority_forgot_is_a_loss
B22    contract/test_leases.py::test_a_late_release_leaves_the_next_holder_alone
B23    app/test_lock.py::test_release_of_a_lock_that_a_majority_forgot_is_a_loss
B25    engine/test_renewal.py::test_a_lock_on_a_bare_majority_survives_*
B26    app/test_lock.py::test_every_call_honours_its_ttl
B30    test_locking_processes.py
B31    app/test_renewal_service.py::test_max_hold_ends_the_renewal
B33    test_web_sites.py
B34    app/test_renewal_service.py::test_a_released_lock_is_not_renewed
=====  ==========================================================================================
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from redlock_django.backends.redis import RedisBackend
from redlock_django.exceptions import LockLost, QuorumUnreachable
from redlock_django.locking.lock import Lock, lock
from redlock_django.locking.services import locks
from redlock_django.signals import lock_lost
from redlock_django.testing.masters import LocalMaster
from tests.live.left_over import nothing_left, values
from tests.live.linked import linked
from tests.looking import looking_at
from tests.losses import ends_lost
from tests.programs import started
from tests.timeouts import patient_site
from tests.waiting import stalls, until

if TYPE_CHECKING:
    from pytest_django import Settings

pytestmark = pytest.mark.live
R = "order:1"
KEY = f"redlock:lock:{R}"


@pytest.fixture(autouse=True)
def _on_real_masters(masters: list[LocalMaster], settings: Settings) -> None:
    settings.REDLOCK = patient_site(masters, 2.0, TTL=30)
    linked()


@pytest.fixture
def brief_locks(_on_real_masters: None, masters: list[LocalMaster], settings: Settings) -> None:
    """Allow a TTL of 0.3 s. On a busy machine, locks are only acquired by waiting for them."""
    settings.REDLOCK = patient_site(masters, 0.3, TTL=5)
    linked()


def everywhere(masters: Sequence[LocalMaster]) -> None:
    """Wait until every master has a held lock: a majority was enough to acquire it.

    A master that was connecting then gets it with the second renewal.
    """
    until(lambda: len(values(masters, R)) == len(masters), seconds=20)


# Mutual exclusion.


def add_one(path: Path) -> None:
    """Read, wait a moment, write: loses an increment that another makes meanwhile."""
    count = int(path.read_text())
    time.sleep(0.0005)
    path.write_text(str(count + 1))


PROCESS = """
    from pathlib import Path
    from tests.live.test_locking_races import add_one
    path = Path(sys.argv[1])
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(int(sys.argv[2])):
        with lock("counter", wait=60):
            add_one(path)
"""


@pytest.mark.slow
def test_threads_tasks_and_processes_exclude_each_other(
    masters: list[LocalMaster], tmp_path: Path
) -> None:
    path, times = tmp_path / "counter", 10
    path.write_text("0")

    def in_threads() -> None:
        for _ in range(times):
            with lock("counter", wait=60):
                add_one(path)

    async def in_a_task() -> None:
        for _ in range(times):
            async with lock("counter", wait=60):
                add_one(path)

    async def tasks() -> None:
        await asyncio.gather(*(in_a_task() for _ in range(8)))

    with ExitStack() as stack:
        site = patient_site(masters, TTL=5)
        processes = [
            stack.enter_context(started(PROCESS, str(path), str(times), redlock=site)) for _ in "ab"
        ]
        for process in processes:
            process.say("go")
        with ThreadPoolExecutor(9) as pool:
            done = [pool.submit(in_threads) for _ in range(8)]
            done.append(pool.submit(lambda: asyncio.run(tasks())))
            for future in done:
                future.result(120)
        for process in processes:
            assert process.wait(120) == 0
    assert int(path.read_text()) == 18 * times
    nothing_left(masters)


def test_the_counter_loses_without_a_lock(tmp_path: Path) -> None:
    path = tmp_path / "counter"
    path.write_text("0")
    for _ in range(20):
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: _quietly(path), range(80)))
        if int(path.read_text() or 0) < 80:
            return
    pytest.fail("the test above proves nothing")


def _quietly(path: Path) -> None:
    try:
        add_one(path)
    except ValueError:
        path.write_text("0")  # read while another client wrote


def test_the_first_use_of_all_by_many_at_once() -> None:
    for _ in range(5):
        locks.close()
        gate = threading.Barrier(12)

        def take(number: int, gate: threading.Barrier = gate) -> bool:
            gate.wait(60)
            with lock(f"r{number}") as held:
                return held.locked

        with ThreadPoolExecutor(12) as pool:
            assert all(pool.map(take, range(12)))


# Keys.


def test_every_key_has_its_ttl(masters: list[LocalMaster]) -> None:
    held = lock(R, ttl=60).acquire()
    everywhere(masters)
    for step in (lambda: None, held.extend):
        step()
        for master in masters:
            with master.client() as client:
                for key in client.keys("redlock:lock:*"):
                    assert 30_000 < client.pttl(key) <= 60_000
                for key in client.keys("redlock:fence:*"):
                    assert 540_000 < client.pttl(key) <= 600_000
    held.release()


# Released from another thread, task or loop.


@pytest.mark.fault(without=("a loop releases on its own links",))
def test_a_threads_lock_released_inside_a_loop(masters: list[LocalMaster]) -> None:
    held = lock(R).acquire()

    async def main() -> None:
        assert held.release() is False, "posted, not awaited"

    asyncio.run(main())
    nothing_left(masters)

    held = lock(R).acquire()

    async def other() -> None:
        assert await held.arelease() is False

    asyncio.run(other())
    nothing_left(masters)


def test_a_tasks_lock_released_after_its_loop(masters: list[LocalMaster]) -> None:
    async def take() -> Lock:
        return await lock(R).aacquire()

    held = asyncio.run(take())
    assert held.locked
    held.release()
    nothing_left(masters)


@pytest.mark.fault(without=("a loop releases on its own links",))
def test_a_tasks_lock_released_from_another_loop(masters: list[LocalMaster]) -> None:
    taken, go = threading.Event(), threading.Event()
    held: list[Lock] = []

    async def take() -> None:
        held.append(await lock(R).aacquire())
        taken.set()
        while not go.is_set():  # noqa: ASYNC110 - an event of threads
            await asyncio.sleep(0.005)

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(asyncio.run, take())
        assert taken.wait(60)
        assert asyncio.run(held[0].arelease()) is False
        nothing_left(masters)
        go.set()
        future.result(60)


def test_a_lock_is_renewed_after_the_end_of_its_loop(masters: list[LocalMaster]) -> None:
    """A stream that an async view returns to a WSGI server keeps its lock so."""

    async def take() -> Lock:
        return await lock(R, ttl=5, renew=True).aacquire()

    def ends() -> list[float]:
        return [looking_at(master).pexpiretime(KEY) for master in masters]

    held = asyncio.run(take())
    last = max(ends())
    until(lambda: min(ends()) > last, "every master has renewed the lock")
    held.release()
    nothing_left(masters, 3)


def test_a_lock_is_lost_if_our_clock_steps_after_the_end_of_its_loop(
    masters: list[LocalMaster],
) -> None:
    async def take() -> Lock:
        return await lock(R).aacquire()

    held = asyncio.run(take())
    backend = locks["default"].backend
    assert isinstance(backend, RedisBackend)
    driver = backend.thread_driver()
    links = driver.links
    assert held.locked
    with driver.combiner.mutex:
        # As the next answers show it after our clock has gone back by 100 s.
        for master in links.masters[:3]:
            assert master.offset is not None
            low, high, _ = master.offset
            links.steps.note(master, low + 100, high + 100)
        driver.sockets.flush()
    driver.tender.wake()
    until(lambda: not held.locked, "the loss")
    with pytest.raises(LockLost, match="the clock of this process stepped"):
        held.ensure_held()
    assert held.release() is False


def test_locks_work_in_one_loop_after_the_other(masters: list[LocalMaster]) -> None:
    async def use() -> None:
        async with lock(R) as held:
            await held.aextend()
        await asyncio.to_thread(nothing_left, masters)

    threads = threading.active_count()
    for _ in range(3):
        asyncio.run(use())
    until(lambda: threading.active_count() <= threads + 1, what="the end of the threads")
    with lock(R):
        pass


# Outages.


def test_a_release_during_an_outage_is_sent_again(masters: list[LocalMaster]) -> None:
    held = lock(R, ttl=30).acquire()
    for master in masters[:3]:
        master.pause()
    assert held.release() is False, "the outcome is unknown"
    for master in masters[:3]:
        master.resume()
    nothing_left(masters)  # long before its TTL ends
    with lock(R, wait=60):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["threads", "tasks"])
def test_renewal_survives_a_short_outage(masters: list[LocalMaster], variant: str) -> None:
    def outage() -> None:
        for master in masters:
            master.pause()
        time.sleep(2.7)  # the first renewal fails; the TTL ends three seconds later
        for master in masters:
            master.resume()

    def with_threads() -> None:
        with lock(R, ttl=6) as held:
            outage()
            until(lambda: held.remaining() > 4.5, "a renewal")
            held.ensure_held()

    async def with_tasks() -> None:
        async with lock(R, ttl=6) as held:
            await asyncio.to_thread(outage)
            await asyncio.to_thread(until, lambda: held.remaining() > 4.5, "a renewal")
            held.ensure_held()

    if variant == "threads":
        with_threads()
    else:
        asyncio.run(with_tasks())
    nothing_left(masters)


@pytest.mark.slow
@pytest.mark.usefixtures("brief_locks")
def test_a_long_outage_is_reported(masters: list[LocalMaster]) -> None:
    reports: list[float] = []

    def receive(**said: Any) -> None:
        reports.append(time.monotonic())

    lock_lost.connect(receive)
    try:
        with stalls() as late, ends_lost(), lock(R, ttl=0.6, wait=60) as held:
            began = time.monotonic()
            for master in masters:
                master.kill()
            until(lambda: reports, "the signal")
            assert reports[0] - began < 0.7 + late()
            assert not held.locked
    finally:
        lock_lost.disconnect(receive)
        for master in masters:
            master.start()
    assert len(reports) == 1

    def taken() -> bool:
        try:
            with lock(R):
                return True
        except QuorumUnreachable:
            return False

    until(taken, "the masters")


def test_locks_leave_no_owed_reply_or_waiting_thread() -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: lock(f"r{number}").acquire().release(), range(200)))
    backend = locks["default"].backend
    assert isinstance(backend, RedisBackend)
    driver = backend.thread_driver()
    shared = driver.combiner
    # The thread that reads the last reply is the reader for a moment longer.
    until(lambda: not (driver.links.owing() or shared.waiting or shared.queue or shared.reader))


def test_a_lock_released_by_a_finalizer_inside_the_wire(masters: list[LocalMaster]) -> None:
    """Garbage may be collected while this thread sends commands for other threads."""
    held = lock(R).acquire()
    backend = locks["default"].backend
    assert isinstance(backend, RedisBackend)
    with backend.thread_driver().combiner.mutex:
        assert held.release() is False  # this code must not block
    nothing_left(masters)

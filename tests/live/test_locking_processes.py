"""Locks and processes: killed processes, forks, and children that exit."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from redlock_django.backends.redis import RedisBackend
from redlock_django.exceptions import LockLost, ResourceLocked
from redlock_django.locking.lock import lock
from redlock_django.locking.renewal import renewal_service
from redlock_django.locking.reports import counters
from redlock_django.locking.services import locks
from redlock_django.testing.masters import LocalMaster
from redlock_django.wire.drivers.sockets import LinkSocket
from redlock_django.wire.drivers.threads import ThreadDriver
from tests.live.left_over import locked, nothing_left, values
from tests.live.linked import linked
from tests.programs import started
from tests.timeouts import patient_site
from tests.waiting import until

if TYPE_CHECKING:
    from pytest_django import Settings

pytestmark = [
    pytest.mark.live,
    pytest.mark.usefixtures("no_deadlock"),
    # From 3.12 on, Python warns of a fork in a process with threads; these tests show it works.
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]
R = "order:1"
KEY = f"redlock:lock:{R}"
TTL = 30.0
"""No lock ends while a test runs, unless it has a TTL of its own."""


@pytest.fixture(autouse=True)
def _on_real_masters(masters: list[LocalMaster], settings: Settings) -> None:
    settings.REDLOCK = patient_site(masters, 1.5, TTL=TTL)
    linked()


def driver() -> ThreadDriver:
    backend = locks["default"].backend
    assert isinstance(backend, RedisBackend)
    return backend.thread_driver()


def connections() -> list[LinkSocket]:
    """Return the connections of this process to its masters."""
    return [master.link.connection for master in driver().links.masters if master.link]


class Child:
    """A forked process that runs `work`, which may choose the exit code."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.said_by, writer = os.pipe()
        self.pid = os.fork()
        if self.pid:
            os.close(writer)
            return
        # Run only `work`: no handler, exit hook or report of the test run.
        signal.alarm(0)
        code = 70
        try:
            os.dup2(writer, 1)
            work()
            code = 0
        except SystemExit as leave:
            code = leave.code if isinstance(leave.code, int) else 71
        except BaseException:  # noqa: BLE001 - the parent shows it
            os.write(writer, traceback.format_exc().encode())
        finally:
            os._exit(code)

    def result(self, seconds: float = 90) -> int:
        """Return the exit code; a child that does not end in time is killed: -9."""
        deadline = time.monotonic() + seconds
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                break
            if time.monotonic() > deadline:
                os.kill(self.pid, signal.SIGKILL)
                _, status = os.waitpid(self.pid, 0)
                break
            time.sleep(0.002)
        with open(self.said_by) as pipe:
            self.said = pipe.read()
        return os.waitstatus_to_exitcode(status)

    def check(self, seconds: float = 90) -> None:
        code = self.result(seconds)
        assert code == 0, f"exit code {code}: {self.said}"


def ends(masters: list[LocalMaster]) -> list[float]:
    """Return when the lock ends on each master, by their common clock, the earliest first."""
    found = []
    for master in masters:
        with master.client() as client:
            found.append(client.pexpiretime(KEY) / 1000)
    return sorted(found)


# Killed processes.

HOLDER = """
    with lock("order:1"):
        print("taken", flush=True)
        sys.stdin.readline()
"""


@pytest.mark.slow
@pytest.mark.fault
def test_the_lock_of_a_killed_holder_is_free_after_its_ttl_and_not_before(
    masters: list[LocalMaster],
) -> None:
    with started(HOLDER, ready="taken", redlock=patient_site(masters, 5, TTL=5)):
        first = ends(masters)[-1]
        until(lambda: ends(masters)[0] > first, "every master has renewed the lock")
        with pytest.raises(ResourceLocked):
            lock(R).acquire()
    killed = time.time()
    left = ends(masters)
    assert left[-1] - killed <= 5
    with pytest.raises(ResourceLocked) as caught:
        lock(R).acquire()
    assert caught.value.retry_after is not None
    assert left[0] - time.time() < caught.value.retry_after <= left[-1] - killed
    with lock(R, wait=60):
        assert time.time() > left[len(masters) // 2], "on a majority the lock has not ended"


@pytest.mark.slow
@pytest.mark.parametrize("times", [25, pytest.param(100, marks=pytest.mark.nightly)])
def test_a_lock_that_is_interrupted_at_any_moment_is_undone_before_the_process_exits(
    masters: list[LocalMaster], times: int
) -> None:
    """A process that Ctrl-C ends cannot retry: it must have sent its undo before it exits."""
    for master in masters[:3]:
        with master.client() as client:
            client.set(KEY, "another client", px=60_000)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def child() -> None:
        with lock(f"other:{os.getpid()}", wait=60):
            until(lambda: driver().links.link_wait.usable() == len(masters))
        signal.signal(signal.SIGALRM, interrupt)
        try:
            signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0001, 0.004))
            lock(R, wait=20).acquire()
        except KeyboardInterrupt:
            return
        raise AssertionError("not interrupted")

    for _ in range(times):
        Child(child).check()
        until(lambda: len(values(masters, R)) == 3, "the undo")


# Forks inside a block.


def test_a_child_that_exits_in_the_block(masters: list[LocalMaster]) -> None:
    """Without `Child`: the child leaves the block of its parent."""
    for how, expected in (("exit", 3), ("raise", 1), ("_exit", 7), ("return", 0)):
        parent = os.getpid()
        code = None
        try:
            with lock(R) as held:
                before = values(masters, R)
                assert len(before) >= 3
                pid = os.fork()
                if not pid:
                    signal.alarm(0)
                    if how == "exit":
                        sys.exit(3)
                    elif how == "raise":
                        raise RuntimeError("in the child")
                    elif how == "_exit":
                        os._exit(7)
                else:
                    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                    assert set(before) <= set(values(masters, R))
                    held.ensure_held()
                    assert held.extend() > TTL - 10
        except BaseException as error:
            if os.getpid() == parent:
                raise
            if isinstance(error, SystemExit):
                os._exit(error.code if isinstance(error.code, int) else 70)
            os._exit(1 if isinstance(error, RuntimeError) and str(error) == "in the child" else 70)
        if os.getpid() != parent:
            os._exit(0)
        assert code == expected, how
        nothing_left(masters)


@pytest.mark.fault(without=("a child holds its parent's lock",))
def test_in_the_child_the_parents_lock_is_not_held(masters: list[LocalMaster]) -> None:
    def child() -> None:
        assert not held.locked
        assert held.remaining() == 0
        for ask in (held.ensure_held, held.extend):
            try:
                ask()
            except LockLost as error:
                assert "parent" in str(error), error  # noqa: PT017
            else:
                raise AssertionError("it must be lost here")
        assert held.release() is False
        assert held.release() is False
        try:
            lock(R).acquire()
        except ResourceLocked:
            pass
        else:
            raise AssertionError("the parent holds it")

    with lock(R) as held:
        Child(child).check()
        held.ensure_held()
        assert held.extend() > TTL - 10
    nothing_left(masters)


@pytest.mark.slow
def test_a_child_has_its_own_locks_sockets_and_threads(masters: list[LocalMaster]) -> None:
    parents = {tuple(c.socket.getsockname()) for c in connections()}
    files = {c.socket.fileno() for c in connections()}
    assert len(parents) == len(files) == 5

    def child() -> None:
        for file in files:
            try:
                os.fstat(file)
            except OSError:
                continue
            raise AssertionError(f"inherited socket {file} is still open")
        assert renewal_service._thread is None
        with lock("order:2", ttl=4.5) as own:
            mine = {tuple(c.socket.getsockname()) for c in connections()}
            assert len(mine) >= 3
            assert not mine & parents
            assert own.extend() > 2
            end = time.monotonic() + own.remaining()
            until(lambda: time.monotonic() + own.remaining() > end + 0.5, "a renewal by the child")
        assert "order:1" not in str(locked(masters).keys() - {KEY})

    with lock(R, ttl=4.5) as held:
        Child(child).check()
        assert held.remaining() > 1
        assert {tuple(c.socket.getsockname()) for c in connections()} == parents, (
            "the links of the parent must not be affected"
        )
        held.ensure_held()
    nothing_left(masters)


@pytest.mark.slow
@pytest.mark.fault(without=("a child holds its parent's lock",))
def test_a_child_does_not_renew_the_parents_lock(masters: list[LocalMaster]) -> None:
    held = lock(R, ttl=1.5, renew=True).acquire()
    child = Child(lambda: time.sleep(30))
    held._held_lease.mark_released(0.0)  # type: ignore[union-attr]  # the parent stops; the child must not go on
    try:
        until(lambda: not values(masters, R), "the end of its TTL")
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.result()


@pytest.mark.fault(without=("a child holds its parent's lock",))
def test_a_fork_inside_a_loop(masters: list[LocalMaster]) -> None:
    def child() -> None:
        assert not held[0].locked
        assert held[0].release() is False

        async def own() -> None:
            async with lock("order:2") as mine:
                assert await mine.aextend() > TTL - 10

        # asyncio still considers the loop of the parent to be running in this thread.
        asyncio._set_running_loop(None)
        asyncio.run(own())
        with lock("order:3"):
            pass

    held = []

    async def main() -> None:
        async with lock(R) as outer:
            held.append(outer)
            process = Child(child)
            await asyncio.to_thread(process.check)
            outer.ensure_held()
            assert await outer.aextend() > TTL - 10

    asyncio.run(main())
    nothing_left(masters)


# Forks while other threads hold mutexes.


MUTEXES = ("links", "links' end", "backend", "services", "counters", "renewal_service")


def mutexes() -> dict[str, object]:
    """Return mutexes that a thread of the parent may hold at a fork, by name."""
    backend = locks["default"].backend
    assert isinstance(backend, RedisBackend)
    shared = driver()
    return {
        "links": shared.combiner.mutex,
        "links' end": shared.sockets.closed._cond,  # type: ignore[attr-defined]
        "backend": backend._making,
        "services": locks._making,
        "counters": counters._mutex,
        "renewal_service": renewal_service._mutex,
    }


@contextmanager
def held_by_another_thread(mutex: object) -> Iterator[None]:
    """Hold a mutex in a thread that does not exist in a child of a fork."""
    is_held, is_over = threading.Event(), threading.Event()

    def hold() -> None:
        with mutex:  # type: ignore[attr-defined]
            is_held.set()
            is_over.wait(60)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(hold)
        assert is_held.wait(60)
        try:
            yield
        finally:
            is_over.set()


@pytest.mark.parametrize("name", MUTEXES)
def test_a_fork_while_a_mutex_is_held(name: str, masters: list[LocalMaster]) -> None:
    def child() -> None:
        for _ in range(2):
            with lock("order:2", renew=True) as held:
                assert held.locked
            locks.close()

    with lock(R):
        with held_by_another_thread(mutexes()[name]):
            process = Child(child)
        process.check()
    nothing_left(masters)


@pytest.mark.slow
def test_forks_while_threads_hammer(masters: list[LocalMaster]) -> None:
    end = threading.Event()
    failures: list[BaseException] = []

    def hammer(number: int) -> None:
        try:
            while not end.is_set():
                with lock(f"r{number}", f"s{number}", wait=60) as held:
                    held.extend()
        except BaseException as error:  # noqa: BLE001 - shown below
            failures.append(error)

    def child() -> None:
        with lock(f"child:{os.getpid()}", wait=60) as held:
            held.extend()
        locks.close()

    threads = [threading.Thread(target=hammer, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            Child(child).check()
    finally:
        end.set()
        for thread in threads:
            thread.join(60)
    assert failures == []
    until(lambda: not driver().links.owing(), "all masters have worked off what they were sent")
    nothing_left(masters)


# A child that exits.


EXITS = """
    held = lock("order:1", ttl=30).acquire()
    print("ready", flush=True)
    pid = os.fork()
    if not pid:
        with lock("order:2"):
            pass
        sys.exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
    assert held.extend() > 25
    assert held.release()
"""


def test_a_child_that_exits_normally_ends(masters: list[LocalMaster]) -> None:
    with started(EXITS, flags=("-W", "ignore"), redlock=patient_site(masters)) as process:
        _, errors = process.communicate(timeout=90)
        assert (process.returncode, errors) == (0, "")
    nothing_left(masters)

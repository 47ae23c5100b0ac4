"""The renewal service, on a clock that the tests control: extensions, their end, and losses."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from pytest_django import Settings

from redlock_django import LockLost, lock, locks
from redlock_django.backends.memory.backend import MemoryBackend
from redlock_django.locking import renewal
from redlock_django.locking.lock import Lock
from redlock_django.locking.renewal import RenewalService, Schedule, renewal_service
from redlock_django.locking.signal_thread import SignalThread
from redlock_django.signals import lock_acquired, lock_lost
from redlock_django.wire.clock import clock
from tests.app.conftest import FIVE, MEMORY, Configure, elsewhere, wake_renewals
from tests.app.ways import SyncWay, in_both_ways
from tests.losses import ends_lost
from tests.waiting import until

R = "order:1"
KEY = f"redlock:lock:{R}"
DOWN = [True] * 5
UP = [False] * 5


class World:
    """A backend with a clock for itself, its masters and the renewal service."""

    def __init__(self, backend: MemoryBackend) -> None:
        self.backend = backend
        self.now = 1_000_000.0
        self.extensions: list[float] = []
        self.lost: list[str] = []
        backend.now = lambda: self.now
        backend.time = lambda: round(self.now * 1_000_000)
        backend.sleep = self.advance
        self._extend = backend.extend

        def extend(lease: Any, ttl: float) -> Any:
            self.extensions.append(round(self.now - self.began, 3))
            return self._extend(lease, ttl)

        backend.extend = extend  # type: ignore[method-assign]
        self.began = self.now

    def advance(self, seconds: float) -> None:
        """Advance the clock, and wake the renewal service."""
        self.now += seconds
        wake_renewals()

    def renew(self, times: int = 1, *, first: float = 3, locks: int = 1) -> None:
        """Pass the time up to each of so many renewals, in each of which all locks are renewed."""
        for number in range(times):
            renewed = len(self.extensions) + locks
            self.advance(3 if number else first)
            until(lambda renewed=renewed: len(self.extensions) == renewed)  # type: ignore[misc]
            self.idle()

    def renew_another(self) -> None:
        """Renew another lock: then the service has done all that was due before."""
        with lock("order:2"):
            self.idle()
            self.renew()

    def idle(self) -> None:
        """Wait until the renewal service has done everything that is due now."""
        wake_renewals()  # a lease that is due later does not wake it

        def nothing_due() -> bool:
            checks = [
                held_lease.check_at
                for reference in renewal_service._schedule._leases.copy()
                if (held_lease := reference()) is not None
                and held_lease.backend is self.backend
                and not held_lease.ended
            ]
            return bool(checks) and min(checks) > self.now

        until(nothing_due)

    def pttls(self) -> set[int]:
        return {master.keyspace.pttl(KEY) for master in self.backend.masters}

    def left(self) -> int:
        """Return the number of masters that have the lock."""
        return sum(master.keyspace.get(KEY) is not None for master in self.backend.masters)

    def forget(self, masters: int) -> None:
        """Make the first masters forget the lock."""
        for master in self.backend.masters[:masters]:
            del master.keyspace.strings[KEY]


@pytest.fixture
def make(memory: Configure) -> Callable[..., World]:
    worlds: list[World] = []

    def set_up(**section: Any) -> World:
        worlds.append(World(memory(MASTERS=FIVE, TTL=9, **section)))
        return worlds[-1]

    taken: set[str] = set()  # locks of earlier tests may be reported as lost meanwhile

    def note(fingerprint: str, **_: Any) -> None:
        taken.add(fingerprint)

    def receive(fingerprint: str, reason: str, **_: Any) -> None:
        if fingerprint in taken:
            worlds[-1].lost.append(reason)

    lock_acquired.connect(note, weak=False)  # until the end of the test
    lock_lost.connect(receive, weak=False)
    return set_up


@pytest.fixture
def world(make: Callable[..., World]) -> World:
    return make()


def test_a_backend_with_another_clock_does_not_delay_a_renewal(
    world: World, settings: Settings
) -> None:
    settings.REDLOCK = {**settings.REDLOCK, "other": {"BACKEND": MEMORY, "MASTERS": FIVE}}
    world = World(locks["default"].backend)  # type: ignore[arg-type]
    with lock(R, using="other", ttl=60), lock(R):
        world.idle()
        world.advance(3)
        until(lambda: world.extensions == [3])


@in_both_ways
async def test_renews_at_a_third_of_the_ttl_until_the_release(way: SyncWay, world: World) -> None:
    async with way.block(lock(R)) as held:
        world.idle()
        world.advance(2.99)
        assert world.extensions == []
        for number in range(5):
            world.renew(first=0.01 if number == 0 else 3)
            assert world.pttls() == {9_000}
            assert held.remaining() == pytest.approx(9 * 0.99 - 0.002)
        assert world.extensions == [3, 6, 9, 12, 15]
    elsewhere(world.renew_another)
    assert world.extensions == [3, 6, 9, 12, 15, 18], "only the second lock's"
    assert world.left() == 0
    assert world.lost == []


def test_an_extension_that_leaves_after_the_release_heals_nothing(world: World) -> None:
    extend, released = world.backend.extend, threading.Event()

    def late(lease: Any, ttl: float) -> Any:
        if len(world.extensions) == 1:  # the extension that heals the masters that forgot the lock
            assert held.release()
            released.set()
        return extend(lease, ttl)

    world.backend.extend = late  # type: ignore[method-assign]
    held = lock(R, renew=True).acquire()
    held_lease: Any = held._held_lease
    world.idle()
    world.forget(2)
    world.advance(3)
    until(lambda: len(world.extensions) == 1)
    world.idle()
    world.advance(3)
    assert released.wait(60)
    until(lambda: len(world.extensions) == 2)
    until(lambda: held_lease.is_released_again)  # only now it may have healed
    until(lambda: world.left() == 0)
    assert world.lost == []


@pytest.mark.parametrize("renew", [None, False, "in a block"])
def test_only_blocks_renew_and_not_without_renew(world: World, renew: Any) -> None:
    in_block = renew == "in a block"
    held = lock(R, renew=False if in_block else renew)
    held.__enter__() if in_block else held.acquire()
    world.idle()
    world.advance(8)
    world.idle()
    assert world.extensions == []
    assert held.locked
    world.advance(1)
    until(lambda: world.lost == ["its lease expired"])
    until(lambda: world.left() == 0)


def test_a_lock_that_its_holder_extends_is_not_renewed_at_its_former_end(world: World) -> None:
    held = lock(R, renew=False).acquire()
    world.idle()
    world.advance(5)
    held.extend()
    world.advance(5)
    world.idle()
    assert world.extensions == [5]
    assert held.release() is True


def test_an_outage_shorter_than_the_ttl_is_survived(world: World) -> None:
    with lock(R) as held:
        world.backend.down = DOWN
        for _ in range(8):
            world.advance(1)
            world.idle()
        assert len(world.extensions) > 2, "the renewal must be repeated"
        held.ensure_held()
        assert held.remaining() == pytest.approx(0.908)
        world.backend.down = UP
        world.advance(0.5)
        until(lambda: held.remaining() > 8)
        world.idle()
        assert world.pttls() == {9_000}
    assert world.lost == []


def test_a_longer_outage_is_noticed_by_the_local_clock(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    with ends_lost(), lock(R) as held:
        world.backend.down = DOWN
        world.advance(8.9)
        world.idle()
        held.ensure_held()
        assert world.lost == []
        world.advance(0.1)
        until(lambda: world.lost == ["its lease expired"])  # without a call to the lock
        assert not held.locked
        with pytest.raises(LockLost):
            held.ensure_held()
        [record] = [r for r in caplog.records if r.levelno == logging.WARNING]
        assert record.getMessage() == "redlock order:1: the lock was lost: its lease expired"
    assert world.lost == ["its lease expired"]


@pytest.mark.parametrize("by", ["the renewal thread", "the holder"])
def test_a_loss_is_reported_before_its_keys_are_released(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, by: str
) -> None:
    release, logged = world.backend.post_release, []

    def post_release(lease: Any) -> None:
        logged.append([record.getMessage() for record in caplog.records])
        release(lease)

    monkeypatch.setattr(world.backend, "post_release", post_release)
    held = lock(R, renew=False).acquire()
    world.idle()
    if by == "the holder":
        world.now += 9
        assert not held.locked
    else:
        world.advance(9)
    until(lambda: world.left() == 0)
    assert logged == [["redlock order:1: the lock was lost: its lease expired"]]


def test_a_lock_that_is_renewed_before_its_acquisition_fails_is_released_everywhere(
    world: World,
) -> None:
    """A receiver takes long and is interrupted; meanwhile the lock came to two more masters."""

    def receive(**arguments: Any) -> None:
        world.backend.down = UP
        world.renew(2)  # the first renewal finds out which masters lack the lock
        assert world.left() == 5
        raise KeyboardInterrupt

    world.backend.down = [True, True, False, False, False]
    lock_acquired.connect(receive)
    with pytest.raises(KeyboardInterrupt):
        lock(R, renew=True).acquire()
    assert world.left() == 0


def test_a_lock_lost_to_a_majority_is_reported_at_the_next_renewal(world: World) -> None:
    with ends_lost(), lock(R) as held:
        world.forget(3)
        world.advance(3)
        until(lambda: world.lost == ["a majority of the masters lost it"])
        assert not held.locked
        # The remaining keys of a lost lock must be released.
        until(lambda: world.left() == 0)
        with pytest.raises(LockLost):
            held.ensure_held()


@pytest.mark.parametrize("of_task", [False, True])
def test_a_forgotten_lock_is_not_renewed(world: World, of_task: bool) -> None:
    held: Lock | None = lock(R, renew=True)
    assert held is not None
    asyncio.run(held.aacquire()) if of_task else held.acquire()
    world.idle()
    del held
    gc.collect()
    world.renew_another()
    assert world.extensions == [3], "only the second lock's"
    assert world.pttls() == {6_000}


@pytest.mark.parametrize("error", [RuntimeError, SystemExit])
def test_a_failing_extension_does_not_end_the_thread(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: type[BaseException],
) -> None:
    real = world.backend.extend
    failures: list[float] = []

    def fail(lease: Any, ttl: float) -> Any:
        if len(failures) < 2:
            failures.append(ttl)
            raise error
        return real(lease, ttl)

    monkeypatch.setattr(world.backend, "extend", fail)
    with lock(R) as held:
        thread = renewal_service._thread
        world.idle()
        for _ in range(6):
            world.advance(1)
            world.idle()
        assert len(failures) == 2
        assert renewal_service._thread is thread
        assert thread is not None
        assert thread.is_alive()
        assert held.remaining() > 5
    assert [r.getMessage() for r in caplog.records] == ["redlock: an extension failed"] * 2


def test_a_receiver_that_blocks_loses_no_other_lock(world: World) -> None:
    called, over = threading.Event(), threading.Event()

    def block(**arguments: Any) -> None:
        called.set()
        over.wait(60)

    lock_lost.connect(block)
    try:
        with lock("order:2") as held:
            expires = lock(R, ttl=2, renew=False).acquire()
            world.idle()
            world.advance(2)
            assert called.wait(60)
            world.renew(5, first=1)
            held.ensure_held()
            assert not expires.locked
    finally:
        over.set()
    until(lambda: world.lost == ["its lease expired"])


def test_a_receiver_that_exits_ends_neither_renewals_nor_signals(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    exits: list[str] = []

    def leave(resources: tuple[str, ...], **arguments: Any) -> None:
        exits.extend(resources)
        sys.exit(3)

    lock_lost.connect(leave)
    with lock("order:9") as held:
        for number in (1, 2):
            expires = lock(f"order:{number}", ttl=1, renew=False).acquire()
            world.idle()
            world.advance(1)
            until(lambda number=number: len(exits) == number)  # type: ignore[misc]
            assert not expires.locked
        world.idle()
        world.advance(1)
        until(lambda: world.extensions == [3])
        world.idle()
        held.ensure_held()
    assert exits == ["order:1", "order:2"]
    # It is logged by the thread for signals, after the receiver has run.
    until(lambda: caplog.text.count("a receiver of a signal ended its thread") == 2)


def test_signals_that_wait_for_a_slow_receiver_are_bounded(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("redlock_django.locking.signal_thread.MAX_PENDING", 2)
    called, over = threading.Event(), threading.Event()
    lost: list[str] = []

    def block(resources: tuple[str, ...], **arguments: Any) -> None:
        lost.extend(resources)
        called.set()
        over.wait(60)

    lock_lost.connect(block)
    held = [lock(f"r{number}", renew=False).acquire() for number in range(5)]
    try:
        world.idle()
        held.append(lock("r5", ttl=1, renew=False).acquire())
        world.idle()
        world.advance(1)
        assert called.wait(60)
        world.advance(9)
        until(lambda: caplog.text.count("a signal was not sent") == 3)
    finally:
        over.set()
    until(lambda: lost == ["r5", "r0", "r1"])
    assert not any(one.locked for one in held)


@pytest.mark.attack
def test_max_hold_ends_the_renewal(make: Callable[..., World]) -> None:
    world = make(MAX_HOLD=20)
    with ends_lost(), lock(R) as held:
        world.idle()
        for _ in range(19):
            world.advance(1)
            world.idle()
        assert held.locked
        latest = max(world.pttls())
        assert 19_000 + latest <= 20_000, "no key may outlive MAX_HOLD"
        world.advance(1)
        until(lambda: world.lost == ["MAX_HOLD was reached"])
        with pytest.raises(LockLost, match="MAX_HOLD"):
            held.ensure_held()
    until(lambda: world.left() == 0)  # it is released after it has been reported


def test_a_lock_on_another_clock_is_renewed_in_time(make: Callable[..., World]) -> None:
    def thread_sleeps() -> float:
        return renewal_service._schedule.wakes_at - clock()

    world = make(MAX_TTL=300)
    world.now = 5.0  # much earlier than any other clock
    with lock(R, ttl=300):
        # The thread now sleeps until the check of this lock, and still does after its release.
        until(lambda: 60 < thread_sleeps() <= 100)
    other = make()
    with lock(R) as held:
        until(lambda: thread_sleeps() <= 3, "the thread was woken for the second lock")
        other.advance(3)
        until(lambda: other.extensions == [3])
        held.ensure_held()


def test_a_lock_that_is_acquired_while_the_thread_looks_is_checked_in_time(world: World) -> None:
    schedule, woken = Schedule(), []
    later, sooner = lock(R, ttl=9).acquire(), lock("order:2", ttl=6).acquire()
    assert later._held_lease is not None
    new = [sooner._held_lease]

    def look() -> float:
        if new and (held_lease := new.pop()) is not None:
            woken.append(schedule.add(held_lease))
        return world.now

    schedule.add(later._held_lease)
    world.backend.now = look
    schedule.scan()
    assert woken == [True], "the thread, which is awake, looks again"
    due, left = schedule.scan()
    assert due == []
    assert left <= 6
    later.release()
    sooner.release()


def test_one_thread_renews_many_locks(world: World) -> None:
    lock(R).acquire().release()  # its thread runs; those of other services may, too
    before = [t.name for t in threading.enumerate()].count("redlock-renewal")
    held = [lock(f"r{number}", renew=True).acquire() for number in range(30)]
    world.idle()
    world.renew(4, locks=30)
    assert all(one.locked for one in held)
    for one in held:
        one.release()
    assert [t.name for t in threading.enumerate()].count("redlock-renewal") == before


def test_the_checks_of_released_locks_do_not_pile_up(world: World) -> None:
    kept = [lock(f"kept:{number}").acquire() for number in range(10)]
    for _ in range(300):
        lock(R, ttl=60).acquire().release()
    leases = renewal_service._schedule._leases.copy()
    alive = [held_lease for reference in leases if (held_lease := reference()) is not None]
    assert [held_lease.backend for held_lease in alive].count(world.backend) == 10
    del alive
    assert len(leases) < 50
    world.advance(9)
    until(lambda: not any(one.locked for one in kept))
    until(lambda: len(world.lost) == 10)


def test_short_locks_seldom_wake_the_thread(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks again a moment after it was woken, and its next check is later than that."""
    scan, looked = Schedule.scan, []

    def note(schedule: Schedule) -> Any:
        looked.append(schedule is renewal_service._schedule)
        return scan(schedule)

    monkeypatch.setattr(Schedule, "scan", note)
    began = time.monotonic()
    for _ in range(200):
        lock(R).acquire().release()
    # Not the wakes, of which there are many as long as a busy machine does not let the thread look.
    assert sum(looked) <= 10 * (1 + (time.monotonic() - began) / renewal.LINGER)


def test_many_leases_are_scanned_for_a_small_part_of_the_time(world: World) -> None:
    held = [lock(f"r{number}").acquire() for number in range(200)]
    schedule = Schedule()
    for one in held:
        assert one._held_lease is not None
        schedule.add(one._held_lease)
        one._held_lease.check_at = world.now + 1e-9
    due, left = schedule.scan()
    assert due == []
    assert left == pytest.approx(200 * renewal.SCAN_INTERVAL)
    for one in held:
        one.release()


def test_a_thread_that_cannot_start_is_tried_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    other = RenewalService()
    monkeypatch.setattr("redlock_django.locking.lock.renewal_service", other)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        with pytest.raises(RuntimeError):
            lock(R).acquire()
    assert world.left() == 0, "a lock that no thread can renew must not be acquired"
    with lock(R):
        assert other._thread is not None
        assert other._thread.is_alive()


@pytest.mark.parametrize("how", ["acquire", "acquire when it is overdue", "extend"])
def test_a_dead_thread_is_started_again(
    world: World, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    other = RenewalService()
    monkeypatch.setattr("redlock_django.locking.lock.renewal_service", other)
    monkeypatch.setattr(RenewalService, "_run", lambda self: None)
    held = lock(R, renew=True).acquire()
    assert other._thread is not None
    other._thread.join(60)
    monkeypatch.undo()
    monkeypatch.setattr("redlock_django.locking.lock.renewal_service", other)
    if "overdue" in how:
        other._schedule.wakes_at = clock() - 1.1
    if how == "extend":
        held.extend()
        world.extensions.clear()
    else:
        lock("order:2").acquire().release()
    world.now += 3
    other._wakeup.wake()
    until(lambda: world.extensions == [3])
    held.release()


def test_signals_whose_thread_cannot_start_are_sent_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused, signals, renewals = threading.Event(), SignalThread(), RenewalService()
    start = threading.Thread.start

    def fail(self: threading.Thread) -> None:
        if self.name != "redlock-signals":
            return start(self)
        refused.set()
        raise RuntimeError("can't start new thread")

    # The threads of earlier tests may still run: these have threads of their own.
    monkeypatch.setattr("redlock_django.locking.lock.renewal_service", renewals)
    monkeypatch.setattr(f"{__name__}.renewal_service", renewals)
    for module in ("renewal", "reports"):
        monkeypatch.setattr(f"redlock_django.locking.{module}.signal_thread", signals)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        expires = lock(R, renew=False).acquire()
        world.idle()
        world.advance(9)
        assert refused.wait(60)
        assert world.lost == []
    until(lambda: world.lost == ["its lease expired"])
    assert not expires.locked

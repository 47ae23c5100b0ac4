"""`Lock`, with five masters in this process and a clock that the tests control."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import inspect
import logging
import os
import sys
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from types import FrameType
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from pytest_django import Settings

from redlock_django import BadName, lock, lock_resource, locks
from redlock_django.backends.memory.backend import MemoryBackend
from redlock_django.backends.memory.master import MemoryMaster
from redlock_django.backends.redis.backend import RedlockBackend
from redlock_django.engine.inspection.holders import holder_of
from redlock_django.exceptions import (
    AlreadyHeld,
    BadResource,
    InvalidRedlock,
    LockLost,
    NotHeld,
    QuorumUnreachable,
    ResourceLocked,
)
from redlock_django.locking import caller
from redlock_django.locking.lease import HeldLease
from redlock_django.locking.lock import Lock
from redlock_django.locking.reports import counters
from redlock_django.signals import lock_acquired, lock_lost, lock_refused, lock_released
from tests.app.conftest import FIVE, MEMORY, Configure, elsewhere, stop_clocks
from tests.app.ways import SyncWay, in_both_ways

MOST = RedlockBackend.max_resources
advance = MemoryBackend.advance
R = "order:1"


@pytest.fixture
def configure(memory: Configure) -> Configure:
    """Return a function that sets REDLOCK, and stops the clocks of the store and its masters."""

    def set_up(**section: Any) -> MemoryBackend:
        backend = memory(MASTERS=FIVE, **section)
        stop_clocks()
        backend.sleep = advance
        return backend

    return set_up


@pytest.fixture(autouse=True)
def backend(configure: Configure, no_renewals: None) -> MemoryBackend:
    return configure()


SentSignals = list[dict[str, Any]]
SIGNALS = {
    lock_acquired: "acquired",
    lock_refused: "refused",
    lock_released: "released",
    lock_lost: "lost",
}


@pytest.fixture
def sent_signals(hear: Callable[..., SentSignals]) -> SentSignals:
    """Every signal about locks, in order, with its arguments."""
    return hear(*SIGNALS)


def names(sent_signals: SentSignals) -> list[str]:
    return [SIGNALS[one["signal"]] for one in sent_signals]


def keys(backend: MemoryBackend, resource: str = R) -> list[str]:
    """Return the value of the lock on each master that has it."""
    found = [master.keyspace.get(backend.deployment.lock(resource)) for master in backend.masters]
    return [value.decode() for value in found if value is not None]


def pttls(backend: MemoryBackend, resource: str = R) -> set[int]:
    return {master.keyspace.pttl(backend.deployment.lock(resource)) for master in backend.masters}


def steal(backend: MemoryBackend, masters: int, resource: str = R) -> None:
    """Store another client's lock on the first masters."""
    for master in backend.masters[:masters]:
        master.keyspace.set(backend.deployment.lock(resource), b"another client", 30_000)


# Acquire and release.


@in_both_ways
async def test_a_block_holds_and_frees(way: SyncWay, backend: MemoryBackend) -> None:
    async with way.block(lock(R)) as held:
        assert isinstance(held, Lock)
        assert held.locked
        assert len(keys(backend)) == 5
        assert held.remaining() == pytest.approx(10 - 0.102)
        held.ensure_held()
        assert repr(held) == "<Lock 'order:1' using 'default', held>"
    assert keys(backend) == []
    assert (held.locked, held.remaining()) == (False, 0)
    assert repr(held) == "<Lock 'order:1' using 'default', not held>"


def test_the_function_and_the_class_have_the_same_parameters() -> None:
    parameters = inspect.signature(lock).parameters
    assert parameters == inspect.signature(Lock).parameters
    assert list(parameters) == [
        "resources", "using", "ttl", "wait", "renew", "reentrant", "until_commit",
        "min_hold", "holder", "limit",
    ]  # fmt: skip


@in_both_ways
async def test_release_twice_and_without_acquire_is_false(
    way: SyncWay, sent_signals: SentSignals
) -> None:
    held = lock(R)
    assert await way.release(held) is False
    await way.acquire(held)
    await way.settle()
    assert await way.release(held) is True
    assert await way.release(held) is False
    assert names(sent_signals) == ["acquired", "released"]


@pytest.mark.parametrize("use", ["fence", "fences", "fingerprint", "ensure_held"])
def test_calls_that_need_a_lock_raise_not_held(use: str) -> None:
    held = lock(R)
    with pytest.raises(NotHeld, match="order:1: this lock is not held") as caught:
        getattr(held, use)()
    assert caught.value.resource == R


@in_both_ways
async def test_what_is_not_held_is_not_extended_or_verified(way: SyncWay) -> None:
    for use in (way.extend, way.verify):
        with pytest.raises(NotHeld, match="order:1: this lock is not held") as caught:
            await use(lock(R))
        assert caught.value.resource == R


@in_both_ways
async def test_a_lock_that_another_client_holds_is_refused(
    way: SyncWay, backend: MemoryBackend
) -> None:
    steal(backend, 3)
    with pytest.raises(ResourceLocked) as caught:
        await way.acquire(lock(R))
    assert caught.value.resource == R
    assert caught.value.retry_after == pytest.approx(30)
    assert len(caught.value.tally) == 5
    assert len(keys(backend)) == 3, "the keys that the refused round set must be gone"


@pytest.fixture
def no_garbage_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@in_both_ways
async def test_a_refusal_leaves_nothing_to_the_garbage_collector(
    way: SyncWay, backend: MemoryBackend, no_garbage_collector: None
) -> None:
    steal(backend, 3)
    try:
        await way.acquire(lock(R))
    except ResourceLocked as error:
        refusal = weakref.ref(error)
    assert refusal() is None


@pytest.mark.parametrize(("wait", "waited"), [(3, 3), (None, 2)])
def test_a_waiter_gives_up_after_its_wait_or_that_of_the_settings(
    configure: Configure, wait: float | None, waited: float
) -> None:
    backend = configure(WAIT=2)
    steal(backend, 5)
    began = backend.clock()
    with pytest.raises(ResourceLocked):
        lock(R, wait=wait).acquire()
    assert backend.clock() - began == pytest.approx(waited, abs=0.2)


def test_using_selects_the_alias(settings: Settings) -> None:
    settings.REDLOCK = {
        "default": {"BACKEND": MEMORY},
        "payments": {"BACKEND": MEMORY, "TTL": 5, "MASTERS": FIVE[:3]},
    }
    with lock(R), lock(R, using="payments") as held:
        assert held.remaining() < 5
    with pytest.raises(InvalidRedlock, match="there is no alias 'paymnets'"):
        lock(R, using="paymnets")


# Several resources.


@pytest.mark.parametrize("resources", [("order:1", "user:7"), ("user:7", "order:1")])
def test_several_resources_are_asked_for_in_one_order(
    backend: MemoryBackend, resources: tuple[str, str]
) -> None:
    # Otherwise, of two waiters for both, each could be granted the turn at a different resource.
    for resource in resources:
        steal(backend, 3, resource)
    with pytest.raises(ResourceLocked) as refused:
        lock(*resources).acquire()
    assert refused.value.resource == "order:1"


# Continuing without a lock.


@in_both_ways
async def test_proceed_runs_unlocked(
    way: SyncWay, configure: Configure, sent_signals: SentSignals, caplog: pytest.LogCaptureFixture
) -> None:
    backend = configure(ON_UNAVAILABLE="proceed")
    backend.down = [True] * 5
    async with way.block(lock(R)) as held:
        assert not held.locked
        assert held.remaining() == 0
        held.ensure_held()
        for name in ("fence", "slot"):
            with pytest.raises(NotHeld):
                getattr(held, name)
    assert await way.release(held) is False
    await way.settle()
    [record] = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert "WITHOUT a lock" in record.getMessage()
    assert record.__dict__["resource"] == R
    assert names(sent_signals) == ["refused"]
    backend.down = [False] * 5
    async with way.block(held):
        assert held.locked, "a Lock object that continued without a lock must be able to lock later"
    with pytest.raises(NotHeld):
        held.ensure_held()


def test_proceed_still_refuses_a_held_resource(configure: Configure) -> None:
    backend = configure(ON_UNAVAILABLE="proceed")
    steal(backend, 3)
    with pytest.raises(ResourceLocked):
        lock(R).acquire()


# Acquiring a resource that is held already.


@in_both_ways
async def test_acquiring_again_suggests_reentrant(
    way: SyncWay, backend: MemoryBackend, sent_signals: SentSignals
) -> None:
    async with way.block(lock(R)) as outer:
        await way.settle()
        before = keys(backend)
        with pytest.raises(AlreadyHeld, match="reentrant=True") as caught:
            await way.acquire(lock(R))
        assert caught.value.resource == R
        assert keys(backend) == before
        outer.ensure_held()
    assert names(sent_signals) == ["acquired", "released"]


def test_acquiring_again_with_the_same_object_keeps_the_lock(backend: MemoryBackend) -> None:
    held = lock(R, reentrant=True).acquire()
    before = keys(backend)
    with pytest.raises(AlreadyHeld, match="this Lock object holds it"):
        held.acquire()
    assert keys(backend) == before
    assert held.release() is True


@in_both_ways
async def test_reentrant_is_counted(
    way: SyncWay, backend: MemoryBackend, sent_signals: SentSignals
) -> None:
    async with way.block(lock(R, reentrant=True)) as outer:
        await way.settle()
        async with way.block(lock(R, reentrant=True)) as inner:
            assert inner.fence == outer.fence
            async with way.block(lock(R, reentrant=True)) as innermost:
                innermost.ensure_held()
            assert len(keys(backend)) == 5
        assert await way.release(inner) is False
        assert not inner.locked
        outer.ensure_held()
        assert len(keys(backend)) == 5
    assert keys(backend) == []
    assert names(sent_signals) == ["acquired", "released"]


@in_both_ways
async def test_a_reentrant_lock_nests_in_a_lock_that_is_not(
    way: SyncWay, backend: MemoryBackend
) -> None:
    outer = await way.acquire(lock(R))
    inner = await way.acquire(lock(R, reentrant=True))
    assert await way.release(outer) is False, "the inner lock still holds it"
    assert len(keys(backend)) == 5
    inner.ensure_held()
    assert await way.release(inner) is True


def test_a_forgotten_lock_leaves_the_lock_inside_or_around_it(backend: MemoryBackend) -> None:
    with lock(R) as outer:
        lock(R, reentrant=True).acquire()
        gc.collect()
        assert outer.locked
        assert outer.release() is True
    forgotten = [lock(R).acquire()]
    inner = lock(R, reentrant=True).acquire()
    forgotten.clear()
    gc.collect()
    inner.ensure_held()
    assert inner.release() is True
    assert keys(backend) == []


def test_reentrant_takes_a_subset_but_not_more(backend: MemoryBackend) -> None:
    with lock("a", "b") as outer:
        with pytest.raises(ValueError, match=r"use fences\[resource\]"):
            _ = outer.fence
        with lock("b", reentrant=True) as inner:
            assert inner.fences == {"b": outer.fences["b"]}
        assert len(keys(backend, "a")) == len(keys(backend, "b")) == 5
        outer.ensure_held()
        with pytest.raises(AlreadyHeld) as caught:
            lock("b", "c", reentrant=True).acquire()
        assert caught.value.resource == "b"
        with lock("c"), pytest.raises(AlreadyHeld, match="one outer lock"):
            lock("b", "c", reentrant=True).acquire()
        with lock("c", "d"):
            pass
    assert keys(backend, "a") == keys(backend, "b") == []


async def test_another_task_is_refused_although_reentrant() -> None:
    async with lock(R):
        with pytest.raises(ResourceLocked):
            await asyncio.create_task(lock(R, reentrant=True).aacquire())


def test_another_thread_is_refused_although_reentrant() -> None:
    with lock(R), pytest.raises(ResourceLocked):
        elsewhere(lock(R, reentrant=True).acquire)


# Reentrant locks in sync code that asgiref runs in one thread for all tasks.


def acquire_reentrant() -> Lock:
    return lock(R, reentrant=True).acquire()


def nests() -> bool:
    """Return whether a reentrant lock shares the lease of an outer one, and release it."""
    try:
        acquire_reentrant().release()
    except ResourceLocked:
        return False
    return True


@pytest.mark.parametrize("reentrant", [True, False])
async def test_another_task_in_the_same_thread_is_refused(reentrant: bool) -> None:
    acquired, checked = asyncio.Event(), asyncio.Event()

    async def first() -> None:
        held = await sync_to_async(acquire_reentrant)()
        acquired.set()
        await checked.wait()
        held.ensure_held()
        assert await sync_to_async(held.release)()

    async def second() -> None:
        await acquired.wait()
        with pytest.raises(ResourceLocked):
            await sync_to_async(lock(R, reentrant=reentrant).acquire)()
        checked.set()

    await asyncio.gather(first(), second())
    assert await sync_to_async(nests)()


async def test_another_call_is_refused_although_it_copies_the_context() -> None:
    held = await sync_to_async(acquire_reentrant)()
    assert await asyncio.create_task(sync_to_async(nests)()) is False
    assert await asyncio.gather(*(sync_to_async(nests)() for _ in range(3))) == [False] * 3
    # A later call of the same task cannot be told from that of a child task.
    assert await sync_to_async(nests)() is False
    assert await sync_to_async(held.release)()


async def test_sync_code_nests_within_one_call() -> None:
    def view() -> list[bool]:
        with lock(R), lock(R, reentrant=True):
            return [nests(), contextvars.copy_context().run(nests)]

    assert await sync_to_async(view)() == [True, True]


def within_async_code(outer: Callable[[], Any]) -> None:
    async def middleware() -> Any:
        return await sync_to_async(outer)()

    async_to_sync(middleware)()


SERVERS = pytest.mark.parametrize("server", ["wsgi", "asgi"])


def run_in(server: str, view: Callable[[], None]) -> None:
    """Call a sync view as a server does."""
    if server == "wsgi":
        view()
    else:
        asyncio.run(sync_to_async(view)())


@SERVERS
def test_sync_code_nests_across_async_code_that_it_waits_for(
    backend: MemoryBackend, server: str
) -> None:
    """As a sync middleware, an async one and a sync view do."""
    nested: list[bool] = []

    def view() -> None:
        within_async_code(lambda: None)  # asgiref then remembers that call, which is over
        with lock(R):
            within_async_code(lambda: nested.append(nests()))
            within_async_code(lambda: within_async_code(lambda: nested.append(nests())))
            nested.append(nests())

    run_in(server, view)
    assert nested == [True, True, True]
    assert keys(backend) == []


async def in_child_task() -> bool:
    return await asyncio.create_task(sync_to_async(nests)())


async def in_two_child_tasks() -> bool:
    return any(await asyncio.gather(sync_to_async(nests)(), sync_to_async(nests)()))


async def in_child_task_beside_a_call() -> bool:
    """While its parent waits for a call of its own."""
    nested: list[bool] = []

    async def child() -> None:
        nested.append(await sync_to_async(nests)())

    task = asyncio.create_task(child())
    assert await sync_to_async(nests)()
    await task
    return nested != [False]


@SERVERS
@pytest.mark.parametrize(
    "children", [in_child_task, in_two_child_tasks, in_child_task_beside_a_call]
)
def test_a_child_task_of_code_that_sync_code_waits_for_is_refused(
    backend: MemoryBackend, children: Callable[[], Awaitable[bool]], server: str
) -> None:
    def view() -> None:
        with lock(R):
            assert async_to_sync(children)() is False
            assert nests()

    run_in(server, view)
    assert keys(backend) == []


def test_a_child_task_nests_in_a_lock_of_its_own() -> None:
    def view() -> bool:
        with lock("order:2"), lock("order:2", reentrant=True) as inner:
            return inner.locked

    async def children() -> bool:
        return await asyncio.create_task(sync_to_async(view)())

    with lock(R):
        assert async_to_sync(children)()


def leases_remembered() -> int:
    return len(caller._acquired_here.get())


def test_a_context_keeps_no_locks_that_have_ended() -> None:
    before = leases_remembered()
    for number in range(20):
        one = lock(f"order:{number}").acquire()
        if number % 2:
            elsewhere(one.release)
    advance(20)
    with lock(R):
        assert leases_remembered() <= before + 4  # twice as many as were held at one time


@pytest.mark.parametrize("order", [1, -1], ids=["first in, first out", "last in, first out"])
def test_a_context_forgets_many_locks(order: int) -> None:
    with lock("held:throughout"):
        for _ in range(3):
            held = [lock(f"order:{number}").acquire() for number in range(50)]
            for one in held[::order]:
                one.release()
            assert leases_remembered() <= 2 * 51
    assert leases_remembered() == 0


def steps_of_caller(work: Callable[[], Any]) -> int:
    """Return how many instructions of the interpreter `work` executes in `caller`."""
    steps = 0

    def count(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal steps
        if frame.f_code.co_filename != caller.__file__:
            return None
        frame.f_trace_opcodes = True
        steps += event == "opcode"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        work()
    finally:
        sys.settrace(before)
    return steps


@pytest.mark.parametrize("order", [1, -1], ids=["first in, first out", "last in, first out"])
def test_many_locks_of_a_thread_cost_as_much_as_few_each(order: int) -> None:
    def per_lock(many: int) -> float:
        held = [lock(f"order:{number}") for number in range(many)]
        nested = [lock(f"order:{number}", reentrant=True) for number in range(many)]

        def work() -> None:
            for one in (*held, *nested):
                one.acquire()
            for one in (*nested, *held)[::order]:
                one.release()

        return steps_of_caller(work) / many

    assert per_lock(200) < 2 * per_lock(10)


def test_a_lost_lock_can_be_acquired_again() -> None:
    first = lock(R).acquire()
    advance(20)
    with lock(R) as second:
        assert second.locked
        assert not first.locked
        assert first.release() is False
        second.ensure_held()


# Inside a running loop.


async def test_sync_calls_refuse_inside_a_loop(backend: MemoryBackend, sent: list[str]) -> None:
    held = lock(R)
    with pytest.raises(SynchronousOnlyOperation, match="async with"):
        held.acquire()
    with pytest.raises(SynchronousOnlyOperation), held:
        pass
    assert sent == []
    await held.aacquire()
    with pytest.raises(SynchronousOnlyOperation):
        held.extend()
    held.release()  # allowed, because it never blocks
    assert keys(backend) == []


# Loss.


def test_lost_when_its_lease_expires(
    backend: MemoryBackend, sent_signals: SentSignals, caplog: pytest.LogCaptureFixture
) -> None:
    held = lock(R).acquire()
    fingerprint, time_held = held.fingerprint, pytest.approx(9.899)
    advance(9.897)
    held.ensure_held()
    advance(0.002)
    assert not held.locked
    assert held.remaining() == 0
    for _ in range(2):
        with pytest.raises(LockLost, match="its lease expired") as caught:
            held.ensure_held()
    assert caught.value.resource == R
    with pytest.raises(LockLost):
        held.extend()
    assert held.release() is False
    assert keys(backend) == [], "the remaining keys must be released"
    assert names(sent_signals) == ["acquired", "lost"]
    assert sent_signals[1] == {
        "signal": lock_lost,
        "sender": Lock,
        "using": "default",
        "resources": (R,),
        "fingerprint": fingerprint,
        "holder": {},
        "held": time_held,
        "reason": "its lease expired",
    }
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    logged = vars(record)
    assert (logged["resource"], logged["using"], logged["held"]) == (R, "default", time_held)
    assert (logged["fingerprint"], logged["reason"]) == (fingerprint, "its lease expired")
    assert not {"waited", "master"} & logged.keys()


@in_both_ways
async def test_a_lock_that_another_client_acquired_is_not_extended(
    way: SyncWay, backend: MemoryBackend, sent_signals: SentSignals
) -> None:
    held = await way.acquire(lock(R))
    steal(backend, 3)
    with pytest.raises(LockLost, match="a majority of the masters lost it"):
        await way.extend(held)
    await way.settle()
    assert keys(backend) == ["another client"] * 3, "it is left alone"
    assert names(sent_signals) == ["acquired", "lost"]


def test_extend_without_quorum_keeps_the_remaining_time(backend: MemoryBackend) -> None:
    held = lock(R).acquire()
    backend.down = [True] * 3 + [False] * 2
    advance(4)
    assert held.remaining() == pytest.approx(5.898)
    assert held.extend() == pytest.approx(5.898)
    backend.down = [False] * 5
    assert held.extend() == pytest.approx(9.898)
    assert pttls(backend) == {10_000}


def test_extend_never_shortens(backend: MemoryBackend) -> None:
    held = lock(R).acquire()
    advance(1)
    assert held.extend(0.6) == pytest.approx(8.898)
    assert pttls(backend) == {9_000}, "the validity granted by acquire() must not be shortened"
    with pytest.raises(ResourceLocked):
        elsewhere(lock(R).acquire)


def test_release_of_a_lock_that_a_majority_forgot_is_a_loss(
    backend: MemoryBackend, sent_signals: SentSignals
) -> None:
    held = lock(R).acquire()
    steal(backend, 3)
    assert held.release() is False
    assert names(sent_signals) == ["acquired", "lost"]
    assert keys(backend) == ["another client"] * 3
    counts = counters["default"]
    assert (counts.lost, counts.released_late, counts.released) == (1, 1, 0)


def test_release_without_quorum_is_unknown(
    backend: MemoryBackend, sent_signals: SentSignals
) -> None:
    held = lock(R).acquire()
    backend.down = [True] * 3 + [False] * 2
    assert held.release() is False
    assert names(sent_signals) == ["acquired", "released"]


# Signals.


@in_both_ways
async def test_the_signals_have_their_arguments(
    way: SyncWay, backend: MemoryBackend, sent_signals: SentSignals
) -> None:
    steal(backend, 3, "other")
    async with way.block(lock("a", "b", holder={"path": "/x/"})) as held:
        fingerprint = held.fingerprint
        with pytest.raises(ResourceLocked, match=r"^other: held by another client") as caught:
            await way.acquire(lock("other", holder={"path": "/y/"}))
        assert caught.value.retry_after == 30, "as long as the lock of the other program lasts"
        await way.settle()
    said = {"sender": Lock, "using": "default"}
    ours = {"resources": ("a", "b"), "fingerprint": fingerprint, "holder": {"path": "/x/"}}
    theirs = {"resources": ("other",), "holder": {"path": "/y/"}, "waited": 0.0}
    why = {"reason": str(caught.value), "error": caught.value}
    assert sent_signals == [
        {"signal": lock_acquired, **said, **ours, "waited": 0.0},
        {"signal": lock_refused, **said, **theirs, **why},
        {"signal": lock_released, **said, **ours, "held": 0.0, "freed": True},
    ]
    backend.down = [True] * 5
    with pytest.raises(QuorumUnreachable) as missing:
        await way.acquire(lock("other"))
    await way.settle()
    assert names(sent_signals)[3] == "refused"
    assert sent_signals[3]["error"] is missing.value


def test_signals_reach_their_receivers_before_a_short_loop_ends(sent_signals: SentSignals) -> None:
    """Under WSGI every async view runs in its own loop."""

    async def receive(**arguments: Any) -> None:
        heard.append("released")

    async def view() -> None:
        async with lock(R):
            await asyncio.sleep(0)  # as any real backend does, even to acquire the lock

    heard: list[str] = []
    lock_released.connect(receive)
    runs: list[Callable[[], None]] = [lambda: asyncio.run(view()), async_to_sync(view)]
    for run in runs:
        for _ in range(10):
            sent_signals.clear()
            heard.clear()
            run()
            assert names(sent_signals) == ["acquired", "released"]
            assert heard == ["released"]


@in_both_ways
async def test_async_receivers_are_called(way: SyncWay) -> None:
    heard: list[str] = []

    async def receive(using: str, **_: Any) -> None:
        heard.append(using)

    for signal in (lock_acquired, lock_released):
        signal.connect(receive)
    async with way.block(lock(R)):
        await way.settle()
        assert heard == ["default"]
    await way.settle()
    assert heard == ["default"] * 2


def test_a_receiver_may_take_locks_itself() -> None:
    taken = []

    def audit(resources: tuple[str, ...], **_: Any) -> None:
        if not resources[0].startswith("audit:"):
            with lock(f"audit:{resources[0]}") as held:
                taken.append(held.locked)

    lock_acquired.connect(audit)
    lock_released.connect(audit)
    with lock(R):
        pass
    assert taken == [True, True]


@in_both_ways
async def test_a_failing_receiver_breaks_nothing(
    way: SyncWay,
    backend: MemoryBackend,
    sent_signals: SentSignals,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(**arguments: Any) -> None:
        raise RuntimeError("the receiver failed")

    for signal in SIGNALS:
        signal.connect(fail)
    steal(backend, 3, "other")
    async with way.block(lock(R)) as held:
        with pytest.raises(ResourceLocked):
            await way.acquire(lock("other"))
        await way.settle()
    assert (await way.acquire(held)).locked
    advance(20)
    assert not held.locked
    await way.settle()
    assert keys(backend) == []
    assert names(sent_signals) == ["acquired", "refused", "released", "acquired", "lost"]
    said = [r for r in caplog.records if "a receiver of a redlock signal" in r.getMessage()]
    assert [(r.name, r.levelname) for r in said] == [("redlock_django", "ERROR")] * 5
    assert all("the receiver failed" in str(r.exc_info) for r in said)


def test_a_receiver_that_ends_the_program_leaves_no_lock(backend: MemoryBackend) -> None:
    def leave(**arguments: Any) -> None:
        raise SystemExit(3)

    lock_acquired.connect(leave)
    with pytest.raises(SystemExit):
        lock(R).acquire()
    lock_acquired.disconnect(leave)
    assert keys(backend) == []
    with lock(R):
        pass


def test_a_loss_noticed_twice_at_once_is_reported_once(sent_signals: SentSignals) -> None:
    both = threading.Barrier(2)

    class Watched(HeldLease):
        """Both threads read that the lease is not lost before either continues."""

        @property
        def loss_reason(self) -> str:
            reason = getattr(self, "reason", "")
            if not reason:
                both.wait(60)
            return reason

        @loss_reason.setter
        def loss_reason(self, reason: str) -> None:
            self.reason = reason

    held = lock(R).acquire()
    assert held._held_lease is not None
    lease, parameters = held._held_lease.lease, held._arguments
    hold = Watched(locks["default"], lease, held, parameters, in_block=False)
    sent_signals.clear()
    threads = [threading.Thread(target=hold.mark_lost, args=("for a test",)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert names(sent_signals) == ["lost"]


# Exceptions of the body of a block.


class OwnError(Exception):
    """An exception that the body of a block raises."""


@in_both_ways
async def test_the_bodys_exception_wins_over_a_failing_release(
    way: SyncWay,
    backend: MemoryBackend,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(lease: object) -> bool:
        raise RuntimeError("release is broken")

    monkeypatch.setattr(backend, "post_release", backend.release)
    monkeypatch.setattr(backend, "release", fail)
    monkeypatch.setattr(backend, "arelease", fail)
    with pytest.raises(OwnError):
        async with way.block(lock(R)):
            raise OwnError
    assert [r.getMessage() for r in caplog.records] == ["redlock order:1: the release failed"]
    async with way.block(lock("order:2")):
        pass  # a failing release does not raise without an exception of the body either
    assert keys(backend) == [], "a release that failed must be posted again"


def test_an_interrupted_release_is_posted_again(
    backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = backend.release
    calls = []

    def interrupted(lease: Any) -> bool | None:
        calls.append(lease)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return real(lease)

    monkeypatch.setattr(backend, "release", interrupted)
    with pytest.raises(KeyboardInterrupt), lock(R):
        pass
    assert keys(backend) == []


# Bad input: a typed error, and nothing is sent to any master.


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the commands that were sent to the masters."""
    said: list[str] = []
    real = MemoryMaster.say

    def say(self: MemoryMaster, command: Any, *args: Any) -> Any:
        said.append(command.name)
        return real(self, command, *args)

    monkeypatch.setattr(MemoryMaster, "say", say)
    return said


def test_the_spy_sees_the_commands_sent(sent: list[str]) -> None:
    with lock(R):
        pass
    assert sent == ["acquire"] * 5 + ["release"] * 5


BAD_SECONDS: list[Any] = [
    -1,
    -0.001,
    float("nan"),
    float("inf"),
    True,
    False,
    "10",
    b"10",
    1j,
    [1],
    timedelta(-1),
]


@pytest.mark.attack
@pytest.mark.parametrize(
    "ttl", [*BAD_SECONDS, 0, 0.0001, 0.099, 60.001, timedelta(0), timedelta(minutes=2)]
)
@in_both_ways
async def test_a_bad_ttl_is_refused(way: SyncWay, ttl: Any, sent: list[str]) -> None:
    with pytest.raises(ValueError, match="ttl"):
        lock(R, ttl=ttl)
    held = await way.acquire(lock(R))
    sent.clear()
    with pytest.raises(ValueError, match="ttl"):
        await way.extend(held, ttl)
    assert sent == []
    held.ensure_held()


BAD_NAMES: list[Any] = ["", "a b", "x" * 10_240, "\ud800", None, b"order:1", ["order:1"]]
REFUSED: list[tuple[tuple[Any, ...], dict[str, Any], type[Exception], str]] = [
    *(((R,), {"wait": wait}, ValueError, "wait") for wait in [*BAD_SECONDS, 1e10, timedelta.max]),
    ((R,), {"ttl": 20}, ValueError, "ttl is 20 s and MAX_HOLD is 15 s"),
    ((R,), {"min_hold": -1}, ValueError, "min_hold must be at least 0 s, got -1"),
    ((R,), {"min_hold": "5"}, ValueError, "min_hold must be a number of seconds or a timedelta"),
    ((R,), {"min_hold": 5, "ttl": 4}, ValueError, "min_hold is 5 s and ttl is 4 s"),
    *(
        ((R,), {"limit": limit}, ValueError, "limit must be a whole number from 1 to 1,000, got")
        for limit in (0, -1, True, 2.0, "3", 1001)
    ),
    (("a", "b"), {"limit": 3}, InvalidRedlock, "limit=3 needs one name, got 2"),
    (("x" * 508,), {"limit": 3}, BadName, "at most 507 are allowed with a limit"),
    *(((name,), {}, BadResource, "resource") for name in BAD_NAMES),  # more: test_names.py
    *((("order:1", name), {}, BadResource, "resource") for name in BAD_NAMES),
    ((), {}, BadResource, "1 to 100 resources, got 0"),
    (("a", "a"), {}, BadResource, "twice"),
    (("caf\u00e9", "cafe\u0301"), {}, BadResource, "twice"),
    (
        tuple(f"r{number}" for number in range(MOST + 1)),
        {},
        BadResource,
        "1 to 100 resources, got 101",
    ),
]
"""The arguments of a lock, and the error."""


@pytest.mark.attack
@pytest.mark.parametrize(
    ("names", "arguments", "error", "says"), REFUSED, ids=lambda part: ascii(part)[:20]
)
def test_bad_arguments_are_refused_and_nothing_is_sent(
    configure: Configure,
    sent: list[str],
    names: tuple[Any, ...],
    arguments: dict[str, Any],
    error: type[Exception],
    says: str,
) -> None:
    configure(MAX_HOLD=15)
    with pytest.raises(error, match=says):
        lock(*names, **arguments)
    assert sent == []


def test_as_many_resources_as_allowed(backend: MemoryBackend) -> None:
    with lock(*(f"r{number}" for number in range(MOST))):
        assert len(keys(backend, "r99")) == 5


# The clock.


def test_the_real_clock_is_not_the_wall_clock(
    memory: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory(MASTERS=FIVE)
    with lock(R) as held:
        monkeypatch.setattr(time, "time", lambda: 0.0)
        monkeypatch.setattr(time, "time_ns", lambda: 0)
        assert 0 < held.remaining() < 9.9


# Every call honours its TTL.


TTLS = pytest.mark.parametrize("ttl", [3, 2.5, timedelta(seconds=7), 0.75])


def milliseconds(ttl: Any) -> int:
    return round(1000 * (ttl.total_seconds() if isinstance(ttl, timedelta) else ttl))


@TTLS
@in_both_ways
async def test_every_call_honours_its_ttl(way: SyncWay, backend: MemoryBackend, ttl: Any) -> None:
    wanted = {milliseconds(ttl)}
    left = pytest.approx(milliseconds(ttl) / 1000 * 0.99 - 0.002)
    async with way.block(lock(R, ttl=ttl)):
        assert pttls(backend) == wanted
    for first, extension in ((ttl, None), (0.6, ttl)):
        held = lock(R, ttl=first)
        assert await way.acquire(held) is held
        assert pttls(backend) == {milliseconds(first)}
        assert await way.extend(held, extension) == left
        assert pttls(backend) == wanted
        assert await way.release(held) is True
        assert keys(backend) == []


@TTLS
@pytest.mark.django_db
def test_a_decorator_honours_its_ttl(backend: MemoryBackend, ttl: Any) -> None:
    seen: list[set[int]] = []

    def view(request: HttpRequest) -> HttpResponse:
        seen.append(pttls(backend))
        return HttpResponse()

    async def async_view(request: HttpRequest) -> HttpResponse:
        return view(request)

    locked, request = lock_resource(R, ttl=ttl), RequestFactory().get("/")
    assert locked(view)(request).status_code == 200
    assert async_to_sync(locked(async_view))(request).status_code == 200
    assert seen == [{milliseconds(ttl)}] * 2


def test_the_ttl_of_the_settings(configure: Configure) -> None:
    backend = configure(TTL=timedelta(seconds=4))
    with lock(R) as held:
        assert pttls(backend) == {4_000}
        assert held.remaining() == pytest.approx(3.958)


# MAX_HOLD.


def test_extend_stops_at_max_hold(configure: Configure, sent_signals: SentSignals) -> None:
    backend = configure(MAX_HOLD=15)
    held = lock(R).acquire()
    advance(9)
    assert held.extend() == pytest.approx(6 * 0.99 - 0.002)
    assert pttls(backend) == {6_000}
    advance(5)
    assert held.extend() == pytest.approx(0.988)
    advance(0.999)
    with pytest.raises(LockLost):
        held.extend()
    assert keys(backend) == []
    assert names(sent_signals) == ["acquired", "lost"]


def test_the_holder_is_stored_with_the_token(backend: MemoryBackend) -> None:
    with lock(R, holder={"user": "ann\n\x00", "path": "/pay/" + "x" * 1000}):
        [value] = set(keys(backend))
    token, _, about = value.partition(" ")
    assert len(token) == 32
    assert int(token, 16)
    assert '"user":"ann\\n\\u0000"' in about
    assert len(about) < 500
    assert about.isprintable()


def test_the_registry_forgets_released_locks(backend: MemoryBackend) -> None:
    for number in range(50):
        with lock(f"r{number}"):
            assert [key[1] for key in caller._held_leases if key[0] is backend] == [f"r{number}"]
    assert [key for key in caller._held_leases if key[0] is backend] == []


def test_the_holder_may_replace_what_the_process_reports(backend: MemoryBackend) -> None:
    with lock(R, holder={"host": "web-7", "user": "ann"}):
        [value] = set(keys(backend))
    about = holder_of(value.encode())
    assert (about["host"], about["user"], about["pid"]) == ("web-7", "ann", os.getpid())

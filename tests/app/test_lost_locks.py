"""A lock that was lost: what its block, the locks inside it, its view and its command do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.core.management import call_command
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from redlock_django import LockLost, hold, leader, lock, lock_resource, locks, resume_lock
from redlock_django.backends.memory.backend import MemoryBackend
from redlock_django.engine.validity import Lease
from redlock_django.management.child_process import ChildProcess
from redlock_django.signals import lock_released
from redlock_django.testing import lose_lock
from testproject.shop.models import Order
from tests.app.conftest import Configure, elsewhere, memory_backend, order, stop_clocks
from tests.app.ways import SyncWay, in_both_ways
from tests.inspecting import free
from tests.losses import ends_lost

R = "order:7"
WRITES = pytest.mark.django_db(transaction=True)
Lose = Callable[[], None]
pytestmark = pytest.mark.usefixtures("memory", "no_renewals")


def expire() -> None:
    """Make the lock expire, without a look at it."""
    MemoryBackend.advance(3600)


def forget() -> None:
    """Make the masters forget the lock, which only a question to them shows."""
    for master in memory_backend().masters:
        for key in [key for key in master.keyspace.strings if ":lock:" in key]:
            del master.keyspace.strings[key]


LOSSES: dict[str, Lose] = {
    "reported": lambda: lose_lock(R),
    "expired": expire,
    "forgotten by the masters": forget,
}
IN_ANY_WAY = pytest.mark.parametrize("lose", LOSSES.values(), ids=LOSSES)

BLOCKS: dict[str, Callable[[], Any]] = {
    "lock": lambda: lock(R),
    "resume_lock": lambda: resume_lock(lock(R).acquire().transfer()),
    "several names": lambda: lock(R, "user:8"),
    "a permit": lambda: lock(R, limit=3),
    "leader": lambda: leader(R),
}


@pytest.fixture(params=BLOCKS)
def block(request: pytest.FixtureRequest, memory: Configure) -> Any:
    return BLOCKS[request.param]()


def raises_lost() -> pytest.RaisesExc[LockLost]:
    return pytest.raises(LockLost, match=f"^{R}(, user:8)?: the lock was lost before its block end")


@IN_ANY_WAY
@in_both_ways
async def test_a_block_raises_if_its_lock_was_lost(way: SyncWay, block: Any, lose: Lose) -> None:
    with raises_lost():
        async with way.block(block):
            lose()
    async with way.block(lock(R)):
        pass


@IN_ANY_WAY
def test_a_function_raises_if_its_lock_was_lost(lose: Lose) -> None:
    async def alose() -> None:
        lose()

    with raises_lost():
        hold(R)(lose)()
    with raises_lost():
        asyncio.run(hold(R)(alose)())
    with lock(R):
        pass


@pytest.mark.parametrize("lose", [LOSSES["reported"], expire])  # it asks no master at its end
def test_an_inner_block_raises_if_its_lock_was_lost(lose: Lose) -> None:
    with raises_lost(), lock(R):
        with lock(R, reentrant=True):
            lose()
        pytest.fail("the inner block does not raise")
    with lock(R):
        pass


@IN_ANY_WAY
@in_both_ways
async def test_another_exception_of_the_block_is_raised(way: SyncWay, lose: Lose) -> None:
    def fail() -> None:
        lose()
        raise KeyError("first")

    with pytest.raises(KeyError) as raised:
        async with way.block(lock(R)):
            fail()
    assert raised.value.__context__ is None


@IN_ANY_WAY
def test_an_explicit_release_returns_false(lose: Lose) -> None:
    held = lock(R).acquire()
    lose()
    assert held.release() is False
    with lock(R) as held:
        lose()
        assert held.release() is False


@in_both_ways
async def test_a_lock_that_expires_before_its_release_arrives_was_not_lost(
    way: SyncWay,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    hear: Callable[..., list[dict[str, Any]]],
) -> None:
    """It was held when the block ended."""
    release, arelease = MemoryBackend.release, MemoryBackend.arelease

    def late(backend: MemoryBackend, lease: Lease) -> bool | None:
        expire()
        return release(backend, lease)

    async def alate(backend: MemoryBackend, lease: Lease) -> bool | None:
        expire()
        return await arelease(backend, lease)

    released = hear(lock_released)
    monkeypatch.setattr(MemoryBackend, "release", late)
    monkeypatch.setattr(MemoryBackend, "arelease", alate)
    async with way.block(lock(R)) as held:
        pass
    assert not held.locked
    assert await way.release(await way.acquire(lock(R))) is False
    await way.settle()
    assert not caplog.records
    assert [one["freed"] for one in released] == [None, None]


def test_a_block_that_handed_its_lock_on_does_not_raise() -> None:
    with lock(R, ttl=10) as held:
        held.transfer(ttl=10)
        expire()


# A lock with `reentrant=True` inside a lock that was lost: LockLost, and never a new lock.


def by_lock() -> None:
    with lock(R, reentrant=True):
        order()


@hold(R, reentrant=True, on_conflict="skip")
def by_hold() -> None:
    order()


@hold(R, "another", reentrant=True)
def by_hold_of_more() -> None:
    order()


async def aby_lock() -> None:
    async with lock(R, reentrant=True):
        pass


@hold(R, reentrant=True)
async def aby_hold() -> None:
    pass


@pytest.fixture(params=["nobody", "for a moment", "now"])
def lose_to(request: pytest.FixtureRequest, lose_locks: Lose) -> Lose:
    """Return a function that makes leases expire; another thread may take the resource then."""

    def lost() -> None:
        lose_locks()
        free(locks["default"].backend, R)
        if request.param != "nobody":
            taken = elsewhere(lock(R).acquire)
            if request.param == "now":
                request.addfinalizer(lambda: elsewhere(taken.release))
            else:
                elsewhere(taken.release)

    return lost


@WRITES
@pytest.mark.parametrize("nest", [by_lock, by_hold, by_hold_of_more])
@pytest.mark.parametrize("atomic", [True, False])
def test_a_lock_inside_a_lost_lock_is_refused_in_sync_code(
    lose_to: Lose, nest: Callable[[], None], atomic: bool
) -> None:
    with ends_lost(), lock(R), transaction.atomic() if atomic else nullcontext():
        lose_to()
        for _ in range(2):
            with pytest.raises(LockLost, match=f"^{R}: the lock was lost: its lease") as caught:
                nest()
            assert caught.value.resource == R
            lock("another", until_commit=False).acquire().release()
    assert not Order.objects.exists()


@pytest.mark.parametrize("nest", [aby_lock, aby_hold])
async def test_a_lock_inside_a_lost_lock_is_refused_in_async_code(
    lose_to: Lose, nest: Callable[[], Any]
) -> None:
    with ends_lost():
        async with lock(R):
            lose_to()
            with pytest.raises(LockLost, match=R):
                await nest()


@WRITES
def test_after_the_release_of_the_outer_lock(lose_locks: Lose) -> None:
    with ends_lost(), lock(R):
        lose_locks()
    by_lock()
    assert Order.objects.count() == 1


@WRITES
def test_the_same_object_is_acquired_again(lose_locks: Lose) -> None:
    """A lock that is not inside another one, and that replaces itself."""
    held = lock(R, reentrant=True).acquire()
    lose_locks()
    with held:
        held.ensure_held()
        by_lock()


@WRITES
@pytest.mark.usefixtures("sees_commits")
@pytest.mark.parametrize("again", ["the same object", "another object"])
def test_a_lost_lock_that_a_transaction_keeps(lose_locks: Lose, again: str) -> None:
    """A transaction is rolled back for it, also if the caller ignores the error."""
    held = lock(R)

    @transaction.atomic
    def work() -> None:
        with held:
            order()
        lose_locks()
        with pytest.raises(LockLost, match=R):
            (held if again == "the same object" else lock(R)).acquire()

    with pytest.raises(LockLost):
        work()
    assert not Order.objects.exists()


# Views. `tests/views` shows how a LockLost of the view is answered.


@WRITES
def test_a_lock_inside_the_lost_lock_of_a_view_is_refused(lose_to: Lose) -> None:
    @lock_resource(R)
    def view(request: HttpRequest) -> HttpResponse:
        lose_to()
        by_lock()
        return HttpResponse("done")

    assert view(RequestFactory().post("/")).status_code == 503
    assert not Order.objects.exists()


@IN_ANY_WAY
@in_both_ways
async def test_a_finished_response_stays(way: SyncWay, lose: Lose) -> None:
    """Without a transaction there is no guard: what the view did is done."""

    def view(request: HttpRequest) -> HttpResponse:
        lose()
        return HttpResponse("done")

    async def aview(request: HttpRequest) -> HttpResponse:
        return view(request)

    request = RequestFactory().post("/")
    if type(way) is SyncWay:
        response = lock_resource(R)(transaction.non_atomic_requests(view))(request)
    else:
        response = await lock_resource(R)(aview)(request)
    assert (response.status_code, response.content) == (200, b"done")


@WRITES
def test_a_view_whose_lock_is_lost_after_its_commit_has_its_response() -> None:
    @lock_resource(R)
    def view(request: HttpRequest) -> HttpResponse:
        Group.objects.create(name="committed")
        transaction.on_commit(lambda: lose_lock(R))
        return HttpResponse("done")

    assert view(RequestFactory().post("/")).status_code == 200
    assert Group.objects.exists()


# Commands.


def test_lead_ends_with_a_program_that_ended_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    stop_clocks()
    wait = ChildProcess.wait

    def wait_and_forget(child: ChildProcess) -> int | None:
        if (status := wait(child)) is not None:
            forget()
        return status

    monkeypatch.setattr(ChildProcess, "wait", wait_and_forget)
    call_command("lead", R, "--", "true")

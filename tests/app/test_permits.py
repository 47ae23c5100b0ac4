"""Permits: `lock(name, limit=k)` is held by at most k clients, each one slot of the name."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from asgiref.sync import sync_to_async
from django.contrib.contenttypes.models import ContentType
from django.core.management import CommandError, call_command
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from redlock_django import hold, lock, lock_resource
from redlock_django.backends.memory.backend import MemoryBackend
from redlock_django.exceptions import (
    AlreadyHeld,
    BadName,
    BadResource,
    InvalidRedlock,
    LimitReached,
    LockLost,
    NotHeld,
    ResourceLocked,
)
from redlock_django.fenced import Fenced
from redlock_django.locking.lock import Lock
from redlock_django.locking.services import locks
from redlock_django.management.single_run import SingleRunMixin
from redlock_django.testing import assert_locked, assert_not_locked, held_elsewhere, lose_lock
from tests.app.conftest import stop_clocks, wake_renewals
from tests.app.ways import SyncWay, in_both_ways
from tests.losses import ends_lost
from tests.waiting import until

if TYPE_CHECKING:
    from pytest_django import Settings

Result = TypeVar("Result")
MEMORY = "redlock_django.backends.memory.MemoryBackend"


@pytest.fixture(autouse=True)
def store(settings: Settings) -> Iterator[MemoryBackend]:
    """Keep locks on five masters in memory."""
    masters = [f"redis://10.0.0.{number}:6379/0" for number in range(1, 6)]
    settings.REDLOCK = {"default": {"BACKEND": MEMORY, "MASTERS": masters, "RESTART_DELAY": 0}}
    backend = locks["default"].backend
    assert isinstance(backend, MemoryBackend)
    yield backend
    locks.close()


def others(many: int, limit: int = 3, name: str = "export") -> list[Lock]:
    """Return locks that other clients have acquired."""
    held = [lock(name, limit=limit) for _ in range(many)]
    for one in held:
        one.acquire().disown()
    return held


def in_thread(call: Callable[[], Result]) -> Result:
    """Return the result of a call in another thread of this process."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


def test_a_slot_is_free_once_its_holder_has_been_gone_for_its_ttl() -> None:
    others(3)
    MemoryBackend.advance(11)
    with lock("export", limit=3) as held:
        assert held.slot in {0, 1, 2}


def test_a_limit_of_one_is_a_lock() -> None:
    with lock("export", limit=1) as held:
        assert (held.slot, held.limit) == (0, 1)
        held.disown()
        with pytest.raises(ResourceLocked):
            lock("export").acquire()


def test_slots_have_fences_of_their_own() -> None:
    held = others(2)
    assert all(one.fence > 0 for one in held)
    assert {one.resources for one in held} == {("export",)}
    assert all(list(one.fences) == ["export"] for one in held)


def test_a_lock_that_is_not_held_has_no_slot() -> None:
    with pytest.raises(NotHeld):
        _ = lock("export", limit=3).slot


def test_a_minority_of_dead_masters_costs_no_slot(store: MemoryBackend) -> None:
    store.refuse(0)
    store.hang(3)
    held = others(3)
    with pytest.raises(LimitReached):
        lock("export", limit=3).acquire()
    for one in held:
        assert one.release()


def test_a_smaller_limit_takes_effect_as_slots_come_free() -> None:
    held = others(3, limit=3)
    with pytest.raises(LimitReached):
        lock("export", limit=2).acquire()
    for one in held:
        one.release()
    others(2, limit=2)
    with pytest.raises(LimitReached):
        lock("export", limit=2).acquire()


@in_both_ways
async def test_a_caller_holds_one_slot_of_a_name(way: SyncWay) -> None:
    async with way.block(lock("export", limit=3)) as held:
        held.ensure_held()
        await way.verify(held)
        with pytest.raises(AlreadyHeld, match="reentrant=True"):
            await way.acquire(lock("export", limit=3))
        with pytest.raises(AlreadyHeld, match="limit=3, reentrant=True"):
            await way.acquire(lock("export", reentrant=True))
        with pytest.raises(AlreadyHeld, match="one slot of a name at most"):
            await way.acquire(lock("export", limit=2, reentrant=True))
    async with way.block(lock("export")):
        with pytest.raises(AlreadyHeld, match="limit=1, reentrant=True"):
            await way.acquire(lock("export", limit=3))


def test_a_reentrant_permit_shares_the_slot_of_the_outer_one() -> None:
    others(2)
    with lock("export", limit=3) as outer:
        with lock("export", limit=3, reentrant=True) as inner:
            assert (inner.slot, inner.fence) == (outer.slot, outer.fence)
            assert not inner.release()
            assert outer.locked
        with pytest.raises(LimitReached):
            in_thread(lambda: lock("export", limit=3, reentrant=True).acquire())
    with lock("export", limit=3, reentrant=True) as alone:
        assert alone.locked


async def test_a_reentrant_permit_of_a_task_shares_the_slot_of_the_outer_one() -> None:
    async def another() -> None:
        async with lock("export", limit=2, reentrant=True):
            pytest.fail("another task has no slot")

    await asyncio.to_thread(others, 1, limit=2)
    async with lock("export", limit=2) as outer:
        async with lock("export", limit=2, reentrant=True) as inner:
            assert inner.slot == outer.slot
        with pytest.raises(LimitReached):
            await asyncio.create_task(another())


def test_a_function_under_hold_can_see_its_slot() -> None:
    """Also if it calls another one that needs the same permit."""

    @hold("partner-api", limit=2)
    def ask() -> tuple[int, int]:
        with lock("partner-api", limit=2, reentrant=True) as held:
            return held.slot, again()

    @hold("partner-api", limit=2, reentrant=True)
    def again() -> int:
        with lock("partner-api", limit=2, reentrant=True) as held:
            return held.slot

    others(1, limit=2, name="partner-api")
    assert ask() == (1, 1) or ask() == (0, 0)
    assert again() in (0, 1)


@pytest.mark.parametrize("limit", [0, -1, True, 2.0, "3", 1001])
def test_a_limit_is_a_whole_number(limit: Any) -> None:
    with pytest.raises(ValueError, match="limit must be a whole number from 1 to 1,000, got"):
        lock("export", limit=limit)
    with pytest.raises(InvalidRedlock, match=r"lock_resource\(\): limit must be a whole number"):
        lock_resource("export", limit=limit)
    with pytest.raises(InvalidRedlock, match=r"hold\(\): limit must be a whole number"):
        hold("export", limit=limit)


def test_a_limit_is_refused_where_it_has_no_meaning() -> None:
    with pytest.raises(BadResource, match="limit=3 needs one name, got 2"):
        lock("a", "b", limit=3)
    with pytest.raises(BadName, match="at most 507 are allowed with a limit"):
        lock("x" * 508, limit=3)
    with pytest.raises(InvalidRedlock, match="limit=2 needs one template"):
        lock_resource("a", "b", limit=2)


def test_a_name_of_the_longest_length_has_slots() -> None:
    held = others(2, name="x" * 507)
    assert [one.release() for one in held] == [True, True]


def test_rows_cannot_be_fenced_with_a_permit() -> None:
    rows = ContentType.objects.all()
    with (
        lock("export", limit=2) as held,
        pytest.raises(ValueError, match="fences of different slots of export"),
    ):
        Fenced(rows, held)


@pytest.mark.django_db
def test_a_view_is_run_by_as_many_requests_as_its_limit() -> None:
    @lock_resource("report:<int:pk>", limit=2, status=429)
    def report(request: HttpRequest, pk: int) -> HttpResponse:
        return HttpResponse("made")

    others(1, limit=2, name="report:7")
    request = RequestFactory().get("/", headers={"Accept": "application/json"})
    assert report(request, pk=7).status_code == 200
    others(1, limit=2, name="report:7")
    refused = report(request, pk=7)
    assert refused.status_code == 429
    assert json.loads(refused.content)["code"] == "limit-reached"


def test_a_function_is_run_by_as_many_callers_as_its_limit() -> None:
    @hold("partner-api", limit=2, on_conflict="skip")
    def call() -> str:
        return "called"

    others(1, limit=2, name="partner-api")
    assert call() == "called"
    others(1, limit=2, name="partner-api")
    assert call() is None


def test_a_lock_beside_permits_takes_the_first_slot(
    store: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """During a deployment that gives a name a limit: the larger number holds."""
    monkeypatch.setattr(store, "is_shared", True)  # servers are not asked about what is held here
    held = others(2, limit=2)
    [second] = [one for one in held if one.slot == 1]
    [first] = [one for one in held if one.slot == 0]
    first.release()
    alone = in_thread(lock("export").acquire)
    with pytest.raises(LimitReached):
        in_thread(lock("export", limit=2).acquire)
    with pytest.raises(ResourceLocked):
        in_thread(lock("export").acquire)
    assert alone.release()
    assert second.release()


def test_a_lost_slot_is_reported(store: MemoryBackend) -> None:
    held = lock("export", limit=3).acquire()
    for index in range(3):
        store.forget(index)
    with pytest.raises(LockLost, match="export"):
        held.verify()


def test_the_slot_of_a_lost_permit_is_still_known(store: MemoryBackend) -> None:
    held = lock("export", limit=3).acquire()
    slot = held.slot
    MemoryBackend.advance(11)
    with pytest.raises(LockLost):
        held.ensure_held()
    assert held.slot == slot
    held.release()
    with ends_lost(), lock("export", limit=3) as held:
        slot = held.slot
        lose_lock("export")
        assert held.slot == slot
        with pytest.raises(LockLost):
            held.ensure_held()
    assert_not_locked("export")


def test_a_slot_is_extended_and_verified() -> None:
    held = others(2)
    MemoryBackend.advance(8)
    for one in held:
        assert one.extend() > 9
        one.verify()
    MemoryBackend.advance(8)
    assert all(one.locked for one in held)
    third = lock("export", limit=3).acquire()
    third.disown()
    with pytest.raises(LimitReached):
        lock("export", limit=3).acquire()
    assert {one.slot for one in [*held, third]} == {0, 1, 2}


def test_a_slot_is_renewed(settings: Settings) -> None:
    settings.REDLOCK = {"default": {"BACKEND": MEMORY, "TTL": 10}}
    with lock("export", limit=2) as held:
        for _ in range(4):
            MemoryBackend.advance(5)
            wake_renewals()
            until(lambda: held.remaining() > 8, "the renewal")
        other = in_thread(lock("export", limit=2).acquire)
        assert {held.slot, other.slot} == {0, 1}
        with pytest.raises(LimitReached):
            in_thread(lock("export", limit=2).acquire)


@pytest.mark.usefixtures("no_renewals")
def test_a_slot_stays_held_for_its_min_hold() -> None:
    stop_clocks()
    with lock("export", limit=2, min_hold=5) as one:
        slot = one.slot
    with lock("export", limit=2, min_hold=5) as two:
        assert two.slot != slot
    with pytest.raises(LimitReached) as refused:
        lock("export", limit=2).acquire()
    assert refused.value.retry_after == pytest.approx(5, abs=0.2)
    MemoryBackend.advance(5.1)
    others(2, limit=2)


def test_a_function_skips_within_the_min_hold_of_all_slots() -> None:
    ran = []

    @hold("nightly", limit=2, min_hold=5, on_conflict="skip")
    def nightly() -> None:
        ran.append(1)

    for _ in range(4):
        nightly()
    assert len(ran) == 2


@pytest.mark.django_db(transaction=True)
def test_a_slot_is_kept_until_the_open_transaction_has_ended(sees_commits: None) -> None:
    with transaction.atomic():
        with lock("export", limit=2) as first:
            slot, fence = first.slot, first.fence
        with lock("export", limit=2) as second:  # the slot that the transaction keeps
            assert (second.slot, second.fence) == (slot, fence)
        in_thread(lock("export", limit=2).acquire).disown()
        with pytest.raises(LimitReached):
            in_thread(lock("export", limit=2).acquire)
        with pytest.raises(AlreadyHeld, match="limit=2"):
            lock("export", limit=3).acquire()
    with lock("export", limit=2) as after:
        assert after.slot == slot


@pytest.mark.django_db(transaction=True)
def test_until_commit_can_be_turned_off_for_a_slot() -> None:
    with transaction.atomic():
        with lock("export", limit=2, until_commit=False):
            pass
        assert_not_locked("export")


async def test_two_tasks_of_a_thread_hold_a_slot_each() -> None:
    both = asyncio.Barrier(2)

    async def work() -> int:
        async with lock("export", limit=2) as held:
            await both.wait()
            with pytest.raises(LimitReached):
                await asyncio.create_task(lock("export", limit=2).aacquire())
            with pytest.raises(AlreadyHeld):
                await lock("export", limit=2).aacquire()
            await both.wait()
            return held.slot

    assert sorted(await asyncio.gather(work(), work())) == [0, 1]
    assert_not_locked("export")


async def test_sync_code_of_two_tasks_holds_a_slot_each() -> None:
    """asgiref runs the sync code of all tasks in one thread."""
    held: list[Lock] = []

    async def work() -> None:
        held.append(await sync_to_async(lock("export", limit=2).acquire)())

    await asyncio.gather(asyncio.create_task(work()), asyncio.create_task(work()))
    assert sorted(one.slot for one in held) == [0, 1]
    with pytest.raises(LimitReached):
        await lock("export", limit=2).aacquire()
    for one in held:
        assert await one.arelease()


async def test_a_cancelled_waiter_leaves_no_slot_and_no_turn() -> None:
    async with held_elsewhere("export", limit=2):
        waiting = asyncio.create_task(lock("export", limit=2, wait=30).aacquire())
        while not _queued(locks["default"].backend):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert not _queued(locks["default"].backend)
    async with lock("export", limit=2) as held:
        assert held.locked
    assert_not_locked("export")


def test_a_command_is_run_as_often_at_once_as_its_limit(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Command(SingleRunMixin):
        lock_key = "import"
        lock_limit = 2

        def handle(self, *args: object, **options: object) -> None:
            assert self.held.slot in {0, 1}
            self.stdout.write("ran")

    others(1, limit=2, name="import")
    call_command(Command())
    assert capsys.readouterr().out == "ran\n"
    others(1, limit=2, name="import")
    with pytest.raises(CommandError, match="import: its 2 slots are held") as refused:
        call_command(Command())
    assert refused.value.returncode == 75


def test_a_program_is_run_as_often_at_once_as_its_limit() -> None:
    program = ("--limit", "2", "import", "--", sys.executable, "-c", "")
    with held_elsewhere("import"):
        call_command("with_lock", *program)
    with held_elsewhere("import", limit=2), pytest.raises(CommandError) as refused:
        call_command("with_lock", *program)
    assert refused.value.returncode == 75
    with pytest.raises(CommandError, match="limit must be a whole number") as wrong:
        call_command("with_lock", "--limit", "0", *program[2:])
    assert wrong.value.returncode == 2


def test_a_site_that_proceeds_without_a_store_has_no_slot(
    store: MemoryBackend, settings: Settings
) -> None:
    section = settings.REDLOCK["default"]
    settings.REDLOCK = {"default": {**section, "ON_UNAVAILABLE": "proceed"}}
    backend = locks["default"].backend
    assert isinstance(backend, MemoryBackend)
    for index in range(3):
        backend.refuse(index)
    with lock("export", limit=3) as held:
        held.ensure_held()
        with pytest.raises(NotHeld):
            _ = held.slot


def test_a_slot_that_is_held_makes_its_name_locked() -> None:
    for _ in range(8):
        with lock("export", limit=3):
            assert_locked("export")
            assert_not_locked("exp", "export:1")
        assert_not_locked("export")
    with held_elsewhere("export", limit=2):
        lock("export", limit=3).acquire().release()
        with pytest.raises(LimitReached):
            held_elsewhere("export", limit=2).__enter__()
    assert_not_locked("export")


def _queued(backend: Any) -> int:
    key = backend.deployment.queue("export")
    return min(len(master.keyspace.sorted_set(key)) for master in backend.masters)

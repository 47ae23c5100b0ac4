"""Permits: `lock(name, limit=k)` is held by at most k clients, each one slot of the name."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.contenttypes.models import ContentType
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory
from pytest_django import Settings

from redlock_django import hold, lock, lock_resource
from redlock_django.backends.memory.backend import MemoryBackend
from redlock_django.exceptions import (
    AlreadyHeld,
    LimitReached,
    LockLost,
    RedlockError,
    ResourceLocked,
)
from redlock_django.fenced import Fenced
from redlock_django.locking.lock import Lock
from redlock_django.testing import assert_not_locked, held_elsewhere, lose_lock
from tests.app.conftest import FIVE, LOCK_MIDDLEWARE, Configure, Urls, elsewhere
from tests.app.ways import SyncWay, in_both_ways
from tests.losses import ends_lost
from tests.views.kinds import KEY, Kind, Mixed, at, body, derived, function, kinds


@pytest.fixture(autouse=True)
def store(memory: Configure) -> MemoryBackend:
    """Keep locks on five masters in memory."""
    return memory(MASTERS=FIVE, RESTART_DELAY=0)


def others(many: int, limit: int = 3, name: str = "export") -> list[Lock]:
    """Return locks that other clients have acquired."""
    held = [lock(name, limit=limit) for _ in range(many)]
    for one in held:
        one.acquire().disown()
    return held


def test_a_limit_of_one_is_a_lock() -> None:
    with lock("export", limit=1) as held:
        assert (held.slot, held.limit) == (0, 1)
        held.disown()
        with pytest.raises(ResourceLocked):
            lock("export").acquire()


@in_both_ways
async def test_a_caller_holds_one_slot_of_a_name(way: SyncWay) -> None:
    async with way.block(lock("export", limit=3)) as held:
        assert held.fences == {"export": held.fence}
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
            elsewhere(lambda: lock("export", limit=3, reentrant=True).acquire())
    with lock("export", limit=3, reentrant=True) as alone:
        assert alone.locked


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


@pytest.mark.django_db(transaction=True)
def test_a_slot_is_kept_until_the_open_transaction_has_ended(sees_commits: None) -> None:
    with transaction.atomic():
        with lock("export", limit=2) as first:
            slot, fence = first.slot, first.fence
        with lock("export", limit=2) as second:  # the slot that the transaction keeps
            assert (second.slot, second.fence) == (slot, fence)
        elsewhere(lock("export", limit=2).acquire).disown()
        with pytest.raises(LimitReached):
            elsewhere(lock("export", limit=2).acquire)
        with pytest.raises(AlreadyHeld, match="limit=2"):
            lock("export", limit=3).acquire()
    with lock("export", limit=2) as after:
        assert after.slot == slot


# Views.


def report(request: Any) -> HttpResponse:
    with lock("order:7", limit=2, reentrant=True) as held:  # the slot of the request
        assert held.slot in (0, 1)
    return HttpResponse("made")


async def areport(request: HttpRequest) -> HttpResponse:
    async with lock("order:7", limit=2, reentrant=True) as held:
        assert held.slot in (0, 1)
    return HttpResponse("made")


TWO_AT_ONCE = kinds(limit=2, status=429)
NAMED: Any = derived(
    Mixed, lock_key=(), get_lock_key=lambda view: f"order:{view.kwargs['pk']}", lock_limit=2,
    lock_status=429,
)  # fmt: skip
VIEWS: dict[str, Kind] = {
    **{name: TWO_AT_ONCE[name] for name in ("function", "async function", "mixin", "rule")},
    "mixin with get_lock_key()": Kind(at(NAMED.as_view)),
}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("kind", VIEWS.values(), ids=VIEWS)
def test_a_view_is_run_by_as_many_requests_as_its_limit(
    urls: Urls, settings: Settings, memory: Configure, plain: None, kind: Kind
) -> None:
    settings.MIDDLEWARE = [LOCK_MIDDLEWARE]
    memory(RULES=kind.rules)
    body[:] = [areport if kind.is_async else report]
    urls(kind.make())
    with held_elsewhere("order:7"):
        assert Client().post("/7/").content == b"made"
    with held_elsewhere("order:7", limit=2):
        refused = Client().post("/7/")
    assert (refused.status_code, refused.json()["code"]) == (429, "limit-reached")
    assert refused["Retry-After"]
    assert Client().post("/7/").status_code == 200
    assert_not_locked("order:7")


def test_on_locked_answers_a_limit_that_is_reached() -> None:
    def shown(request: HttpRequest, error: RedlockError) -> HttpResponse:
        assert isinstance(error, LimitReached)
        return HttpResponse(f"{error.resource} is busy", status=429)

    view: Any = lock_resource(KEY, limit=2, on_locked=shown)(function)
    with held_elsewhere("order:7", limit=2):
        answer = view(RequestFactory().get("/"), pk=7)
    assert (answer.status_code, answer.content) == (429, b"order:7 is busy")


# Tasks. For functions, commands and programs: `test_hold.py`.


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

"""Permits: `lock(name, limit=k)` is held by at most k clients, each one slot of the name."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.contenttypes.models import ContentType
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

if TYPE_CHECKING:
    from pytest_django import Settings

MEMORY = "redlock_django.backends.memory.MemoryBackend"


@pytest.fixture(autouse=True)
def store(settings: Settings) -> Iterator[MemoryBackend]:
    """Keep locks on five masters in memory."""
    masters = [f"redis://10.0.0.{number}:6379/0" for number in range(1, 6)]
    settings.REDLOCK = {
        "default": {"BACKEND": MEMORY, "MASTERS": masters, "RESTART_DELAY": 0, "RENEW": False}
    }
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


def test_as_many_clients_as_the_limit_hold_a_name_at_once() -> None:
    held = others(3)
    assert sorted(one.slot for one in held) == [0, 1, 2]
    with pytest.raises(LimitReached, match=r"^export: its 3 slots are held$"):
        lock("export", limit=3).acquire()
    held[1].release()
    with lock("export", limit=3) as again:
        assert again.slot not in {held[0].slot, held[2].slot}


def test_a_refusal_names_the_name_and_when_the_first_slot_is_free() -> None:
    lock("export", limit=2, ttl=20).acquire().disown()
    second = lock("export", limit=2, ttl=5).acquire()
    second.disown()
    with pytest.raises(LimitReached) as refused:
        lock("export", limit=2).acquire()
    assert refused.value.resource == "export"
    assert refused.value.retry_after == pytest.approx(5, abs=0.5)


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


async def test_tasks_hold_slots_of_one_name() -> None:
    most = now = 0

    async def work() -> int:
        nonlocal most, now
        async with lock("export", limit=3, wait=30) as held:
            now += 1
            most = max(most, now)
            await asyncio.sleep(0.001)
            now -= 1
            return held.slot

    slots = await asyncio.gather(*(work() for _ in range(12)))
    assert most == 3
    assert {*slots} == {0, 1, 2}


def test_a_thread_holds_one_slot_of_a_name() -> None:
    with lock("export", limit=3):
        with pytest.raises(AlreadyHeld, match="one slot of a name at most"):
            lock("export", limit=3).acquire()
        with pytest.raises(AlreadyHeld, match="limit=3"):
            lock("export", reentrant=True).acquire()
    with lock("export"), pytest.raises(AlreadyHeld, match="limit=1"):
        lock("export", limit=3).acquire()


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
    with pytest.raises(ValueError, match="reentrant=True exclude each other"):
        lock("a", limit=3, reentrant=True)
    with pytest.raises(BadName, match="at most 507 are allowed with a limit"):
        lock("x" * 508, limit=3)
    with pytest.raises(InvalidRedlock, match="limit=2 needs one template"):
        lock_resource("a", "b", limit=2)
    with pytest.raises(InvalidRedlock, match="a lock in a transaction has one holder"):
        lock_resource("a", limit=2, in_transaction="default")


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


def test_a_lost_slot_is_reported(store: MemoryBackend) -> None:
    held = lock("export", limit=3).acquire()
    for index in range(3):
        store.forget(index)
    with pytest.raises(LockLost, match="export"):
        held.verify()


def test_waiters_are_served_in_order_by_whichever_slot_comes_free() -> None:
    import threading

    served: list[int] = []
    holders = others(2, limit=2)
    waiting = []

    def wait(number: int) -> None:
        with lock("export", limit=2, wait=60) as held:
            served.append(number)
            held.ensure_held()

    with ExitStack() as stack:
        from tests.waiting import until

        backend = locks["default"].backend
        for number in range(3):
            thread = threading.Thread(target=wait, args=(number,))
            thread.start()
            waiting.append(thread)
            stack.callback(thread.join)
            until(partial(_is_queued, backend, number + 1))
        holders[1].release()
    assert served == [0, 1, 2]


def _is_queued(backend: Any, many: int) -> bool:
    key = backend.deployment.queue("export")
    return min(len(master.keyspace.sorted_set(key)) for master in backend.masters) == many

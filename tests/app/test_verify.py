"""verify(): the masters are asked whether a lock is still held, where ensure_held() asks nobody."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from redlock_django import LockLost, NotHeld, StoreUnavailable, lock, lock_resource, locks
from redlock_django.backends.memory.backend import MemoryBackend
from testproject.shop.models import Order
from tests import inspecting
from tests.app.conftest import (
    Configure,
    memory_backend,
    order,
    stop_clocks,
    without_quorum,
)
from tests.app.ways import SyncWay, in_both_ways
from tests.losses import ends_lost

NAMES = tuple(f"r{number}" for number in range(8))
pytestmark = pytest.mark.usefixtures("three_masters")


def free(*names: str) -> None:
    """Free locks as `manage.py release_lock` does."""
    for name in names:
        inspecting.free(locks["default"].backend, name)


@in_both_ways
async def test_only_verify_notices_a_forced_release_at_once(way: SyncWay) -> None:
    with ends_lost():
        async with way.block(lock(*NAMES)) as held:
            await way.verify(held)
            free(NAMES[0])
            held.ensure_held()
            held.guard()  # as before COMMIT
            with pytest.raises(LockLost, match="a majority of the masters lost it"):
                await way.verify(held)
            with pytest.raises(LockLost):
                held.ensure_held()


async def test_verify_does_not_block_a_loop() -> None:
    async with lock("r1") as held:
        with pytest.raises(SynchronousOnlyOperation, match="averify"):
            held.verify()


async def test_a_lock_that_is_released_while_it_is_verified_is_not_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = await lock("r1").aacquire()
    backend = locks["default"].backend
    ask = backend.aextend

    async def released_meanwhile(*arguments: Any) -> Any:
        answer = await ask(*arguments)
        await held.arelease()
        return answer

    monkeypatch.setattr(backend, "aextend", released_meanwhile)
    with pytest.raises(NotHeld, match="r1: this lock is not held"):
        await held.averify()


def test_verify_neither_prolongs_nor_shortens_the_lock(no_renewals: None) -> None:
    stop_clocks()
    with ends_lost(), lock("r1", ttl=10, renew=False) as held:
        MemoryBackend.advance(5.0)
        before = held.remaining()
        held.verify()
        assert held.remaining() == pytest.approx(before, abs=0.1)
        assert held.remaining() <= before
        MemoryBackend.advance(5.0)
        with pytest.raises(LockLost, match="its lease expired"):
            held.verify()


def test_where_too_few_masters_answer_nothing_is_lost() -> None:
    with lock(*NAMES) as held:
        with without_quorum():
            with pytest.raises(StoreUnavailable, match="too few servers answered to verify"):
                held.verify()
            held.ensure_held()
        held.verify()


def test_a_minority_that_has_forgotten_the_lock_changes_nothing() -> None:
    with lock("r1") as held:
        memory_backend().masters[0].keyspace.strings.pop("redlock:lock:r1")
        held.verify()
        held.verify()
        held.extend()


def test_without_a_quorum_a_caller_that_proceeds_is_not_stopped(memory: Configure) -> None:
    memory(ON_UNAVAILABLE="proceed")
    with without_quorum(), lock("r1") as held:
        held.verify()
        held.guard()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("asks", "status", "orders"), [(True, 503, 0), (False, 200, 1)])
def test_a_view_is_rolled_back_for_a_forced_release_only_if_it_asks(
    monkeypatch: pytest.MonkeyPatch, asks: bool, status: int, orders: int
) -> None:
    @lock_resource("r1")
    def view(request: HttpRequest) -> HttpResponse:
        order()
        free("r1")
        if asks:
            with lock("r1", reentrant=True) as held:
                held.verify()
        return HttpResponse("paid")

    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    assert view(RequestFactory().post("/")).status_code == status
    assert Order.objects.count() == orders

"""A lock with `reentrant=True` inside a lock that was lost: LockLost, and never a new lock."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path
from pytest_django import Settings

from redlock_django import hold, lock, lock_resource
from redlock_django.exceptions import LockLost
from redlock_django.locking.services import locks
from testproject.shop.models import Order
from tests.app.conftest import LOCK_MIDDLEWARE, Urls, elsewhere
from tests.inspecting import free
from tests.losses import ends_lost

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("memory")]
R = "order:7"

Lose = Callable[[], None]
Nest = Callable[[], None]


def by_lock() -> None:
    with lock(R, reentrant=True):
        Order.objects.create(number="A-1", total=1)


@hold(R, reentrant=True, on_conflict="skip")
def by_hold() -> None:
    Order.objects.create(number="A-1", total=1)


@hold(R, "another", reentrant=True)
def by_hold_of_more() -> None:
    Order.objects.create(number="A-1", total=1)


async def aby_lock() -> None:
    async with lock(R, reentrant=True):
        pass


@hold(R, reentrant=True)
async def aby_hold() -> None:
    pass


def take_and_release(name: str) -> None:
    with lock(name):
        pass


@pytest.fixture(params=["nobody", "for a moment", "now"])
def lose(request: pytest.FixtureRequest, lose_locks: Lose) -> Lose:
    """Return a function that makes leases expire; another thread may take the resource then."""

    def lost() -> None:
        lose_locks()
        free(locks["default"].backend, R)
        if request.param == "for a moment":
            elsewhere(lambda: take_and_release(R))
        elif request.param == "now":
            taken = elsewhere(lock(R).acquire)
            request.addfinalizer(lambda: elsewhere(taken.release))

    return lost


@pytest.mark.parametrize("nest", [by_lock, by_hold, by_hold_of_more])
@pytest.mark.parametrize("atomic", [True, False])
def test_a_lock_inside_a_lost_lock_is_refused_in_sync_code(
    lose: Lose, nest: Nest, atomic: bool
) -> None:
    with ends_lost(), lock(R), transaction.atomic() if atomic else nullcontext():
        lose()
        for _ in range(2):
            with pytest.raises(LockLost, match=f"^{R}: the lock was lost: its lease") as caught:
                nest()
            assert caught.value.resource == R
            lock("another", until_commit=False).acquire().release()
    assert not Order.objects.exists()


@pytest.mark.parametrize("nest", [aby_lock, aby_hold])
async def test_a_lock_inside_a_lost_lock_is_refused_in_async_code(
    lose: Lose, nest: Callable[[], Any]
) -> None:
    with ends_lost():
        async with lock(R):
            lose()
            with pytest.raises(LockLost, match=R):
                await nest()


def test_after_the_release_of_the_outer_lock(lose_locks: Lose) -> None:
    with ends_lost(), lock(R):
        lose_locks()
    by_lock()
    assert Order.objects.count() == 1


def test_the_same_object_is_acquired_again(lose_locks: Lose) -> None:
    """A lock that is not inside another one, and that replaces itself."""
    held = lock(R, reentrant=True).acquire()
    lose_locks()
    with held:
        held.ensure_held()
        by_lock()


@pytest.mark.usefixtures("sees_commits")
@pytest.mark.parametrize("again", ["the same object", "another object"])
def test_a_lost_lock_that_a_transaction_keeps(lose_locks: Lose, again: str) -> None:
    """A transaction is rolled back for it, also if the caller ignores the error."""
    held = lock(R)

    @transaction.atomic
    def work() -> None:
        with held:
            Order.objects.create(number="A-1", total=1)
        lose_locks()
        with pytest.raises(LockLost, match=R):
            (held if again == "the same object" else lock(R)).acquire()

    with pytest.raises(LockLost):
        work()
    assert not Order.objects.exists()


# Views.


def answered(response: Any) -> None:
    assert (response.status_code, response.json()["code"]) == (503, "lock-lost")
    assert not Order.objects.exists()


@pytest.mark.parametrize("nest", [by_lock, by_hold])
@pytest.mark.parametrize("atomic", [True, False])
@pytest.mark.parametrize("rule", [True, False], ids=["rule", "decorator"])
def test_a_view_that_nests_in_a_lost_lock_is_rolled_back(
    settings: Settings,
    urls: Urls,
    monkeypatch: pytest.MonkeyPatch,
    lose: Lose,
    nest: Nest,
    atomic: bool,
    rule: bool,
) -> None:
    def view(request: HttpRequest, pk: int) -> HttpResponse:
        lose()
        nest()
        return HttpResponse("done")

    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", atomic)
    settings.MIDDLEWARE = [LOCK_MIDDLEWARE]
    if rule:
        rules = [{"view": "view", "key": "order:<int:pk>"}]
        settings.REDLOCK = {"default": {**settings.REDLOCK["default"], "RULES": rules}}
    urls(path("<int:pk>/", view if rule else lock_resource("order:<int:pk>")(view), name="view"))
    answered(Client(headers={"accept": "application/json"}).post("/7/"))

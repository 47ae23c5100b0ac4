"""A lock that is released inside a transaction is kept until that has ended, however it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import IntegrityError, connection, connections, transaction
from django.test import TestCase, override_settings

from redlock_django import lock
from redlock_django.exceptions import AlreadyHeld, InvalidRedlock
from redlock_django.locking import open_transactions
from testproject.shop.models import Order
from tests.app.conftest import MEMORY
from tests.app.test_lock import in_thread

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("memory", "sees_commits"),
]
IsFree = Callable[[str], bool]


@pytest.fixture(autouse=True)
def _watches_nothing_afterwards() -> Iterator[None]:
    connection.ensure_connection()
    before = set(vars(connection))
    yield
    assert set(vars(connection)) == before


def order(number: str = "A-1") -> None:
    Order.objects.create(number=number, total=1)


def test_a_lock_is_kept_until_commit(is_free: IsFree) -> None:
    with transaction.atomic():
        with lock("order:1") as held:
            order()
        assert not is_free("order:1")
        held.ensure_held()
    assert is_free("order:1")
    assert held.remaining() == 0
    with lock("order:1"):
        assert not is_free("order:1")
    assert is_free("order:1")


def test_a_lock_is_kept_until_rollback(is_free: IsFree) -> None:
    with suppress(ZeroDivisionError), transaction.atomic():
        with suppress(KeyError), lock("order:1"):
            raise KeyError
        assert not is_free("order:1")
        raise ZeroDivisionError
    assert is_free("order:1")


def test_the_outermost_block_counts(is_free: IsFree) -> None:
    with transaction.atomic():
        with transaction.atomic(), lock("order:1"):
            order()
        assert not is_free("order:1")
        with suppress(ZeroDivisionError), transaction.atomic(), lock("order:2"):
            raise ZeroDivisionError
        assert not is_free("order:2")
    assert is_free("order:1")
    assert is_free("order:2")


def test_a_block_that_is_opened_under_the_lock_counts_too(is_free: IsFree) -> None:
    held = lock("order:1").acquire()
    with transaction.atomic():
        order()
        assert held.release() is False
        assert held.release() is False
        assert not is_free("order:1")
    assert is_free("order:1")


def test_it_is_free_after_the_hooks_of_the_commit(is_free: IsFree) -> None:
    seen = []

    def hook() -> None:
        seen.append(is_free("order:1"))
        with transaction.atomic(), lock("order:2"):  # a transaction inside the end of another
            pass

    with transaction.atomic(), lock("order:1"):
        transaction.on_commit(hook)
    assert seen == [False]
    assert is_free("order:1")
    assert is_free("order:2")


@pytest.mark.parametrize("failing", ["hook", "commit"])
def test_it_is_free_after_an_end_that_fails(
    is_free: IsFree, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    def fail() -> None:
        raise IntegrityError

    if failing == "commit":
        monkeypatch.setattr(connection, "_commit", fail)
    with suppress(IntegrityError), transaction.atomic():
        with lock("order:1"):
            order()
            if failing == "hook":
                transaction.on_commit(fail)
        assert not is_free("order:1")
    monkeypatch.undo()
    assert is_free("order:1")


def test_inside_the_transaction_its_own_lock_is_acquired_again(is_free: IsFree) -> None:
    held = lock("order:1")
    with transaction.atomic():
        with held:
            fence = held.fence
        with lock("order:1") as again:
            assert again.fence == fence
        with held:
            assert held.fence == fence
        with pytest.raises(AlreadyHeld, match="until the open transaction has ended"):
            lock("order:1", "order:2").acquire()
        assert not is_free("order:1")
    assert is_free("order:1")


def test_a_lock_that_is_acquired_again_is_released_by_its_holder(is_free: IsFree) -> None:
    held = lock("order:1")
    with transaction.atomic():
        with held:
            order()
        held.acquire()
    assert not is_free("order:1")
    assert held.release() is True
    assert is_free("order:1")


def test_without_until_commit_transactions_are_ignored(
    is_free: IsFree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_transactions, "sees_commits", lambda connection: False)
    with transaction.atomic():
        with lock("mail:1", until_commit=False):
            assert not is_free("mail:1")
        assert is_free("mail:1")
        with pytest.raises(InvalidRedlock, match="until_commit=False"), lock("order:1"):
            pass
    with pytest.raises(ValueError, match="until_commit must be True or False"):
        lock("order:1", until_commit="now")  # type: ignore[arg-type]


def test_a_coroutine_inside_a_transaction_of_sync_code(
    is_free: IsFree, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with lock("order:1"):
            await sync_to_async(order)()
            await asyncio.create_task(alock("order:2"))

    async def alock(name: str) -> None:
        async with lock(name):
            pass

    with transaction.atomic():
        async_to_sync(work)()
        assert not is_free("order:1")
        assert not is_free("order:2")
    assert is_free("order:1")
    assert is_free("order:2")
    monkeypatch.setattr(open_transactions, "sees_commits", lambda connection: False)
    with transaction.atomic(), pytest.raises(InvalidRedlock, match="before the lock"):
        async_to_sync(work)()


def test_a_transaction_without_autocommit(is_free: IsFree) -> None:
    transaction.set_autocommit(False)
    try:
        with lock("order:1"):
            order()
        assert not is_free("order:1")
        with transaction.atomic():
            pass
        assert not is_free("order:1")
        transaction.commit()
        assert is_free("order:1")
        with lock("order:1"):
            pass  # nothing has begun a transaction
        assert is_free("order:1")
        with transaction.atomic(), lock("order:1"):
            order("A-2")
        assert not is_free("order:1")
        transaction.rollback()
        assert is_free("order:1")
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)


@override_settings(REDLOCK={"default": {"BACKEND": MEMORY}})
class UsersTestCase(TestCase):
    """The transaction around a test is never committed, so it keeps no lock."""

    def test_locks_are_free_at_the_end_of_their_block(self) -> None:
        for _ in range(2):
            with transaction.atomic(), lock("order:1"):
                order()
            with lock("order:1"):
                Order.objects.all().delete()


def test_finds_the_connections_that_django_lists() -> None:
    """The quick way into asgiref's storage sees what the public way sees, with and without one."""
    listed = connections.all(initialized_only=True)
    assert listed
    assert open_transactions._initialized() == listed

    def in_another_thread() -> tuple[int, int]:
        none = len(open_transactions._initialized())
        connection.ensure_connection()
        one = len(open_transactions._initialized())
        connection.close()
        return none, one

    assert in_thread(in_another_thread) == (0, 1)

    async def in_a_loop() -> bool:
        return open_transactions._initialized() == connections.all(initialized_only=True)

    assert asyncio.run(in_a_loop())

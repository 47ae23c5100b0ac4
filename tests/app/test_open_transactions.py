"""A lock that is released inside a transaction is kept until that has ended, however it ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
import pytest_django
from asgiref.sync import AsyncToSync, ThreadSensitiveContext, async_to_sync, sync_to_async
from django.db import IntegrityError, connection, connections, transaction
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.test import Client, TestCase, override_settings
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from pytest_django import Settings

from redlock_django import AlreadyHeld, InvalidRedlock, LockLost, lock, lock_resource
from redlock_django.locking import caller, transactions
from redlock_django.locking.event_loops import _executor_of_caller, has_sync_caller
from redlock_django.locking.lock import Lock
from redlock_django.testing import lose_lock
from testproject.shop.models import Order
from tests.aliases import database_alias
from tests.app.conftest import LOCK_MIDDLEWARE, MEMORY, Urls, elsewhere, order, sender
from tests.inspecting import is_free

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("memory", "sees_commits"),
]


@pytest.fixture(autouse=True)
def _watches_nothing_afterwards() -> Iterator[None]:
    connection.ensure_connection()
    before = set(vars(connection))
    yield
    assert set(vars(connection)) == before


def test_a_lock_is_kept_until_commit() -> None:
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


def test_a_lock_is_kept_until_rollback() -> None:
    with suppress(ZeroDivisionError), transaction.atomic():
        with suppress(KeyError), lock("order:1"):
            raise KeyError
        assert not is_free("order:1")
        raise ZeroDivisionError
    assert is_free("order:1")


def test_the_outermost_block_counts() -> None:
    with transaction.atomic():
        with transaction.atomic(), lock("order:1"):
            order()
        assert not is_free("order:1")
        with suppress(ZeroDivisionError), transaction.atomic(), lock("order:2"):
            raise ZeroDivisionError
        assert not is_free("order:2")
    assert is_free("order:1")
    assert is_free("order:2")


def test_a_block_that_is_opened_under_the_lock_counts_too() -> None:
    held = lock("order:1").acquire()
    with transaction.atomic():
        order()
        assert held.release() is False
        assert held.release() is False
        assert not is_free("order:1")
    assert is_free("order:1")


def test_a_lock_is_free_after_the_hooks_of_the_commit() -> None:
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
def test_a_lock_is_free_after_an_end_that_fails(
    monkeypatch: pytest.MonkeyPatch, failing: str
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


@pytest.mark.parametrize("lost", ["in the block", "reported in the block", "before COMMIT"])
def test_writes_under_a_lost_lock_are_rolled_back(
    lose_locks: Callable[[], None], lost: str
) -> None:
    seen: list[str] = []

    @transaction.atomic
    def work() -> None:
        with transaction.atomic(), lock("order:1"):
            order()
            if lost == "in the block":
                lose_locks()
            elif lost == "reported in the block":
                lose_lock("order:1")
        assert lost == "before COMMIT", "the block raises, and not only COMMIT"
        transaction.on_commit(lambda: seen.append("committed"))
        lose_locks()

    with pytest.raises(LockLost, match="order:1"):
        work()
    assert (Order.objects.count(), seen) == (0, [])
    with lock("order:1"), transaction.atomic():
        order()
    assert Order.objects.count() == 1


def test_a_lost_lock_does_not_hide_why_the_block_fails(lose_locks: Callable[[], None]) -> None:
    @transaction.atomic
    def work() -> None:
        with lock("order:1"):
            order()
        lose_locks()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert Order.objects.count() == 0


def test_an_interrupt_of_the_check_before_commit_rolls_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(lock: Lock) -> None:
        raise KeyboardInterrupt

    @transaction.atomic
    def work() -> None:
        with lock("order:1"):
            order()
        monkeypatch.setattr(Lock, "guard", interrupted)

    with pytest.raises(KeyboardInterrupt):
        work()
    assert (Order.objects.count(), connection.get_autocommit()) == (0, True)
    assert is_free("order:1")


def test_without_until_commit_a_lost_lock_is_not_looked_at(lose_locks: Callable[[], None]) -> None:
    with transaction.atomic():
        with lock("mail:1", until_commit=False):
            order()
        lose_locks()
    assert Order.objects.count() == 1


def test_the_lock_of_a_coroutine_is_looked_at_before_the_commit_of_its_caller(
    lose_locks: Callable[[], None],
) -> None:
    async def work() -> None:
        async with lock("order:1"):
            await sync_to_async(order)()

    @transaction.atomic
    def caller() -> None:
        async_to_sync(work)()
        lose_locks()

    with pytest.raises(LockLost):
        caller()
    assert Order.objects.count() == 0


def test_inside_the_transaction_its_own_lock_is_acquired_again() -> None:
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


def test_a_lock_that_is_acquired_again_is_released_by_its_holder() -> None:
    held = lock("order:1")
    with transaction.atomic():
        with held:
            order()
        held.acquire()
    assert not is_free("order:1")
    assert held.release() is True
    assert is_free("order:1")


def test_without_until_commit_transactions_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "sees_commits", lambda connection: False)
    with transaction.atomic():
        with lock("mail:1", until_commit=False):
            assert not is_free("mail:1")
        assert is_free("mail:1")
        with pytest.raises(InvalidRedlock, match="until_commit=False"), lock("order:1"):
            pass
    with pytest.raises(ValueError, match="until_commit must be True or False"):
        lock("order:1", until_commit="now")  # type: ignore[arg-type]


def test_a_coroutine_inside_a_transaction_of_sync_code(monkeypatch: pytest.MonkeyPatch) -> None:
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
    monkeypatch.setattr(transactions, "sees_commits", lambda connection: False)
    with transaction.atomic(), pytest.raises(InvalidRedlock, match="before the lock"):
        async_to_sync(work)()


@pytest.fixture(params=["server", "script"])
async def context(request: pytest.FixtureRequest) -> AsyncIterator[None]:
    """The thread of the sync code: one for each request in a server, one for all in a script."""
    async with ThreadSensitiveContext() if request.param == "server" else nullcontext():
        yield
        await sync_to_async(lambda: connection.close())()


@pytest.mark.attack
async def test_a_block_that_async_code_enters_by_hand_keeps_the_lock_or_refuses_it(
    context: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = transaction.atomic()
    await sync_to_async(block.__enter__)()
    async with lock("order:1"):
        await sync_to_async(order)()
    assert not is_free("order:1")
    monkeypatch.setattr(transactions, "sees_commits", lambda connection: False)
    with pytest.raises(InvalidRedlock, match="before the lock"):
        await lock("order:2").aacquire()
    await sync_to_async(block.__exit__)(None, None, None)
    assert is_free("order:1")
    async with lock("order:1"):
        pass
    assert is_free("order:1")


async def test_an_async_lock_does_not_wait_for_the_transaction_of_another_task(
    context: None,
) -> None:
    began, go_on = threading.Event(), threading.Event()

    @transaction.atomic
    def work() -> None:
        began.set()
        go_on.wait(60)

    other = asyncio.create_task(sync_to_async(work)())
    await asyncio.to_thread(began.wait, 20)
    async with lock("order:1"):
        pass
    assert is_free("order:1")  # the other task's transaction is none of its business
    go_on.set()
    await other


@pytest.fixture
def without_autocommit() -> Iterator[None]:
    transaction.set_autocommit(False)
    yield
    transaction.rollback()
    transaction.set_autocommit(True)


@pytest.mark.usefixtures("without_autocommit")
def test_a_commit_of_the_sites_own_under_a_lost_lock(lose_locks: Callable[[], None]) -> None:
    with lock("order:1"):
        order()
    lose_locks()
    with pytest.raises(LockLost):
        transaction.commit()
    assert Order.objects.count() == 0


@pytest.mark.usefixtures("without_autocommit")
def test_a_transaction_without_autocommit_keeps_the_lock_until_commit() -> None:
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


class LocksInHandler(View):
    """A view whose lock is lost between its handler and the COMMIT of ATOMIC_REQUESTS."""

    lose_locks: Any = None

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        response = super().dispatch(request, *args, **kwargs)
        self.lose_locks()
        return response

    @method_decorator(lock_resource("order:1"))
    def post(self, request: HttpRequest) -> HttpResponse:
        order()
        return HttpResponse("done")

    def put(self, request: HttpRequest) -> HttpResponse:
        with lock("order:1"):
            order()
        return HttpResponse("done")


@pytest.mark.attack
@pytest.mark.parametrize("method", ["post", "put"])
def test_a_request_whose_lock_is_lost_before_its_commit_is_answered_503(
    settings: Settings,
    urls: Urls,
    lose_locks: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    method: str,
) -> None:
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    settings.MIDDLEWARE = [LOCK_MIDDLEWARE]
    urls(path("", LocksInHandler.as_view(lose_locks=lose_locks)))
    answer = getattr(Client(), method)("/")
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (503, "lock-lost")
    assert "Nothing was changed" in problem["detail"]
    assert Order.objects.count() == 0


class Transaction:
    """A middleware with a transaction of its own, at whose end no lock is held any more."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        with transaction.atomic():
            response = self.get_response(request)
            request.lose_locks()  # type: ignore[attr-defined]
            return response


@pytest.mark.attack
@pytest.mark.parametrize("asgi", [False, True])
@pytest.mark.parametrize("atomic", [False, True])
@pytest.mark.parametrize("order", [1, -1], ids=["around LockMiddleware", "inside"])
def test_the_transaction_of_a_middleware_is_rolled_back_for_a_lost_lock(
    settings: Settings,
    urls: Urls,
    lose_locks: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    order: int,
    atomic: bool,
    asgi: bool,
) -> None:
    """Only a LockMiddleware around that transaction can answer."""
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", atomic)

    @lock_resource("order:1")
    def view(request: HttpRequest) -> HttpResponse:
        Order.objects.create(number="A-1", total=1)
        request.lose_locks = lose_locks  # type: ignore[attr-defined]
        return HttpResponse("done")

    settings.MIDDLEWARE = [f"{__name__}.Transaction", LOCK_MIDDLEWARE][::order]
    urls(path("", view))
    answer = sender(asgi, raise_request_exception=False)("/")
    assert Order.objects.count() == 0
    assert answer.status_code == (500 if order == 1 else 503)
    if order == -1:
        assert answer.json()["code"] == "lock-lost"
        assert "Nothing was changed" in answer.json()["detail"]


@pytest.mark.attack
def test_a_lock_that_is_lost_between_two_commits_is_not_answered_as_without_effect(
    settings: Settings,
    urls: Urls,
    lose_locks: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    django_db_blocker: pytest_django.DjangoDbBlocker,
) -> None:
    """The database that is committed first keeps its row."""
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", False)
    second = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / "second.sqlite3")}

    @transaction.atomic(using="second")
    @lock_resource("order:1")
    def view(request: HttpRequest) -> HttpResponse:
        for alias in aliases:
            Order.objects.using(alias).create(number="A-1", total=1)
        request.lose_locks = lose_locks  # type: ignore[attr-defined]
        return HttpResponse("done")

    aliases = ("default", "second")
    settings.MIDDLEWARE = [LOCK_MIDDLEWARE, f"{__name__}.Transaction"]
    urls(path("", view))
    with django_db_blocker.unblock(), database_alias("second", second, tables=[Order]):
        answer = Client(raise_request_exception=False).post("/")
        assert [Order.objects.using(alias).count() for alias in aliases] == [0, 1]
    problem = answer.json()
    assert (answer.status_code, problem["code"], problem["retryable"]) == (503, "lock-lost", False)
    assert "Nothing was changed" not in problem["detail"]


@override_settings(REDLOCK={"default": {"BACKEND": MEMORY}})
class UsersTestCase(TestCase):
    """The transaction around a test is never committed, so it keeps no lock."""

    def test_locks_are_free_at_the_end_of_their_block(self) -> None:
        for _ in range(2):
            with transaction.atomic(), lock("order:1"):
                order()
            with lock("order:1"):
                Order.objects.all().delete()


def test_finds_the_connections_that_django_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """The quick way into asgiref's storage sees what the public way sees, in any thread."""

    def found() -> list[str]:
        listed = connections.all(initialized_only=True)
        for one in listed:
            monkeypatch.setattr(one, "autocommit", False)
        assert caller.open_transactions(lambda _: True) == listed
        return [one.alias for one in listed]

    def in_another_thread() -> tuple[list[str], list[str], list[str]]:
        none = found()
        connection.ensure_connection()
        one = found()
        asyncio.run(in_a_loop())
        after = found()
        connection.close()
        return none, one, after

    async def in_a_loop() -> None:
        assert connections["default"].alias in found()

    assert "default" in found()
    assert elsewhere(in_another_thread) == ([], ["default"], ["default"])
    asyncio.run(in_a_loop())


async def test_sync_code_that_waits_for_a_coroutine_is_found_as_asgiref_finds_it() -> None:
    def current() -> object:
        return getattr(AsyncToSync.executors, "current", None)

    async def inner() -> tuple[bool, bool]:
        return has_sync_caller(), _executor_of_caller() is current() is not None

    assert _executor_of_caller() is current() is None
    assert not has_sync_caller()
    assert await sync_to_async(async_to_sync(inner))() == (True, True)
    assert _executor_of_caller() is current()
    assert not has_sync_caller(), "no sync code waits any more"

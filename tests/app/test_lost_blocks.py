"""A block whose lock was lost raises LockLost at its end; the response of a view stays."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.auth.models import Group
from django.core.management import call_command
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from redlock_django import LockLost, hold, leader, lock, lock_resource, resume_lock
from redlock_django.backends.memory.backend import MemoryBackend
from redlock_django.management.child_process import ChildProcess
from redlock_django.signals import lock_released
from redlock_django.testing import lose_lock
from tests.app.conftest import memory_backend, stop_clocks

if TYPE_CHECKING:
    from redlock_django.engine.validity import Lease

R = "order:1"
LOST = f"^{R}(, user:7)?: the lock was lost before its block ended: "

pytestmark = pytest.mark.usefixtures("memory", "no_renewals")

Lose = Callable[[], None]


def expire() -> None:
    """Make the lock expire, without a look at it."""
    MemoryBackend.advance(3600)


def forget() -> None:
    """Make the masters forget the lock, which only a question to them shows."""
    backend = memory_backend()
    for master in backend.masters:
        for key in [key for key in master.keyspace.strings if ":lock:" in key]:
            del master.keyspace.strings[key]


LOSSES: dict[str, Lose] = {
    "reported": lambda: lose_lock(R),
    "expired": expire,
    "forgotten by the masters": forget,
}


def _block(lose: Lose) -> None:
    with lock(R):
        lose()


def _hold(lose: Lose) -> None:
    @hold(R)
    def work() -> None:
        lose()

    work()


def _resumed(lose: Lose) -> None:
    with lock(R) as held:
        ticket = held.transfer()
    with resume_lock(ticket):
        lose()


def _several(lose: Lose) -> None:
    with lock(R, "user:7"):
        lose()


def _permit(lose: Lose) -> None:
    with lock(R, limit=3):
        lose()


def _inner(lose: Lose) -> None:
    with lock(R) as outer:
        with lock(R, reentrant=True):
            lose()
        assert outer.locked, "not reached: the inner block raises"


def _term(lose: Lose) -> None:
    with leader(R):
        lose()


def _in_loop(work: Callable[[Lose], Awaitable[None]]) -> Callable[[Lose], None]:
    async def main(lose: Lose) -> None:
        await work(lose)

    return lambda lose: asyncio.run(main(lose))


@_in_loop
async def _async_block(lose: Lose) -> None:
    async with lock(R):
        lose()


@_in_loop
async def _async_hold(lose: Lose) -> None:
    @hold(R)
    async def work() -> None:
        lose()

    await work()


@_in_loop
async def _async_term(lose: Lose) -> None:
    async with leader(R):
        lose()


BLOCKS = {
    "with": _block,
    "async with": _async_block,
    "hold": _hold,
    "async hold": _async_hold,
    "resume_lock": _resumed,
    "several names": _several,
    "a permit": _permit,
    "an inner lock": _inner,
    "leader": _term,
    "async leader": _async_term,
}


@pytest.mark.parametrize("block", BLOCKS.values(), ids=list(BLOCKS))
@pytest.mark.parametrize("lose", LOSSES.values(), ids=list(LOSSES))
def test_a_block_raises_if_its_lock_was_lost(block: Callable[[Lose], None], lose: Lose) -> None:
    if block is _inner and lose is forget:
        pytest.skip("an inner lock asks no master when it ends")
    with pytest.raises(LockLost, match=LOST):
        block(lose)
    with lock(R):
        pass


@pytest.mark.parametrize("lose", LOSSES.values(), ids=list(LOSSES))
def test_another_exception_of_the_block_is_raised(lose: Lose) -> None:
    def fail() -> None:
        lose()
        raise KeyError("first")

    def block() -> None:
        with lock(R):
            fail()

    async def async_block() -> None:
        async with lock(R):
            fail()

    with pytest.raises(KeyError) as raised:
        block()
    assert raised.value.__context__ is None
    with pytest.raises(KeyError):
        asyncio.run(async_block())


@pytest.mark.parametrize("lose", LOSSES.values(), ids=list(LOSSES))
def test_an_explicit_release_returns_false(lose: Lose) -> None:
    held = lock(R).acquire()
    lose()
    assert held.release() is False
    with lock(R) as held:
        lose()
        assert held.release() is False


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_lock_that_expires_before_its_release_arrives_was_not_lost(
    is_async: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It was held when the block ended."""
    release, arelease = MemoryBackend.release, MemoryBackend.arelease

    def late(backend: MemoryBackend, lease: Lease) -> bool | None:
        expire()
        return release(backend, lease)

    async def alate(backend: MemoryBackend, lease: Lease) -> bool | None:
        expire()
        return await arelease(backend, lease)

    async def block() -> None:
        async with lock(R):
            pass

    freed: list[bool | None] = []

    def note(**released: Any) -> None:
        freed.append(released["freed"])

    lock_released.connect(note)
    monkeypatch.setattr(MemoryBackend, "release", late)
    monkeypatch.setattr(MemoryBackend, "arelease", alate)
    if is_async:
        asyncio.run(block())
    else:
        with lock(R) as held:
            pass
        assert lock(R).acquire().release() is False
        assert not held.locked
    assert not caplog.records
    assert freed
    assert set(freed) == {None}


def test_a_block_that_handed_its_lock_on_does_not_raise() -> None:
    with lock(R, ttl=10) as held:
        held.transfer(ttl=10)
        expire()


# Views.


def _answer(view: Any) -> HttpResponse:
    response = view(RequestFactory().post("/"))
    if asyncio.iscoroutine(response):
        response = asyncio.run(response)
    assert isinstance(response, HttpResponse)
    return response


@pytest.mark.parametrize("lose", LOSSES.values(), ids=list(LOSSES))
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_finished_response_stays(lose: Lose, is_async: bool) -> None:
    """Without a transaction there is no guard: what the view did is done."""

    @lock_resource(R)
    @transaction.non_atomic_requests
    def view(request: HttpRequest) -> HttpResponse:
        lose()
        return HttpResponse("done")

    @lock_resource(R)
    async def async_view(request: HttpRequest) -> HttpResponse:
        lose()
        return HttpResponse("done")

    response = _answer(async_view if is_async else view)
    assert (response.status_code, response.content) == (200, b"done")


@pytest.mark.django_db(transaction=True)
def test_a_view_whose_lock_is_lost_after_its_commit_has_its_response() -> None:
    @lock_resource(R)
    def view(request: HttpRequest) -> HttpResponse:
        Group.objects.create(name="committed")
        transaction.on_commit(lambda: lose_lock(R))
        return HttpResponse("done")

    assert _answer(view).status_code == 200
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

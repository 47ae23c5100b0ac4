"""A view whose lock is handed on: its release, transaction and middleware leave it alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import transaction
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import AsyncClient, Client
from django.urls import path
from pytest_django import Settings

from redlock_django import (
    InvalidRedlock,
    ResourceLocked,
    hold,
    idempotent,
    lock,
    lock_resource,
    locks,
    resume_lock,
)
from redlock_django.backends.memory.backend import MemoryBackend
from testproject.shop.models import Order
from tests.app.conftest import LOCK_MIDDLEWARE
from tests.app.test_hand_on import elsewhere

pytestmark = pytest.mark.django_db(transaction=True)
Ask = Callable[..., Any]
NAME = "nightly"


@pytest.fixture(params=["with-middleware", "without"])
def ask(
    request: pytest.FixtureRequest, memory: None, settings: Settings, urls: Callable[..., None]
) -> Ask:
    """Lock a view and request it once."""
    others = [one for one in settings.MIDDLEWARE if one != LOCK_MIDDLEWARE]
    settings.MIDDLEWARE = [*others, *([LOCK_MIDDLEWARE] * (request.param != "without"))]

    def once(view: Callable[[HttpRequest], Any]) -> Any:
        urls(path("", lock_resource(NAME)(view)))
        return Client(raise_request_exception=False).get("/")

    return once


def order() -> Order:
    return Order.objects.create(number="A-1", total=1)


def inner() -> Any:
    """Return the lock of the view, as its code gets it."""
    return lock(NAME, reentrant=True)


def is_free() -> bool:
    try:
        elsewhere(lambda: lock(NAME).acquire().release())
    except ResourceLocked:
        return False
    return True


@pytest.mark.parametrize("atomic", [True, False])
def test_a_task_that_begins_after_commit_takes_the_lock_of_the_view(
    ask: Ask, atomic: bool, happened: list[str]
) -> None:
    tickets: list[str] = []

    def view(request: HttpRequest) -> HttpResponse:
        order()
        held = inner().acquire()
        transaction.on_commit(lambda: tickets.append(held.transfer(ttl=60)))
        return HttpResponse()

    assert ask(view if atomic else transaction.non_atomic_requests(view)).status_code == 200
    assert Order.objects.count() == 1
    assert not is_free()
    with resume_lock(tickets[0]) as taken:
        taken.ensure_held()
    assert is_free()


def test_a_lock_inside_a_transaction_is_handed_on_after_it(memory: None) -> None:
    tickets: list[str] = []
    with lock(NAME) as outer, transaction.atomic():
        transaction.on_commit(lambda: tickets.append(outer.transfer()))
        order()
    assert not is_free()
    resume_lock(tickets[0]).acquire().release()
    assert is_free()


def test_a_ticket_that_is_made_before_commit_is_kept_and_sent_after_it(ask: Ask) -> None:
    tickets: list[str] = []

    def view(request: HttpRequest) -> HttpResponse:
        with inner() as held:
            ticket = held.transfer(ttl=60)
        order()
        transaction.on_commit(lambda: tickets.append(ticket))
        return HttpResponse()

    assert ask(view).status_code == 200
    assert Order.objects.count() == 1
    with resume_lock(tickets[0]):
        assert not is_free()


def test_a_rollback_leaves_the_lock_handed_on_until_its_time_is_over(ask: Ask) -> None:
    tickets: list[str] = []

    def view(request: HttpRequest) -> HttpResponse:
        with inner() as held:
            tickets.append(held.transfer(ttl=20))
        order()
        raise ZeroDivisionError

    assert ask(view).status_code == 500
    assert Order.objects.count() == 0
    assert not is_free()
    MemoryBackend.advance(21)
    assert is_free()


def test_a_view_that_is_still_running_when_the_time_is_over_is_rolled_back(ask: Ask) -> None:
    def view(request: HttpRequest) -> HttpResponse:
        with inner() as held:
            held.transfer(ttl=10)
        order()
        MemoryBackend.advance(11)
        return HttpResponse()

    answer = ask(view)
    assert answer.status_code == 503
    assert Order.objects.count() == 0


def test_a_stream_goes_on_after_its_lock_was_handed_on(ask: Ask) -> None:
    tickets: list[str] = []

    def chunks(held: Any) -> Iterator[str]:
        yield "a"
        tickets.append(held.transfer())
        yield "b"

    def view(request: HttpRequest) -> StreamingHttpResponse:
        return StreamingHttpResponse(chunks(inner().acquire()))

    answer = ask(view)
    assert b"".join(answer.streaming_content) == b"ab"
    answer.close()
    assert not is_free()
    resume_lock(tickets[0]).acquire().release()
    assert is_free()


def test_an_async_view_hands_its_lock_on(memory: None, urls: Callable[..., None]) -> None:
    tickets: list[str] = []

    async def view(request: HttpRequest) -> HttpResponse:
        held = await lock(NAME, reentrant=True).aacquire()
        tickets.append(await held.atransfer(ttl=60))
        return HttpResponse()

    urls(path("", lock_resource(NAME)(transaction.non_atomic_requests(view))))

    async def both() -> int:
        try:
            return int((await AsyncClient().get("/")).status_code)
        finally:
            await locks.aclose()

    assert asyncio.run(both()) == 200
    assert not is_free()
    resume_lock(tickets[0]).acquire().release()
    assert is_free()


def test_a_recorded_view_hands_its_lock_on(memory: None, urls: Callable[..., None]) -> None:
    @idempotent(anonymous_scope=lambda request: "all")
    @lock_resource(NAME)
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse(inner().acquire().transfer())

    urls(path("", view))
    ticket = Client().post("/", headers={"Idempotency-Key": "k"}).content.decode()
    assert not is_free()
    resume_lock(ticket).acquire().release()
    assert is_free()


def test_inside_a_transaction_that_may_read_old_data_no_ticket_is_used(memory: None) -> None:
    with lock(NAME) as held:
        ticket = held.transfer()
    with transaction.atomic(), pytest.raises(InvalidRedlock, match="inside an open transaction"):
        resume_lock(ticket).acquire()
    with resume_lock(ticket), transaction.atomic():
        order()
    assert is_free()


def test_a_task_that_holds_the_name_itself_is_refused(memory: None) -> None:
    with lock(NAME) as held:
        ticket = held.transfer()

    @hold(NAME)
    def task() -> None:
        resume_lock(ticket).acquire()

    with pytest.raises(ResourceLocked):
        task()
    with resume_lock(ticket):
        pass

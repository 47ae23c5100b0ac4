"""The transaction of a locked view: its outcome, and the order of commit and release."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path

from redlock_django import lock_resource
from testproject.shop.models import Order

pytestmark = pytest.mark.django_db(transaction=True)
Urls = Callable[..., None]
Ask = Callable[[Callable[[HttpRequest], Any]], HttpResponse]
LOCKED = ["lock", "BEGIN"]


@pytest.fixture
def ask(memory: None, urls: Urls) -> Ask:
    """Lock a view and request it once."""

    def once(view: Callable[[HttpRequest], Any]) -> Any:
        urls(path("", lock_resource("nightly")(view)))
        return Client(raise_request_exception=False).get("/")

    return once


def order(number: str = "A-1") -> Order:
    return Order.objects.create(number=number, total=1)


def test_on_commit_hooks_run_before_the_release(ask: Ask, happened: list[str]) -> None:
    def view(request: HttpRequest) -> HttpResponse:
        transaction.on_commit(lambda: happened.append("hook"))
        return HttpResponse()

    assert ask(view).status_code == 200
    assert happened == [*LOCKED, "guard", "COMMIT", "hook", "release"]


def test_a_hook_that_fails_frees_the_lock_and_keeps_the_commit(
    ask: Ask, happened: list[str]
) -> None:
    def view(request: HttpRequest) -> HttpResponse:
        order()
        transaction.on_commit(lambda: 1 / 0)
        return HttpResponse()

    assert ask(view).status_code == 500
    assert happened == [*LOCKED, "guard", "COMMIT", "release"]
    assert Order.objects.count() == 1


def test_a_500_that_is_returned_is_committed_as_django_does(ask: Ask, happened: list[str]) -> None:
    def view(request: HttpRequest) -> HttpResponse:
        order()
        return HttpResponse(status=500)

    assert ask(view).status_code == 500
    assert happened == [*LOCKED, "guard", "COMMIT", "release"]
    assert Order.objects.count() == 1


def test_a_view_may_ask_for_its_own_rollback(ask: Ask, happened: list[str]) -> None:
    def view(request: HttpRequest) -> HttpResponse:
        order()
        transaction.set_rollback(True)
        return HttpResponse(status=409)

    assert ask(view).status_code == 409
    assert happened == [*LOCKED, "guard", "ROLLBACK", "release"]
    assert Order.objects.count() == 0


def test_savepoints_stay_inside(ask: Ask, happened: list[str]) -> None:
    def view(request: HttpRequest) -> HttpResponse:
        order()
        with pytest.raises(IntegrityError), transaction.atomic():
            order()
        return HttpResponse()

    assert ask(view).status_code == 200
    assert happened == [*LOCKED, "guard", "COMMIT", "release"]
    assert Order.objects.count() == 1


def test_a_durable_block_inside_is_refused_as_django_does(ask: Ask) -> None:
    def view(request: HttpRequest) -> HttpResponse:
        with (
            pytest.raises(RuntimeError, match="durable atomic block"),
            transaction.atomic(durable=True),
        ):
            order()
        return HttpResponse()

    assert ask(view).status_code == 200
    assert Order.objects.count() == 0


def test_a_view_without_a_transaction_keeps_its_commits(
    ask: Ask, happened: list[str], lose_locks: Callable[[], None]
) -> None:
    @transaction.non_atomic_requests
    def view(request: HttpRequest) -> HttpResponse:
        assert not connection.in_atomic_block
        with transaction.atomic(durable=True):
            order()
        lose_locks()
        return HttpResponse("done")

    # Its effects are committed, so the response that reports them is kept.
    assert ask(view).content == b"done"
    assert happened == [*LOCKED, "COMMIT", "release"]
    assert Order.objects.count() == 1

"""A view has the same transaction with a key and without: a header does not decide about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.core.exceptions import PermissionDenied
from django.db import IntegrityError, connection, transaction
from django.http import HttpRequest, HttpResponse
from django.utils.decorators import method_decorator
from django.views.generic import View

from redlock_django import IdempotentMixin, idempotent, lock_resource
from testproject.shop.models import Order
from tests.idempotency.conftest import Site, make_order, orders

pytestmark = pytest.mark.django_db(transaction=True)
keys = pytest.mark.parametrize("has_key", [True, False], ids=["with a key", "without"])


@pytest.fixture(autouse=True, params=[True, False], ids=["ATOMIC_REQUESTS", "plain"])
def _atomic(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", request.param)


def returning(status: int) -> Callable[..., HttpResponse]:
    def view(request: HttpRequest, **_: Any) -> HttpResponse:
        make_order(request)
        return HttpResponse(status=status)

    return view


def raising(request: HttpRequest, **_: Any) -> HttpResponse:
    make_order(request)
    raise PermissionDenied


def durable(request: HttpRequest, **_: Any) -> HttpResponse:
    with transaction.atomic(durable=True):
        return make_order(request)


def caught(request: HttpRequest, **_: Any) -> HttpResponse:
    try:
        Order.objects.create(pk=1, number="A-1", total=1)
        Order.objects.create(pk=1, number="A-1", total=1)
    except IntegrityError:
        make_order(request)
    return HttpResponse()


class Plain(View):
    def post(self, request: HttpRequest, **_: Any) -> HttpResponse:
        return raising(request)


class Mixed(IdempotentMixin, Plain):
    pass


@method_decorator(idempotent, name="dispatch")
class Decorated(Plain):
    pass


DECORATED: dict[str, Callable[[Callable[..., Any]], Any]] = {
    "alone": idempotent,
    "above a lock": lambda view: idempotent(lock_resource("order:7")(view)),
}


@pytest.mark.attack
@keys
@pytest.mark.parametrize("decorated", DECORATED)
@pytest.mark.parametrize(
    "status",
    [
        *(200, 403, 429),
        *(pytest.param(more, marks=pytest.mark.nightly) for more in (400, 404, 408, 409, 423, 425)),
    ],
)
def test_a_wrong_pin_counts_with_every_key(
    site: Site, has_key: bool, decorated: str, status: int
) -> None:
    """The work of a view that returns a status below 500 is never rolled back."""
    site.serve(DECORATED[decorated](returning(status)))
    for number in range(3):
        assert site.post(f"key-{number}" if has_key else None).status_code == status
    assert orders() == 3


@pytest.mark.attack
@keys
@pytest.mark.parametrize("decorated", DECORATED)
@pytest.mark.parametrize(
    ("view", "status"),
    [(raising, 403), (returning(500), 500), (durable, 500), (caught, 500)],
    ids=["raised", "returned 5xx", "durable block", "caught error"],
)
def test_the_outcome_does_not_depend_on_the_key(
    site: Site, has_key: bool, decorated: str, view: Callable[..., Any], status: int
) -> None:
    site.serve(DECORATED[decorated](view))
    assert site.post("key" if has_key else None).status_code == status
    assert orders() == 0


@keys
@pytest.mark.parametrize(
    "view",
    [
        Mixed.as_view,
        Decorated.as_view,
    ],
    ids=["mixin", "dispatch"],
)
def test_a_class_has_the_same_transaction(site: Site, has_key: bool, view: Any) -> None:
    site.serve(view())
    assert site.post("key" if has_key else None).status_code == 403
    assert orders() == 0


def test_other_methods_have_no_transaction_of_their_own(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", False)
    site.serve(idempotent(durable))
    assert site.client.get("/orders/").status_code == 201

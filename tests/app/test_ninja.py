"""Locked operations of django-ninja: the lock comes after authentication."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ninja
import pytest
from django.http import HttpRequest
from django.test import Client
from django.urls import path
from ninja.decorators import decorate_view

from redlock_django import idempotent, lock_resource
from redlock_django.exceptions import InvalidRedlock
from redlock_django.testing import held_elsewhere
from testproject.shop.models import Order
from tests.app import ninja_annotations
from tests.app.conftest import Urls

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("memory")]
locked = lock_resource("order:<int:pk>")


def known(request: HttpRequest) -> str | None:
    return request.headers.get("X-User")


api = ninja.NinjaAPI(urls_namespace="locked", auth=known)


@api.post("/sync/{pk}/")
@locked
def pay(request: HttpRequest, pk: int) -> dict[str, Any]:
    return {"paid": pk}


@api.post("/async/{pk}/")
@locked
async def apay(request: HttpRequest, pk: int) -> dict[str, Any]:
    return {"paid": pk}


@api.post("/around/{pk}/")
@decorate_view(locked)
def around(request: HttpRequest, pk: int) -> dict[str, Any]:
    return {"paid": pk}


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_the_user_is_authenticated_before_the_lock(urls: Urls, plain: None, kind: str) -> None:
    urls(path("", api.urls))
    ann = Client(headers={"X-User": "ann"})
    assert ann.post(f"/{kind}/07/").json() == {"paid": 7}
    with held_elsewhere("order:7"):
        assert Client().post(f"/{kind}/7/").status_code == 401
        assert ann.post(f"/{kind}/seven/").status_code == 422
        assert ann.post(f"/{kind}/7/").status_code == 423


@api.post("/dict/{pk}/")
@idempotent(anonymous_scope=lambda request, **_: "all")
def later(request: HttpRequest, pk: int) -> dict[str, Any]:
    Order.objects.create(number=str(pk), total=1)
    return {"paid": pk}


@pytest.mark.parametrize("key", ["k-1", None])
def test_an_idempotent_function_that_returns_no_response_is_refused(
    urls: Urls, plain: None, key: str | None
) -> None:
    urls(path("", api.urls))
    headers = {"X-User": "ann"} | ({"Idempotency-Key": key} if key else {})
    with pytest.raises(InvalidRedlock, match=r"returned dict.*JsonResponse"):
        Client(headers=headers).post("/dict/7/")
    assert Order.objects.count() == 0


@pytest.mark.attack
def test_a_lock_around_the_authentication_is_refused(urls: Urls) -> None:
    urls(path("", api.urls))
    with pytest.raises(InvalidRedlock, match="directly on the function"):
        Client(headers={"X-User": "ann"}).post("/around/7/")


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_lock_around_an_operation_that_has_one_is_refused_at_import(kind: str) -> None:
    def pay_twice(request: HttpRequest, pk: int) -> dict[str, Any]:
        return {"paid": pk}

    async def apay_twice(request: HttpRequest, pk: int) -> dict[str, Any]:
        return {"paid": pk}

    operation = ninja.NinjaAPI(urls_namespace=f"twice-{kind}").post("/{pk}/")
    locked_twice = decorate_view(locked)(locked(pay_twice if kind == "sync" else apay_twice))
    with pytest.raises(InvalidRedlock, match=r"pay_twice has two lock decorators.*Pass all templ"):
        operation(locked_twice)


@pytest.mark.parametrize("function", [pay, apay])
def test_idempotent_around_an_operation_that_has_a_lock_is_refused_at_import(
    function: Callable[..., Any],
) -> None:
    """An async operation has no transaction, but the answer to a held lock would be recorded."""
    once = decorate_view(idempotent(anonymous_scope=lambda request, **_: "all"))
    operation = ninja.NinjaAPI(urls_namespace=f"recorded-{function.__name__}").post("/{pk}/")
    with pytest.raises(InvalidRedlock, match=r"pay: @idempotent in @decorate_view begins a trans"):
        operation(once(function))


@pytest.mark.parametrize(
    "place",
    [
        *("lock/sync", "lock/async", "lock/form", "once/sync", "once/async", "once/form"),
        *("both/sync", "both/async"),
    ],
)
def test_annotations_that_are_strings_are_found_in_the_module_of_the_view(
    urls: Urls, plain: None, place: str
) -> None:
    urls(path("", ninja_annotations.api.urls))
    data = {"order": "6fa459ea-ee8a-3ca4-894e-db77e160355e", "amount": 3}
    headers = {"Idempotency-Key": "k-1"}
    kind = "multipart/form-data" if place.endswith("form") else "application/json"
    form = {"data": data} if kind != "application/json" else {"data": data, "content_type": kind}
    for _ in range(2):
        answer = Client(headers=headers).post(f"/{place}/", **form)
        assert (answer.status_code, answer.json()) == (200, {"paid": 3})

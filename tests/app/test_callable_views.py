"""Views that are partial objects or instances: what their requests refuse, and what works."""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client
from django.urls import path
from django.utils.decorators import method_decorator
from django.views.generic import View
from pytest_django import Settings

from redlock_django import idempotent, lock_resource
from redlock_django.exceptions import AlreadyHeld, InvalidRedlock
from tests.app.checking import found
from tests.app.conftest import LOCK_MIDDLEWARE, MEMORY, Urls, async_instance, instance, wrapping

Decorator = Callable[[Any], Any]
locked = lock_resource("order:<int:pk>")
by_anyone = idempotent(anonymous_scope=lambda request, **_: "anyone")
pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _middleware(memory: None, settings: Settings) -> None:
    settings.MIDDLEWARE = [LOCK_MIDDLEWARE]


def pay(request: HttpRequest, pk: int, **_: Any) -> HttpResponse:
    return HttpResponse()


async def apay(request: HttpRequest, pk: int, **_: Any) -> HttpResponse:
    return HttpResponse()


def lacking(view: Any) -> Any:
    """Decorate a view without its attributes."""
    return functools.wraps(view, updated=())(lambda *args, **kwargs: view(*args, **kwargs))


HIDING: dict[str, Callable[[Decorator], Any]] = {
    "partial": lambda decorate: partial(decorate(pay), paid=True),
    "partial of a partial": lambda decorate: partial(partial(decorate(pay), paid=True), by="card"),
    "decorated partial": lambda decorate: wrapping(partial(decorate(pay), paid=True)),
    "decorator without its attributes": lambda decorate: lacking(decorate(pay)),
    "instance": instance,
    "instance, method_decorator": lambda decorate: instance(method_decorator(decorate)),
    "partial of an instance": lambda decorate: partial(instance(decorate), paid=True),
}
SHOWING: dict[str, Callable[[Decorator], Any]] = {
    "around a partial": lambda decorate: decorate(partial(pay, paid=True)),
    "around an instance": lambda decorate: decorate(instance(lambda view: view)),
    "partial with the attributes of its view": lambda decorate: functools.update_wrapper(
        partial(decorate(pay), paid=True), decorate(pay)
    ),
    "bound method": lambda decorate: instance(decorate).__call__,
}
ASYNC: dict[str, Callable[[Decorator], Any]] = {
    "partial": lambda decorate: partial(decorate(apay), paid=True),
    "around a partial": lambda decorate: decorate(partial(apay, paid=True)),
    "instance": async_instance,
}


@pytest.mark.parametrize("shape", HIDING)
def test_a_lock_in_the_transaction_of_a_request_is_refused(
    urls: Urls, settings: Settings, shape: str
) -> None:
    urls(path("<int:pk>/", HIDING[shape](locked)))
    with pytest.raises(
        InvalidRedlock, match="is called inside an open transaction of 'default'"
    ) as old:
        Client().post("/7/")
    assert "functools.wraps" in str(old.value)
    assert "decorate a partial() or an instance itself" in str(old.value)
    settings.MIDDLEWARE = []
    with pytest.raises(InvalidRedlock, match="only LockMiddleware can answer a lock error after"):
        Client().post("/7/")


@pytest.mark.parametrize("shape", HIDING)
def test_a_record_in_the_transaction_of_a_request_is_refused(urls: Urls, shape: str) -> None:
    urls(path("<int:pk>/", HIDING[shape](idempotent)))
    with pytest.raises(InvalidRedlock, match="is called inside an atomic block of 'default'"):
        Client().post("/7/", headers={"Idempotency-Key": "k"})


@pytest.mark.parametrize("shape", SHOWING)
@pytest.mark.parametrize("decorate", [locked, idempotent])
def test_a_view_that_opens_its_own_transaction_is_in_order(
    urls: Urls, shape: str, decorate: Decorator
) -> None:
    urls(path("<int:pk>/", SHOWING[shape](decorate)))
    assert found() == {}
    assert Client().post("/7/").status_code == 200


@pytest.mark.parametrize("shape", HIDING)
def test_a_name_that_a_rule_has_locked_is_refused(
    urls: Urls, settings: Settings, plain: None, shape: str
) -> None:
    rule = {"view": "pay", "key": "order:<int:pk>"}
    settings.REDLOCK = {"default": {"BACKEND": MEMORY, "RULES": [rule]}}
    urls(path("<int:pk>/", HIDING[shape](locked), name="pay"))
    where = r"which rule 1 of RULES in REDLOCK\['default'\] has locked already in this request"
    with pytest.raises(AlreadyHeld, match=where):
        Client().post("/7/")


@pytest.mark.parametrize("shape", HIDING)
def test_a_template_needs_the_kwargs_of_the_url_and_of_the_partial(
    urls: Urls, plain: None, shape: str
) -> None:
    urls(path("<int:pk>/", HIDING[shape](lock_resource("order:<int:id>"))))
    with pytest.raises(InvalidRedlock, match="'order:<int:id>' needs the URL kwarg 'id'"):
        Client().post("/7/")
    urls(path("<int:pk>/", HIDING[shape](lock_resource("order:<int:pk>:<paid>"))))
    is_given = "partial" in shape
    said = "<paid> is of type bool" if is_given else "needs the URL kwarg 'paid'"
    with pytest.raises(InvalidRedlock, match=said):
        Client().post("/7/")


def test_a_value_that_a_partial_gives_has_one_spelling(urls: Urls, plain: None) -> None:
    urls(path("<int:pk>/", partial(lock_resource("order:<int:pk>:<shop_id>")(pay), shop_id="a")))
    assert found() == {}
    assert Client().post("/7/").status_code == 200


@pytest.mark.parametrize("shape", ASYNC)
@pytest.mark.parametrize("decorate", [locked, by_anyone])
def test_an_async_view_under_atomic_requests_is_refused(
    urls: Urls, monkeypatch: pytest.MonkeyPatch, shape: str, decorate: Decorator
) -> None:
    urls(path("<int:pk>/", ASYNC[shape](decorate)))
    post: Any = async_to_sync(AsyncClient().post)
    with pytest.raises(RuntimeError, match="You cannot use ATOMIC_REQUESTS with async views"):
        post("/7/", headers={"Idempotency-Key": "k"})
    urls(path("<int:pk>/", transaction.non_atomic_requests(ASYNC[shape](decorate))))
    assert found() == {}
    assert post("/7/").status_code == 200


@pytest.mark.parametrize("decorate", [locked, by_anyone])
@pytest.mark.parametrize("is_async", [False, True])
def test_an_exclusion_below_the_lock_of_a_dispatch_has_no_effect(
    urls: Urls, decorate: Decorator, is_async: bool
) -> None:
    class Sync(View):
        def post(self, request: HttpRequest, pk: int) -> HttpResponse:
            return HttpResponse("atomic" if connection.in_atomic_block else "")

    class Async(View):
        async def post(self, request: HttpRequest, pk: int) -> HttpResponse:
            return HttpResponse()

    def put(*decorators: Decorator) -> None:
        owner: Any = type("Pay", (Async if is_async else Sync,), {})
        urls(path("<int:pk>/", method_decorator(decorators, name="dispatch")(owner).as_view()))

    post: Any = async_to_sync(AsyncClient().post) if is_async else Client().post
    put(decorate, transaction.non_atomic_requests)
    if is_async:
        with pytest.raises(RuntimeError, match="You cannot use ATOMIC_REQUESTS with async views"):
            post("/7/", headers={"Idempotency-Key": "k"})
    elif decorate is locked:
        assert post("/7/").content == b"atomic"
    else:
        with pytest.raises(InvalidRedlock, match="Remove the mark"):
            post("/7/")
    put(transaction.non_atomic_requests, decorate)
    assert found() == {}
    # A record of the database is committed with its view in any case.
    assert post("/7/").content == (b"" if is_async or decorate is locked else b"atomic")


APPLIED: dict[str, Callable[[Decorator], Any]] = {
    "instance": instance,
    "async instance": async_instance,
    "decorated instance": lambda decorate: wrapping(instance(decorate)),
    "partial of an instance": lambda decorate: partial(instance(decorate), paid=True),
    "lock around an instance": lambda decorate: lock_resource("shop")(instance(decorate)),
    "bound method": lambda decorate: instance(decorate).__call__,
    "partial of a bound method": lambda decorate: partial(instance(decorate).__call__, paid=True),
}


@pytest.mark.parametrize("shape", APPLIED)
@pytest.mark.parametrize(
    ("decorators", "message"),
    [
        ([locked, lock_resource("user:<user.pk>")], "has two lock decorators"),
        ([locked, wrapping, by_anyone], "@idempotent is below the lock"),
        ([by_anyone, idempotent], "decorated with @idempotent twice"),
    ],
)
def test_each_request_of_an_instance_refuses_its_decorators(
    urls: Urls, plain: None, shape: str, decorators: list[Decorator], message: str
) -> None:
    urls(path("<int:pk>/", APPLIED[shape](method_decorator(decorators))))
    post: Any = async_to_sync(AsyncClient().post) if "async" in shape else Client().post
    with pytest.raises(InvalidRedlock, match=message):
        post("/7/", headers={"Idempotency-Key": "k"})


@pytest.mark.parametrize("inside", [lambda: partial(by_anyone(pay)), lambda: instance(by_anyone)])
def test_a_lock_around_an_idempotent_partial_or_instance_is_refused(
    urls: Urls, plain: None, inside: Callable[[], Any]
) -> None:
    urls(path("<int:pk>/", locked(inside())))
    for headers in ({}, {"Idempotency-Key": "k"}):
        with pytest.raises(InvalidRedlock, match="@idempotent is below the lock"):
            Client().post("/7/", headers=headers)


@pytest.mark.parametrize(("name", "value"), [("cls", "x"), ("actions", ["list"])])
def test_a_view_may_have_attributes_that_are_named_as_those_of_classes(
    urls: Urls, plain: None, name: str, value: object
) -> None:
    def view(request: HttpRequest, pk: int) -> HttpResponse:
        return HttpResponse()

    setattr(view, name, value)
    urls(path("<int:pk>/", view))
    assert found() == {}

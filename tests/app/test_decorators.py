"""Locks and records together with other decorators, in every place of a view."""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from asgiref.sync import iscoroutinefunction, sync_to_async
from django.contrib.auth.decorators import login_required
from django.db import connection, connections, transaction
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path
from django.utils.decorators import method_decorator
from django.views.decorators.csrf import csrf_exempt
from django.views.generic import View
from ninja import NinjaAPI
from ninja.decorators import decorate_view
from pytest_django import Settings

from redlock_django import LockResourceMixin, idempotent, lock, lock_resource
from redlock_django.exceptions import AlreadyHeld, InvalidRedlock
from redlock_django.testing import held_elsewhere
from tests.app.checking import found
from tests.app.conftest import MEMORY, Configure, Urls, async_instance, instance, sender, wrapping
from tests.inspecting import is_free
from tests.views.kinds import KEY, Actions, Rest, derived, locked

Decorator = Callable[[Any], Any]
Send = Callable[..., Any]
by_anyone = idempotent(anonymous_scope=lambda request, **_: "anyone")
pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("lock_middleware", "plain"),
]


@pytest.fixture
def atomic(plain: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Open a transaction for each request: ATOMIC_REQUESTS is True."""
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)


@pytest.fixture
def send(urls: Urls) -> Send:
    """Return a function that makes a view the whole site, and sends it a request with a key.

    With `in_order`, the checks must have no message about that site.
    """

    def send(view: Any, key: str | None = "k-1", *, in_order: bool = False) -> Any:
        urls(path("<int:pk>/", view, name="pay"))
        assert not in_order or found() == {}
        headers = {} if key is None else {"Idempotency-Key": key}
        return sender(iscoroutinefunction(view))("/7/", headers=headers)

    return send


def pay(request: HttpRequest, pk: int, **_: Any) -> HttpResponse:
    return HttpResponse()


async def apay(request: HttpRequest, pk: int, **_: Any) -> HttpResponse:
    return HttpResponse()


class Sync(View):
    def post(self, request: HttpRequest, pk: int) -> HttpResponse:
        return HttpResponse("atomic" if connection.in_atomic_block else "")


class Async(View):
    async def post(self, request: HttpRequest, pk: int) -> HttpResponse:
        return HttpResponse()


# Partial objects and instances.


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


@pytest.mark.usefixtures("atomic")
@pytest.mark.parametrize("shape", HIDING)
def test_a_lock_in_the_transaction_of_a_request_is_refused(
    send: Send, settings: Settings, shape: str
) -> None:
    view = HIDING[shape](locked)
    with pytest.raises(InvalidRedlock, match="is called inside an open transaction of 'd") as old:
        send(view)
    assert "functools.wraps" in str(old.value)
    assert "decorate a partial() or an instance itself" in str(old.value)
    settings.MIDDLEWARE = []
    with pytest.raises(InvalidRedlock, match="only LockMiddleware can answer a lock error after"):
        send(view)


@pytest.mark.usefixtures("atomic")
@pytest.mark.parametrize("shape", HIDING)
def test_a_record_in_the_transaction_of_a_request_is_refused(send: Send, shape: str) -> None:
    with pytest.raises(InvalidRedlock, match="is called inside an atomic block of 'default'"):
        send(HIDING[shape](idempotent))


@pytest.mark.usefixtures("atomic")
@pytest.mark.parametrize("shape", SHOWING)
@pytest.mark.parametrize("decorate", [locked, idempotent])
def test_a_view_that_opens_its_own_transaction_is_in_order(
    send: Send, shape: str, decorate: Decorator
) -> None:
    assert send(SHOWING[shape](decorate), key=None, in_order=True).status_code == 200


@pytest.mark.parametrize("shape", HIDING)
def test_a_name_that_a_rule_has_locked_is_refused(
    send: Send, memory: Configure, shape: str
) -> None:
    memory(RULES=[{"view": "pay", "key": KEY}])
    where = r"which rule 1 of RULES in REDLOCK\['default'\] has locked already in this request"
    with pytest.raises(AlreadyHeld, match=where):
        send(HIDING[shape](locked))


@pytest.mark.parametrize("shape", HIDING)
def test_a_template_needs_the_kwargs_of_the_url_and_of_the_partial(send: Send, shape: str) -> None:
    with pytest.raises(InvalidRedlock, match="'order:<int:id>' needs the URL kwarg 'id'"):
        send(HIDING[shape](lock_resource("order:<int:id>")))
    is_given = "partial" in shape
    said = "<paid> is of type bool" if is_given else "needs the URL kwarg 'paid'"
    with pytest.raises(InvalidRedlock, match=said):
        send(HIDING[shape](lock_resource("order:<int:pk>:<paid>")))


def test_a_value_that_a_partial_gives_has_one_spelling(send: Send) -> None:
    view = partial(lock_resource("order:<int:pk>:<shop_id>")(pay), shop_id="a")
    assert send(view, in_order=True).status_code == 200


@pytest.mark.usefixtures("atomic")
@pytest.mark.parametrize("shape", ASYNC)
@pytest.mark.parametrize("decorate", [locked, by_anyone])
def test_an_async_view_under_atomic_requests_is_refused(
    send: Send, shape: str, decorate: Decorator
) -> None:
    with pytest.raises(RuntimeError, match="You cannot use ATOMIC_REQUESTS with async views"):
        send(ASYNC[shape](decorate))
    view = transaction.non_atomic_requests(ASYNC[shape](decorate))
    assert send(view, key=None, in_order=True).status_code == 200


@pytest.mark.usefixtures("atomic")
@pytest.mark.parametrize("decorate", [locked, by_anyone])
@pytest.mark.parametrize("base", [Sync, Async])
def test_an_exclusion_below_the_lock_of_a_dispatch_has_no_effect(
    send: Send, decorate: Decorator, base: type[View]
) -> None:
    below = derived(base, decorate, transaction.non_atomic_requests).as_view()
    if base is Async:
        with pytest.raises(RuntimeError, match="You cannot use ATOMIC_REQUESTS with async views"):
            send(below)
    elif decorate is locked:
        assert send(below, key=None).content == b"atomic"
    else:
        with pytest.raises(InvalidRedlock, match="Remove the mark"):
            send(below, key=None)
    above = derived(base, transaction.non_atomic_requests, decorate).as_view()
    # A record of the database is committed with its view in any case.
    is_atomic = base is Sync and decorate is not locked
    assert send(above, key=None, in_order=True).content == (b"atomic" if is_atomic else b"")


APPLIED: dict[str, Callable[[Decorator], Any]] = {
    "instance": instance,
    "async instance": async_instance,
    "decorated instance": lambda decorate: wrapping(instance(decorate)),
    "partial of an instance": lambda decorate: partial(instance(decorate), paid=True),
    "lock around an instance": lambda decorate: lock_resource("shop")(instance(decorate)),
    "bound method": lambda decorate: instance(decorate).__call__,
    "partial of a bound method": lambda decorate: partial(instance(decorate).__call__, paid=True),
}
REFUSED: dict[str, tuple[list[Any], str]] = {
    "two locks": ([locked, lock_resource("shop")], "has two lock decorators"),
    "apart": ([locked, wrapping, by_anyone], "@idempotent is below the lock"),
    "twice": ([by_anyone, idempotent], "decorated with @idempotent twice"),
    "login inside": ([by_anyone, login_required], "a login or permission decorator is inside"),
}
"""Decorators of one view that each request refuses, and with which words."""


@pytest.mark.parametrize("shape", APPLIED)
@pytest.mark.parametrize("refused", REFUSED)
def test_each_request_of_an_instance_refuses_its_decorators(
    send: Send, shape: str, refused: str
) -> None:
    decorators, message = REFUSED[refused]
    with pytest.raises(InvalidRedlock, match=message):
        send(APPLIED[shape](method_decorator(decorators)))


@pytest.mark.parametrize("inside", [lambda: partial(by_anyone(pay)), lambda: instance(by_anyone)])
@pytest.mark.parametrize("key", [None, "k-1"])
def test_a_lock_around_an_idempotent_partial_or_instance_is_refused(
    send: Send, inside: Callable[[], Any], key: str | None
) -> None:
    with pytest.raises(InvalidRedlock, match="@idempotent is below the lock"):
        send(locked(inside()), key)


@pytest.mark.parametrize(("name", "value"), [("cls", "x"), ("actions", ["list"])])
def test_a_view_may_have_attributes_that_are_named_as_those_of_classes(
    urls: Urls, name: str, value: object
) -> None:
    def view(request: HttpRequest, pk: int) -> HttpResponse:
        return HttpResponse()

    setattr(view, name, value)
    urls(path("<int:pk>/", view))
    assert found() == {}


# `method_decorator` and `decorate_view`: a decorator of ours around others knows its view.


@pytest.mark.parametrize("is_async", [True, False], ids=["asgi", "wsgi"])
@pytest.mark.parametrize("ours", [locked, by_anyone])
def test_an_async_class_is_run_as_one(urls: Urls, is_async: bool, ours: Any) -> None:
    @method_decorator([ours, csrf_exempt], name="dispatch")
    class Decorated(View):
        async def post(self, request: HttpRequest, pk: int) -> HttpResponse:
            return HttpResponse("free" if await sync_to_async(is_free)("order:7") else "locked")

    urls(path("<int:pk>/", Decorated.as_view()))
    answer = sender(is_async)("/7/", headers={"Idempotency-Key": "k-1"})
    assert answer.content == (b"locked" if ours is locked else b"free")


@pytest.mark.parametrize("place", ["dispatch", "handler", "dispatch of a base"])
@pytest.mark.parametrize("refused", REFUSED)
@pytest.mark.parametrize("base", [Sync, Async, Rest, Actions])
def test_each_request_refuses_decorators_of_a_method(
    send: Send, settings: Settings, base: type[Any], refused: str, place: str
) -> None:
    settings.REST_FRAMEWORK = {"UNAUTHENTICATED_USER": None}
    decorators, message = REFUSED[refused]
    if place == "handler":
        name = "pay" if base is Actions else "post"
        owner = method_decorator(decorators, name=name)(derived(base))
    else:
        owner = derived(base, *decorators)
    if place == "dispatch of a base":
        owner = derived(owner, dispatch=wrapping(owner.dispatch))
    view = owner.as_view({"post": "pay"}) if base is Actions else owner.as_view()
    with pytest.raises(InvalidRedlock, match=message):
        send(view)


@pytest.mark.parametrize(
    "decorators", [[locked, by_anyone], [by_anyone, locked], [locked], [locked, csrf_exempt]]
)
@pytest.mark.parametrize("base", [Sync, Async])
def test_a_lock_of_a_dispatch_around_an_idempotent_handler_is_refused(
    send: Send, base: Any, decorators: list[Any]
) -> None:
    """A record outside of the lock is another matter."""
    view = derived(base, *decorators, post=idempotent(base.post)).as_view()
    if decorators[0] is by_anyone:
        assert send(view).status_code == 200
    else:
        with pytest.raises(InvalidRedlock, match="@idempotent is below the lock"):
            send(view)


@pytest.mark.parametrize(
    ("ours", "message"), [(locked, "@idempotent is below the lock"), (idempotent, "twice")]
)
def test_a_decorator_around_an_idempotent_operation_is_an_error(ours: Any, message: str) -> None:
    """A replay would wait for the lock, or be recorded twice."""

    @decorate_view(ours)
    @idempotent
    def pay(request: HttpRequest, pk: int) -> HttpResponse:
        raise AssertionError("never")

    with pytest.raises(InvalidRedlock, match=message):
        NinjaAPI(urls_namespace=message).post("/{pk}/")(pay)


def test_classes_that_inherit_one_dispatch_keep_their_own_decorators(urls: Urls) -> None:
    urls(
        path("locked/<int:pk>/", derived(Sync, locked, csrf_exempt).as_view()),
        path("both/<int:pk>/", derived(Sync, by_anyone, locked, csrf_exempt).as_view()),
        path("once/<int:pk>/", derived(Sync, by_anyone, csrf_exempt).as_view()),
    )
    client = Client(headers={"Idempotency-Key": "k-1"})
    for _ in range(2):
        with held_elsewhere("order:7"):
            answers = [client.post(f"/{name}/7/") for name in ("locked", "once")]
        assert [answer.status_code for answer in answers] == [423, 200]
        assert "Idempotent-Replayed" not in answers[0]
    assert answers[1]["Idempotent-Replayed"] == "true"
    assert client.post("/both/7/").status_code == 422  # the key of another path


# A lock around a view, and another one on its handler: of one name an error, of two in order.


def mixed(view: Any) -> Any:
    return type("Own", (LockResourceMixin, view), {"lock_key": KEY}).as_view()  # type: ignore[attr-defined]


HANDLERS: dict[str, Callable[[], Any]] = {
    "sync": lambda: derived(Sync, post=locked(Sync.post)),
    "method_decorator": lambda: derived(Sync, post=method_decorator(locked)(Sync.post)),
    "async": lambda: derived(Async, post=locked(Async.post)),
}
AROUND: dict[str, Callable[[Any], Any]] = {
    "rule": lambda view: view.as_view(),
    "as_view": lambda view: locked(view.as_view()),
    "dispatch": lambda view: derived(view, locked).as_view(),
    "mixin": mixed,
}


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("handler", HANDLERS)
def test_a_name_that_is_locked_around_the_handler_is_an_error_that_names_both(
    send: Send, memory: Configure, handler: str, around: str
) -> None:
    places = {"mixin": "Own", "rule": "rule 1 of RULES in REDLOCK['default']"}
    if around == "rule":
        memory(RULES=[{"view": "pay", "key": KEY}])
    with pytest.raises(AlreadyHeld, match=r"\.post locks 'order:7', which ") as caught:
        send(AROUND[around](HANDLERS[handler]()))
    assert f"{places.get(around, 'Pay')} has locked already in this request" in str(caught.value)
    assert is_free("order:7")


def viewset() -> Any:
    own = derived(Actions, pay=locked(Actions.pay))
    return [path("<int:pk>/", own.as_view({"post": "pay"}))]


def operation() -> Any:
    api = NinjaAPI(urls_namespace="twice")

    @api.post("/{int:pk}/", url_name="pay")
    @locked
    def pay(request: HttpRequest, pk: int) -> HttpResponse:
        return HttpResponse()

    return api.urls[0]


@pytest.mark.parametrize(("patterns", "name"), [(viewset, "Actions.pay"), (operation, "pay")])
def test_a_rule_around_a_handler_of_a_framework_is_an_error_that_names_both(
    urls: Urls, memory: Configure, patterns: Callable[[], Any], name: str
) -> None:
    urls(*patterns())
    memory(RULES=[{"path": "<int:pk>/", "key": KEY}])
    with pytest.raises(AlreadyHeld, match=rf"{name} locks 'order:7', which rule 1 of RULES"):
        Client().post("/7/")


@pytest.mark.parametrize(
    "rule", [{"methods": ["GET"]}, {"key": "order:<int:pk>:paid"}, {"using": "other"}]
)
def test_locks_that_never_meet_are_no_error(
    send: Send, settings: Settings, rule: dict[str, Any]
) -> None:
    settings.REDLOCK = {
        "default": {"BACKEND": MEMORY, "RULES": [{"view": "pay", "key": KEY, **rule}]},
        "other": {"BACKEND": MEMORY, "KEY_PREFIX": "other"},
    }
    assert send(HANDLERS["sync"]().as_view(), in_order=True).status_code == 200


@pytest.mark.usefixtures("atomic")
@pytest.mark.parametrize("around", AROUND)
def test_another_name_is_locked_in_a_transaction_that_must_see_commits(
    send: Send, memory: Configure, around: str
) -> None:
    if around == "rule":
        memory(RULES=[{"view": "pay", "key": KEY}])
    own = derived(Sync, post=lock_resource("shop")(Sync.post))
    with pytest.raises(InvalidRedlock, match="which may read data from before the lock"):
        send(AROUND[around](own))


@pytest.mark.usefixtures("atomic", "sees_commits")
def test_two_names_are_locked_from_the_outside_to_the_inside(
    send: Send, memory: Configure, happened: list[str]
) -> None:
    memory(RULES=[{"view": "pay", "key": "shop"}])
    assert send(HANDLERS["sync"]().as_view(), in_order=True).status_code == 200
    assert happened == [
        "lock", "BEGIN", "lock", *["guard"] * 3, "COMMIT", "release", "release",
    ]  # fmt: skip


def test_a_name_that_a_middleware_has_locked_is_an_error(send: Send) -> None:
    view = locked(HANDLERS["sync"]().as_view())
    with lock("order:7"), pytest.raises(AlreadyHeld, match="code around it, such as a middleware"):
        send(view)

"""Locks on class-based views: dispatch, the mixin, the result of as_view()."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from asgiref.sync import iscoroutinefunction
from django.contrib.auth.mixins import AccessMixin
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory
from django.urls import path
from django.utils.decorators import method_decorator
from django.views.decorators.csrf import csrf_exempt
from django.views.generic import View

from redlock_django import LockResourceMixin, lock_resource, resource
from redlock_django.exceptions import InvalidRedlock
from redlock_django.testing import held_elsewhere
from testproject.shop.models import Order
from tests.app.conftest import Urls

WRITES = pytest.mark.django_db(transaction=True)
LOCKED_OUTSIDE = ["lock", "BEGIN", "view", "guard", "COMMIT", "release"]
locked = lock_resource("order:<int:pk>")


@pytest.fixture(autouse=True)
def _memory(memory: None) -> None:
    """Use the memory backend."""


class Plain(View):
    seen: ClassVar[list[str]] = []

    def post(self, request: HttpRequest, pk: int) -> HttpResponse:
        self.seen.append("view")
        Order.objects.create(number=str(pk), total=1)
        return HttpResponse("done")


class Overridden(Plain):
    """A class to decorate, with a dispatch of its own."""

    @locked
    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        return super().dispatch(request, *args, **kwargs)


class Mixed(LockResourceMixin, Plain):
    lock_key = "order:<int:pk>"


class Above(AccessMixin, LockResourceMixin, Plain):
    """A subclass of the locked view overrides dispatch."""

    lock_key = ("order:<int:pk>", "nightly")

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        self.seen.append("access")
        return super().dispatch(request, *args, **kwargs)


@method_decorator(locked, name="dispatch")
class Decorated(Plain):
    pass


FORMS: dict[str, Callable[[], Any]] = {
    "as_view": lambda: locked(Plain.as_view()),
    "dispatch": Decorated.as_view,
    "overridden": Overridden.as_view,
    "mixin": Mixed.as_view,
    "initkwargs": lambda: Mixed.as_view(lock_key="order:<int:pk>"),
}


@WRITES
def test_base_classes_before_the_mixin_run_before_the_lock(
    urls: Urls, client: Client, happened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Plain, "seen", happened)
    urls(path("<int:pk>/", Above.as_view()))
    assert client.post("/7/").content == b"done"
    assert happened == ["access", *LOCKED_OUTSIDE]


@WRITES
@pytest.mark.parametrize("place", ["below", "above"])
def test_fields_that_the_user_excluded_stay_excluded(
    urls: Urls, client: Client, happened: list[str], place: str
) -> None:
    excluded = method_decorator(transaction.non_atomic_requests, name="dispatch")
    lock_it = method_decorator(locked, name="dispatch")

    class Own(Plain):
        pass

    view: Any = lock_it(excluded(Own)) if place == "below" else excluded(lock_it(Own))
    urls(path("<int:pk>/", view.as_view()))
    assert client.post("/7/").content == b"done"
    assert happened == ["lock", "release"]


def test_a_locked_as_view_keeps_its_attributes() -> None:
    plain: Any = csrf_exempt(Plain.as_view())
    view: Any = locked(plain)
    assert view.view_class is Plain
    assert view.csrf_exempt is True
    assert view.view_initkwargs == {}
    assert view.__doc__ == plain.__doc__
    assert not iscoroutinefunction(view)


def test_a_direct_call_needs_no_url(db: None) -> None:
    for form in FORMS.values():
        assert form()(RequestFactory().post("/"), pk=7).content == b"done"
        Order.objects.all().delete()


@pytest.mark.django_db
def test_the_mixin_may_compute_its_key(urls: Urls, client: Client) -> None:
    class Computed(LockResourceMixin, Plain):
        def get_lock_key(self) -> str:
            return resource("order:<n>", n="x" * 300 + str(self.kwargs["pk"]))

    urls(path("<int:pk>/", Computed.as_view()))
    assert client.post("/7/").status_code == 200
    with held_elsewhere(resource("order:<n>", n="x" * 300 + "8")):
        assert client.post("/8/").status_code == 423


@pytest.mark.attack
@pytest.mark.django_db
@pytest.mark.parametrize("value", ["<user.pk>", "a b"])
def test_a_computed_name_is_no_template(urls: Urls, client: Client, value: str) -> None:
    """A value of the client in an f-string would choose what is locked."""

    class Computed(LockResourceMixin, Plain):
        def get_lock_key(self) -> str:
            return f"order:{self.request.headers['X-Order']}"

    urls(path("<int:pk>/", Computed.as_view()))
    with pytest.raises(InvalidRedlock):
        client.post("/7/", headers={"X-Order": value})


def test_two_locks_on_one_class_are_refused() -> None:
    with pytest.raises(InvalidRedlock, match="two lock decorators"):
        locked(Decorated.as_view())
    with pytest.raises(InvalidRedlock, match="two lock decorators"):
        locked(Mixed.as_view())


@pytest.mark.parametrize(
    ("bases", "key", "message"),
    [
        ((LockResourceMixin, View), "order:<pk", "malformed resource template"),
        ((LockResourceMixin, View), 5, "lock_key must be a template"),
        ((View, LockResourceMixin), "nightly", "must come before View"),
    ],
)
def test_a_wrong_class_is_an_error_when_it_is_made(
    bases: tuple[type, ...], key: Any, message: str
) -> None:
    with pytest.raises(InvalidRedlock, match=message):
        type("Wrong", bases, {"lock_key": key})


@pytest.mark.django_db
def test_each_as_view_and_each_instance_has_arguments_of_its_own(
    urls: Urls, client: Client
) -> None:
    """The arguments of a class are checked once, and not taken for those of its other views."""

    class Own(LockResourceMixin, View):
        lock_key = "order:<int:pk>"

        def post(self, request: HttpRequest, pk: int) -> HttpResponse:
            return HttpResponse("done")

        def setup(self, request: HttpRequest, *args: Any, **kwargs: Any) -> None:
            super().setup(request, *args, **kwargs)
            if "status" in request.GET:
                self.lock_status = int(request.GET["status"])

    urls(
        path("class/<int:pk>/", Own.as_view()),
        path("other/<int:pk>/", Own.as_view(lock_key="other:<int:pk>")),
        path("unlocked/<int:pk>/", Own.as_view(lock_methods=["PUT"])),
    )
    with held_elsewhere("order:7"):
        for _ in range(2):
            assert client.post("/class/7/").status_code == 423
            assert client.post("/class/7/?status=409").status_code == 409
            assert client.post("/other/7/").status_code == 200
            assert client.post("/unlocked/7/").status_code == 200
    with held_elsewhere("other:7"):
        assert client.post("/class/7/").status_code == 200
        assert client.post("/other/7/").status_code == 423


@pytest.mark.django_db
def test_a_list_of_arguments_may_change_after_the_first_request(urls: Urls, client: Client) -> None:
    """A method that is added to the list would else not be locked."""
    methods = ["PUT"]

    class Changing(LockResourceMixin, View):
        lock_key = "order:<int:pk>"
        lock_methods = methods

        def post(self, request: HttpRequest, pk: int) -> HttpResponse:
            return HttpResponse("done")

    urls(path("class/<int:pk>/", Changing.as_view()))
    with held_elsewhere("order:7"):
        assert client.post("/class/7/").status_code == 200
        methods.append("POST")
        assert client.post("/class/7/").status_code == 423

"""What users forget or mistype: refused where it is written, with what to write instead."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.cache import never_cache
from pytest_django import Settings
from rest_framework.decorators import api_view

from redlock_django import LockResourceMixin, hold, lock, lock_resource, resource, transaction_lock
from redlock_django.exceptions import InvalidRedlock
from tests.app.checking import found

Urls = Callable[..., None]
pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("memory")]

BARE = r"needs parentheses and a template: write @lock_resource\('order:<int:pk>'\)"
bare: Any = lock_resource

TIMEOUT = "'timeout'. Use wait for how long to wait for the lock, and ttl for how long it lives"


@pytest.mark.parametrize("function", [lock, lock_resource, hold])
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("timeout", TIMEOUT),
        ("blocking", "'blocking'. Use wait for how long to wait for the lock"),
        ("expire", "'expire'. Use ttl for how long it lives"),
        ("usnig", "'usnig', did you mean 'using'?"),
        ("colour", "'colour'"),
    ],
)
def test_an_unknown_argument_is_named_with_the_one_that_is_meant(
    function: Any, name: str, says: str
) -> None:
    with pytest.raises(TypeError) as caught:
        function("order:7", **{name: 5})
    assert str(caught.value) == f"{function.__name__}() has no argument {says}"


def test_an_unknown_argument_of_a_lock_without_ttl() -> None:
    unknown: Any = {"timeout": 5}
    with pytest.raises(TypeError, match=r"transaction_lock\(\) .* how long to wait for the lock$"):
        transaction_lock("order:7", **unknown)


def test_an_error_about_another_argument_is_unchanged() -> None:
    holder: Any = 5
    with pytest.raises(TypeError, match="not iterable"):
        lock("order:7", holder=holder)
    methods: Any = [5]
    with pytest.raises(InvalidRedlock, match="methods"):
        lock_resource("order:7", methods=methods)


@pytest.mark.parametrize("name", ["timeout", "blocking", "expire"])
def test_an_unknown_attribute_of_the_mixin(name: str) -> None:
    attributes = {"lock_key": "order:7", f"lock_{name}": 5}
    with pytest.raises(InvalidRedlock, match=f"Pay: .* no attribute 'lock_{name}'. Use "):
        type("Pay", (LockResourceMixin, View), attributes)


def test_an_attribute_of_the_site_may_begin_like_ours() -> None:
    assert type("Pay", (LockResourceMixin, View), {"lock_key": "order:7", "lock_color": "red"})


def test_an_unknown_key_of_a_rule(urls: Urls, settings: Settings) -> None:
    urls(path("", HttpResponse))
    rule = {"path": "", "key": "order:7", "timeout": 5}
    settings.REDLOCK["default"]["RULES"] = [rule]
    assert f"unknown key {TIMEOUT}" in found()["E002"]


@pytest.mark.parametrize(
    "write",
    [
        lambda text: lock_resource(text),
        lambda text: hold(text),
        lambda text: resource(text, pk=7),
        lambda text: type("Pay", (LockResourceMixin, View), {"lock_key": text}),
        lambda text: type("Pay", (LockResourceMixin, View), {"lock_key": ["a", text]}),
    ],
    ids=["lock_resource", "hold", "resource", "mixin", "mixin with two"],
)
def test_a_placeholder_in_braces(write: Callable[[str], Any]) -> None:
    with pytest.raises(InvalidRedlock, match=r"write <pk> instead of \{pk\}, .* such as <int:pk>"):
        write("order:{pk}")


def test_a_bare_decorator_is_refused_where_it_is_written() -> None:
    with pytest.raises(InvalidRedlock, match=BARE):

        @bare
        def pay(request: HttpRequest) -> HttpResponse:
            return HttpResponse()

    with pytest.raises(InvalidRedlock, match=BARE):

        @bare
        async def apay(request: HttpRequest) -> HttpResponse:
            return HttpResponse()

    with pytest.raises(InvalidRedlock, match=BARE):

        @bare
        @never_cache
        def cached(request: HttpRequest) -> HttpResponse:
            return HttpResponse()

    with pytest.raises(InvalidRedlock, match=BARE):

        class Pay(View):
            @bare
            def post(self, request: HttpRequest) -> HttpResponse:
                return HttpResponse()

    with pytest.raises(InvalidRedlock, match=BARE):

        @bare
        class Ship(View):
            pass

    with pytest.raises(InvalidRedlock, match=BARE):

        @method_decorator(bare, name="dispatch")
        class Send(View):
            pass


def order_of(request: HttpRequest, **_: Any) -> str:
    return "order:7"


class Names:
    def order_of(self, request: HttpRequest, **_: Any) -> str:
        return "order:7"

    def __call__(self, request: HttpRequest, **_: Any) -> str:
        return "order:7"


def named(prefix: str) -> Callable[..., str]:
    def name(request: HttpRequest, **_: Any) -> str:
        return f"{prefix}:7"

    return name


def test_a_function_that_returns_the_name_is_a_template() -> None:
    def inner(request: HttpRequest, **_: Any) -> str:
        return "order:7"

    @functools.cache
    def cached(request: HttpRequest) -> str:
        return "order:7"

    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    wrapped = never_cache(inner)
    names: list[Any] = [order_of, Names().order_of, Names(), named("order"), inner, cached, wrapped]
    for number in range(2):  # both have one name

        def counted(request: HttpRequest, number: int = number) -> str:
            return f"order:{number}"

        names.append(counted)
    names += [lambda request: "order:7", functools.partial(order_of)]
    for name in names:
        assert hasattr(lock_resource(name)(view), "lock_options")


def test_a_view_as_the_template_is_found_by_the_check(urls: Urls) -> None:
    def pay(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    class Ship(View):
        def post(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse()

    setattr(Ship, "post", bare(Ship.post))  # noqa: B010 - as a class may be changed afterwards
    urls(path("pay/", bare(pay)), path("ship/", Ship.as_view()))
    assert "'pay/': lock_resource() has got a view instead of a template" in found()["E008"]
    assert "'ship/': lock_resource() has got a view" in found()["E008"]
    with pytest.raises(InvalidRedlock, match=BARE):
        Client().post("/pay/")


def test_decorators_without_a_name() -> None:
    with pytest.raises(InvalidRedlock, match=r"needs a template: @lock_resource\('order"):
        lock_resource()
    with pytest.raises(InvalidRedlock, match=r"hold\(\) needs a name: @hold\('nightly'\)"):
        hold()
    function: Any = order_of
    with pytest.raises(InvalidRedlock, match=r"Write @hold\('nightly'\), with parentheses"):
        hold(function)


def test_a_mixin_without_a_key_is_refused_when_its_view_is_made(urls: Urls) -> None:
    class Pay(LockResourceMixin, View):
        pass

    with pytest.raises(InvalidRedlock, match=r"Pay: .* Write lock_key = 'order:<int:pk>' in the"):
        Pay.as_view()
    assert Pay.as_view(lock_key="order:7")

    class Named(Pay):
        def get_lock_key(self) -> str:
            return "order:7"

    assert Named.as_view()


def test_the_check_names_the_function_of_an_api_view(urls: Urls) -> None:
    @api_view(["POST"])
    def ship_order(request: Any) -> HttpResponse:
        return HttpResponse()

    urls(path("", lock_resource("order:7")(ship_order)))
    assert found()["W014"].startswith(f"{__name__}.ship_order: REST framework's authentication")
    assert "WrappedAPIView" not in found()["W014"]

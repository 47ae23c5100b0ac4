"""Mistakes of users: each is refused where it is written, with what to write instead."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.apps import apps
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory
from django.urls import path
from django.utils.decorators import method_decorator
from django.views.decorators.cache import never_cache
from django.views.generic import View
from pytest_django import Settings
from rest_framework.decorators import api_view

from redlock_django import (
    LockResourceMixin,
    hold,
    idempotent,
    lock,
    lock_resource,
    resource,
    transaction_lock,
)
from redlock_django.conf.settings import check_installed
from redlock_django.exceptions import AlreadyHeld, BadName, InvalidRedlock, ResourceLocked
from redlock_django.middleware import LockMiddleware
from redlock_django.testing import held_elsewhere
from tests.app.checking import found
from tests.app.conftest import MEMORY, Urls
from tests.programs import run_to_its_end

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("memory")]

BARE = r"needs parentheses and a template: write @lock_resource\('order:<int:pk>'\)"
bare: Any = lock_resource
locked: Any = lock_resource


@pytest.mark.parametrize("function", [lock, lock_resource, hold, transaction_lock, idempotent])
def test_python_names_an_unknown_argument(function: Any) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'timeout'"):
        function(*() if function is idempotent else ("order:7",), timeout=5)


def test_type_checkers_know_the_arguments_of_decorators() -> None:
    """mypy reports each of these lines, or else that its comment is not needed."""
    with pytest.raises(TypeError):
        lock_resource("order:<int:pk>", timeout=5)  # type: ignore[call-arg]
    with pytest.raises(InvalidRedlock):
        lock_resource("order:<int:pk>", ttl="5")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        hold("nightly", timeout=5)  # type: ignore[call-overload]
    with pytest.raises(InvalidRedlock):
        hold("nightly", ttl="5")  # type: ignore[call-overload]
    with pytest.raises(TypeError):
        idempotent(timeout=5)  # type: ignore[call-overload]
    with pytest.raises(InvalidRedlock):
        idempotent(wait="5")  # type: ignore[call-overload]


def test_an_error_about_another_argument_is_unchanged() -> None:
    holder: Any = 5
    with pytest.raises(TypeError, match="not iterable"):
        lock("order:7", holder=holder)
    methods: Any = [5]
    with pytest.raises(InvalidRedlock, match="methods"):
        lock_resource("order:7", methods=methods)


def test_an_attribute_of_the_site_may_begin_with_lock() -> None:
    assert type("Pay", (LockResourceMixin, View), {"lock_key": "order:7", "lock_color": "red"})


def held(*templates: Any, **arguments: Any) -> Any:
    """Decorate a function with `hold()`."""

    def job(pk: int) -> None: ...

    return hold(*templates, **arguments)(job)


def mixin(*bases: type, **attributes: Any) -> Any:
    return type("Pay", bases or (LockResourceMixin, View), attributes)


WRONG: list[tuple[Callable[[], object], str]] = [
    (lambda: locked(), "needs a template"),
    (lambda: locked("order:<pk"), "malformed resource template"),
    (lambda: locked(None), "must be a string or a callable"),
    (lambda: locked("a", ttl=0), "lock_resource(): ttl must be at least 0.1 s"),
    (lambda: locked("a", ttl=-1), "lock_resource(): ttl must be at least 0.1 s"),
    (lambda: locked("a", ttl=True), "lock_resource(): ttl must be a number"),
    (lambda: locked("a", wait=-1), "lock_resource(): wait must be at least 0 s"),
    (lambda: locked("a", wait=1e10), "lock_resource(): wait must be at most 604800 s (7 days)"),
    (lambda: locked("a", wait="2"), "lock_resource(): wait must be a number"),
    (lambda: locked("a", status=404), "status must be one of 409, 423, 429, 503, got 404"),
    (lambda: locked("a", methods="POST"), "methods must be a list"),
    (lambda: locked("a", methods=[]), "methods must be a list"),
    (lambda: locked("a", methods=["PSOT"]), "got 'PSOT'"),
    (lambda: locked("a", on_locked=HttpResponse()), "on_locked must be a callable"),
    (lambda: locked("a", on_disconnect="stop"), "on_disconnect must be one of 'finish', 'cancel'"),
    (lambda: locked("a")(HttpResponse), "as_view"),
    (lambda: locked("a")("shop.views.pay"), "needs a view function"),
    (lambda: held(), "needs a name"),
    (lambda: held("report:<customer>"), "parameter 'customer'; the parameters are: 'pk'"),
    (lambda: held("report:<user.pk>"), "reads from a request"),
    (lambda: held("report:<header:X-Tenant>"), "reads from a request"),
    (lambda: held(lambda request: "x"), "parentheses"),
    (lambda: held("report:<pk"), "malformed"),
    (lambda: held("a", on_conflict="ignore"), "on_conflict must be 'raise' or 'skip', got 'ign"),
    (lambda: held("a", ttl=0), "ttl must be at least"),
    (lambda: held("a", wait="1"), "wait must be a number"),
    (lambda: held("a", wait=1e10), "hold(): wait must be at most 604800 s (7 days), got 1e+10"),
    (lambda: held("a", ttl=1e10), "ttl must be at most 31536000 s"),
    (lambda: held("a", min_hold=1e10), "min_hold must be at most 31536000 s"),
    (lambda: held("a", min_hold=-1), "min_hold must be at least 0 s, got -1"),
    (lambda: held("a", min_hold="5"), "min_hold must be a number of seconds or a timedelta, got"),
    (lambda: held("a", min_hold=5, ttl=4), "min_hold is 5 s and ttl is 4 s"),
    *(
        (partial(write, "a", limit=limit), f"{write.__name__}(): limit must be a whole number")
        for limit in (0, -1, True, 2.0, "3", 1001)
        for write in (locked, hold)
    ),
    (lambda: locked("a", "b", limit=2), "limit=2 needs one template"),
    (lambda: locked("a", "b", limit=2), "acquire the others in the view, with lock()"),
    (lambda: mixin(lock_key="order:<pk"), "malformed resource template"),
    (lambda: mixin(lock_key=5), "lock_key must be a template"),
    (lambda: mixin(View, LockResourceMixin, lock_key="nightly"), "must come before View"),
    (lambda: mixin(lock_key="a", lock_on_disconnect="stop"), "on_disconnect must be one of"),
    *(
        (lambda write=write: write("order:{pk}"), r"write <pk> instead of {pk}, ")
        for write in (
            lock_resource,
            hold,
            lambda text: resource(text, pk=7),
            lambda text: mixin(lock_key=text),
            lambda text: mixin(lock_key=["a", text]),
        )
    ),
]
"""Calls that raise InvalidRedlock, and words of the error."""


@pytest.mark.parametrize(("write", "words"), WRONG, ids=[words for _, words in WRONG])
def test_what_is_written_is_refused_at_its_line(write: Callable[[], object], words: str) -> None:
    with pytest.raises(InvalidRedlock) as refused:
        write()
    assert words in str(refused.value)
    assert "{pk}" not in words or "such as <int:pk>" in str(refused.value)


def test_a_bare_decorator_is_refused_by_the_first_request(urls: Urls) -> None:
    @bare
    def pay(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    @bare
    async def apay(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    @bare
    @never_cache
    def cached(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    class Pay(View):
        @bare
        def post(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse()

    @method_decorator(bare, name="dispatch")
    class Send(View):
        pass

    for view in (pay, apay, cached, Pay.as_view(), Send.as_view()):
        urls(path("", view))
        with pytest.raises(InvalidRedlock, match=BARE):
            Client().post("/")


def test_a_bare_decorator_of_a_class_is_refused_at_its_line() -> None:
    with pytest.raises(InvalidRedlock, match=BARE):

        @bare
        class Ship(View):
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
    names += [lambda request: "order:7", partial(order_of)]
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
    assert "Write @lock_resource('order:<int:pk>')" in found()["E008"]
    with pytest.raises(InvalidRedlock, match=BARE):
        Client().post("/pay/")


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


@pytest.fixture
def hints(settings: Settings, caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Return the hints about unused locks of a developer's process."""
    settings.DEBUG = True
    apps.get_app_config("redlock_django").ready()  # as a process with DEBUG starts

    def logged() -> list[str]:
        return [r.getMessage() for r in caplog.records if "never acquired" in r.getMessage()]

    return logged


def test_a_lock_that_is_never_acquired_is_hinted_at(hints: Callable[[], list[str]]) -> None:
    lock("order:7", "order:8")
    (hint,) = hints()
    assert hint.startswith("redlock: lock('order:7', 'order:8') was never acquired, so it has")
    assert "Write 'with lock(...):'" in hint


async def acquire_in_every_way() -> None:
    await sync_to_async(acquire_in_threads)()
    async with lock("order:7"):
        with pytest.raises(ResourceLocked):
            await asyncio.create_task(lock("order:7").aacquire())
        async with lock("order:7", reentrant=True):
            pass
    await (await lock("order:7").aacquire()).arelease()


def acquire_in_threads() -> None:
    with lock("order:7"):
        with pytest.raises(AlreadyHeld):
            lock("order:7").acquire()
        with lock("order:7", reentrant=True):
            pass
    lock("order:7").acquire().release()
    with held_elsewhere("order:7"), pytest.raises(ResourceLocked):
        lock("order:7").acquire()
    for wrong in ({"ttl": -1}, {"wait": "x"}):
        with pytest.raises(ValueError, match=r"ttl|wait"):
            lock("order:7", **wrong)
    with pytest.raises(BadName):
        lock("order 7")
    transaction_lock("order:7")


def test_a_lock_that_is_acquired_or_refused_is_not(
    hints: Callable[[], list[str]], settings: Settings
) -> None:
    async_to_sync(acquire_in_every_way)()
    assert hints() == []
    settings.DEBUG = False
    lock("order:7")
    assert hints() == []


@pytest.mark.parametrize(
    ("debug", "hinted"), [(True, 1), pytest.param(False, 0, marks=pytest.mark.nightly)]
)
def test_only_a_process_with_debug_hints_and_not_at_its_exit(debug: bool, hinted: int) -> None:
    code = f"""
import django
from django.conf import settings

settings.configure(
    DEBUG={debug},
    INSTALLED_APPS=["redlock_django"],
    REDLOCK={{"default": {{"BACKEND": {MEMORY!r}}}}},
)
django.setup()
from redlock_django import lock
from redlock_django.locking.lock import Lock

lock("order:7")
assert hasattr(Lock, "__del__") == {debug}
until_the_exit = lock("order:8")
"""
    done = run_to_its_end(code)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("lock('order:7') was never acquired") == hinted
    assert "order:8" not in done.stderr


# A site without the app in INSTALLED_APPS.

MISSING = "'redlock_django' is missing in INSTALLED_APPS.* Add it, and run 'manage.py migrate'"


@pytest.fixture
def not_installed(settings: Settings) -> None:
    settings.INSTALLED_APPS = [a for a in settings.INSTALLED_APPS if a != "redlock_django"]
    check_installed.cache_clear()


def view(request: HttpRequest) -> HttpResponse:
    return HttpResponse("done")


class Computed(LockResourceMixin, View):
    def get_lock_key(self) -> str:
        return "order"


@pytest.mark.usefixtures("not_installed")
@pytest.mark.parametrize(
    "begin",
    [
        lambda: LockMiddleware(view),
        lambda: lock_resource("order")(view),
        lambda: idempotent(view),
        lambda: mixin(lock_key="order").as_view(),
        Computed.as_view,
    ],
    ids=["middleware", "lock_resource", "idempotent", "mixin", "mixin that computes its key"],
)
def test_a_site_without_the_app_does_not_start(begin: Callable[[], object]) -> None:
    with pytest.raises(InvalidRedlock, match=MISSING):
        begin()


@pytest.mark.usefixtures("not_installed")
@pytest.mark.parametrize("decorator", [lock_resource("order"), idempotent])
def test_a_view_that_is_imported_before_django_has_started_is_refused_at_its_first_request(
    decorator: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as starting:
        starting.setattr(apps, "ready", False)
        decorated = decorator(view)
    with pytest.raises(InvalidRedlock, match=MISSING):
        decorated(RequestFactory().post("/"))


@pytest.mark.usefixtures("not_installed")
def test_a_script_may_lock_without_the_app() -> None:
    with lock("order:1") as held:
        assert held.locked

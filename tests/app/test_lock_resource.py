"""@lock_resource on function views: exclusion, order of lock and transaction, answers."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import iscoroutinefunction
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import PermissionDenied, SynchronousOnlyOperation
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse
from django.template import engines
from django.template.response import SimpleTemplateResponse
from django.test import AsyncRequestFactory, RequestFactory, TestCase
from pytest_django import Settings

from redlock_django.backends.memory.backend import MemoryBackend
from redlock_django.exceptions import (
    InvalidRedlock,
    ResourceLocked,
)
from redlock_django.locking.lock import lock
from redlock_django.testing import held_elsewhere
from redlock_django.web.lock_resource import lock_resource
from testproject.shop.models import Order
from tests.app.conftest import MEMORY, memory_backend

if TYPE_CHECKING:
    from django.http.response import HttpResponseBase

WRITES = pytest.mark.django_db(transaction=True)
factory = RequestFactory()


@pytest.fixture(autouse=True)
def _memory(memory: None) -> None:
    """Keep the locks in the memory of this process."""


def order(number: str = "A-1") -> Order:
    return Order.objects.create(number=number, total=1)


def code(response: HttpResponseBase) -> str:
    assert isinstance(response, HttpResponse)
    return str(json.loads(response.content)["code"])


# Order and transaction.


@WRITES
def test_atomic_requests_is_read_at_call_time(
    happened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    @lock_resource("nightly")
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", False)
    view(factory.get("/"))
    assert happened == ["lock", "release"]
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    happened.clear()
    view(factory.get("/"))
    assert happened == ["lock", "BEGIN", "guard", "COMMIT", "release"]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """Return the transactions that are opened, in order: the alias, and whether it is durable."""
    found: list[tuple[str, bool]] = []

    def atomic(using: str, durable: bool) -> Any:
        found.append((using, durable))
        return contextlib.nullcontext()

    monkeypatch.setattr(transaction, "atomic", atomic)
    return found


def test_only_the_aliases_of_atomic_requests_are_opened_as_django_nests_them(
    monkeypatch: pytest.MonkeyPatch, opened: list[tuple[str, bool]]
) -> None:
    default = connections.settings["default"]
    for alias, atomic in (("atomic", True), ("plain", False), ("excluded", True)):
        monkeypatch.setitem(connections.settings, alias, {**default, "ATOMIC_REQUESTS": atomic})

    @lock_resource("nightly")
    @transaction.non_atomic_requests(using="excluded")
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    view(factory.get("/"))
    assert opened == [("atomic", True), ("default", True)]
    marker = vars(view)["_non_atomic_requests"]
    assert all(alias in marker for alias in ("default", "atomic", "plain", "new"))
    opened.clear()
    for alias in ("default", "atomic"):
        transaction.non_atomic_requests(using=alias)(view)
    view(factory.get("/"))
    assert not opened


# Rollback.


@WRITES
def test_an_exception_while_rendering_rolls_back(happened: list[str]) -> None:
    def fail() -> str:
        raise PermissionDenied

    @lock_resource("order:<pk>")
    def view(request: HttpRequest, pk: int) -> SimpleTemplateResponse:
        order()
        return SimpleTemplateResponse(engines["django"].from_string("{{ f }}"), {"f": fail})

    with pytest.raises(PermissionDenied):
        view(factory.get("/"), pk=7)
    assert Order.objects.count() == 0
    assert happened == ["lock", "BEGIN", "ROLLBACK", "release"]


# Inside other atomic blocks.


class InATestCase(TestCase):
    """Django's own test case needs no set-up either."""

    def test_a_locked_view_works(self) -> None:
        @lock_resource("order:<pk>")
        def view(request: HttpRequest, pk: int) -> HttpResponse:
            order(f"A-{pk}")
            if pk == 8:
                MemoryBackend.advance(3600)
            return HttpResponse()

        assert view(factory.get("/"), pk=7).status_code == 200
        assert view(factory.get("/"), pk=8).status_code == 503
        assert [order.number for order in Order.objects.all()] == ["A-7"]


@pytest.mark.django_db
def test_a_view_inside_a_block_of_the_site_raises_and_names_the_fix(happened: list[str]) -> None:
    @lock_resource("order:<pk>")
    def view(request: HttpRequest, pk: int) -> HttpResponse:
        happened.append("view")
        return HttpResponse()

    with transaction.atomic(), pytest.raises(InvalidRedlock) as caught:
        view(factory.get("/"), pk=7)
    assert f"{__name__}." in str(caught.value)
    assert "view" in str(caught.value)
    assert "'default'" in str(caught.value)
    assert "@lock_resource above @transaction.atomic" in str(caught.value)
    assert "lock" not in happened
    assert "view" not in happened


# Exclusion.


@pytest.mark.django_db
def test_the_status_comes_from_the_decorator_or_from_the_settings(
    settings: Settings,
) -> None:
    settings.REDLOCK = {"default": {"BACKEND": MEMORY, "STATUS": 409}}

    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    with held_elsewhere("nightly"):
        assert lock_resource("nightly")(view)(factory.get("/")).status_code == 409
        assert lock_resource("nightly", status=429)(view)(factory.get("/")).status_code == 429


@pytest.mark.django_db
def test_on_locked_may_answer_itself() -> None:
    def own(request: HttpRequest, error: ResourceLocked) -> HttpResponse | None:
        if "quiet" in request.GET:
            return None
        return HttpResponse(f"busy {error.retry_after is not None}", status=202)

    @lock_resource("nightly", on_locked=own)
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    with held_elsewhere("nightly"):
        response = view(factory.get("/"))
        assert (response.status_code, response.content) == (202, b"busy True")
        assert view(factory.get("/?quiet")).status_code == 423
    backend = memory_backend()
    backend.down = [True]
    assert view(factory.get("/")).status_code == 503, "it is asked for held locks only"


@pytest.mark.django_db
def test_several_templates_are_all_locked() -> None:
    @lock_resource("order:<pk>", "user:<header:X-User>", "order:<pk>")
    def view(request: HttpRequest, pk: int) -> HttpResponse:
        return HttpResponse()

    made = factory.get("/", headers={"X-User": "7"})
    assert view(made, pk=1).status_code == 200
    for name in ("order:1", "user:7"):
        with held_elsewhere(name):
            assert view(made, pk=1).status_code == 423


@WRITES
def test_other_methods_run_unlocked_but_in_their_transaction(happened: list[str]) -> None:
    @lock_resource("order:<pk>", methods=["post"])
    def view(request: HttpRequest, pk: int) -> HttpResponse:
        happened.append("view")
        return HttpResponse()

    with held_elsewhere("order:7"):
        happened.clear()
        assert view(factory.get("/"), pk=7).status_code == 200
        assert happened == ["BEGIN", "view", "COMMIT"]
        assert view(factory.post("/"), pk=7).status_code == 423


@pytest.mark.django_db
def test_other_methods_may_run_inside_a_block() -> None:
    @lock_resource("order:<pk>", methods=["POST"])
    def view(request: HttpRequest, pk: int) -> HttpResponse:
        return HttpResponse()

    with transaction.atomic():
        assert view(factory.get("/"), pk=7).status_code == 200


@pytest.mark.django_db
def test_locking_get_locks_head() -> None:
    @lock_resource("order:<pk>", methods=["GET"])
    def view(request: HttpRequest, pk: int) -> HttpResponse:
        return HttpResponse()

    with held_elsewhere("order:7"):
        assert view(factory.head("/"), pk=7).status_code == 423
        assert view(factory.post("/"), pk=7).status_code == 200


# Async views.


async def test_an_async_view_stays_async_and_is_locked() -> None:
    @lock_resource("order:<int:pk>")
    async def view(request: HttpRequest, pk: int) -> HttpResponse:
        inner = await again(request, pk=pk)
        return HttpResponse(str(inner.status_code))

    @lock_resource("order:<int:pk>", on_locked=own_async)
    async def other(request: HttpRequest, pk: int) -> HttpResponse:
        return HttpResponse()

    async def again(request: HttpRequest, pk: int) -> HttpResponse:
        return await asyncio.create_task(other(request, pk=pk))

    assert iscoroutinefunction(view)
    assert view.__name__ == "view"
    made = AsyncRequestFactory().get("/")
    assert (await view(made, pk=7)).content == b"202"
    assert (await other(made, pk=7)).status_code == 200


async def test_an_async_view_locks_only_its_methods() -> None:
    @lock_resource("order:<pk>", methods=["POST"])
    async def view(request: HttpRequest, pk: int) -> HttpResponse:
        return HttpResponse()

    async with lock("order:7"):
        made = AsyncRequestFactory()
        assert (await asyncio.create_task(view(made.get("/"), pk=7))).status_code == 200
        assert (await asyncio.create_task(view(made.post("/"), pk=7))).status_code == 423


@pytest.mark.django_db(transaction=True)
async def test_on_locked_of_an_async_view_may_query_the_database() -> None:
    def own(request: HttpRequest, error: ResourceLocked) -> HttpResponse:
        return HttpResponse(str(Order.objects.count()), status=202)

    @lock_resource("order:<pk>", on_locked=own)
    async def view(request: HttpRequest, pk: int) -> HttpResponse:
        return HttpResponse()

    async with lock("order:7"):
        answer = await asyncio.create_task(view(AsyncRequestFactory().get("/"), pk=7))
    assert (answer.status_code, answer.content) == (202, b"0")


async def own_async(request: HttpRequest, error: ResourceLocked) -> HttpResponse:
    return HttpResponse(status=202)


def test_an_async_on_locked_of_a_sync_view_is_refused_before_a_lock_is_held() -> None:
    @lock_resource("order:<pk>", on_locked=own_async)
    def view(request: HttpRequest, pk: int) -> HttpResponse:
        return HttpResponse()

    with pytest.raises(InvalidRedlock, match=r"own_async, the on_locked .* Use a plain function"):
        view(RequestFactory().get("/"), pk=7)


async def test_an_async_view_is_rendered_under_its_lock_where_it_may_block() -> None:
    statuses: list[int] = []

    @lock_resource("nightly")
    async def other(request: HttpRequest) -> HttpResponse:
        return HttpResponse()

    def look() -> str:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            statuses.append(asyncio.run(other(AsyncRequestFactory().get("/"))).status_code)
            return "shown"
        raise SynchronousOnlyOperation

    @lock_resource("nightly")
    async def view(request: HttpRequest) -> SimpleTemplateResponse:
        return SimpleTemplateResponse(engines["django"].from_string("{{ f }}"), {"f": look})

    response = await view(AsyncRequestFactory().get("/"))
    assert response.content == b"shown"
    assert statuses == [423]


# Errors at import time, and errors that name the view.


@pytest.mark.parametrize(
    ("templates", "kwargs", "says"),
    [
        ((), {}, "needs a template"),
        (("order:<pk",), {}, "malformed resource template"),
        ((None,), {}, "must be a string or a callable"),
        (("a",), {"ttl": 0}, "lock_resource(): ttl must be at least 0.1 s"),
        (("a",), {"ttl": -1}, "lock_resource(): ttl must be at least 0.1 s"),
        (("a",), {"ttl": True}, "lock_resource(): ttl must be a number"),
        (("a",), {"wait": -1}, "lock_resource(): wait must be at least 0 s"),
        (("a",), {"wait": 1e10}, "lock_resource(): wait must be at most 604800 s (7 days)"),
        (("a",), {"wait": "2"}, "lock_resource(): wait must be a number"),
        (("a",), {"status": 404}, "status must be one of 409, 423, 429, 503, got 404"),
        (("a",), {"methods": "POST"}, "methods must be a list"),
        (("a",), {"methods": []}, "methods must be a list"),
        (("a",), {"methods": ["PSOT"]}, "got 'PSOT'"),
        (("a",), {"on_locked": HttpResponse()}, "on_locked must be a callable"),
    ],
)
def test_bad_arguments_fail_at_import(
    templates: tuple[Any, ...], kwargs: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidRedlock) as caught:
        lock_resource(*templates, **kwargs)
    assert says in str(caught.value)


def test_only_a_view_can_be_decorated() -> None:
    async def by_tenant(request: HttpRequest) -> str:
        return "a"

    with pytest.raises(InvalidRedlock, match="as_view"):
        lock_resource("a")(HttpResponse)
    with pytest.raises(InvalidRedlock, match="needs a view function"):
        lock_resource("a")("shop.views.pay")  # type: ignore[type-var]
    with pytest.raises(InvalidRedlock, match="must return str, got coroutine"):
        lock_resource(by_tenant)(lambda request: HttpResponse())(factory.get("/"))


def test_a_call_without_a_request_is_refused() -> None:
    @lock_resource("nightly")
    def view(number: int) -> HttpResponse:
        return HttpResponse()

    with pytest.raises(InvalidRedlock, match="was called without a request"):
        view(7)


def test_the_decorator_can_be_imported_before_there_are_settings() -> None:
    code = "from redlock_django import *; import redlock_django.middleware; print(lock_resource)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


# Decorators above it.


@pytest.mark.attack
@pytest.mark.parametrize("is_async", [False, True])
def test_a_check_in_a_decorator_above_comes_before_the_lock(is_async: bool) -> None:
    if is_async:

        @login_required
        @lock_resource("order:<pk>")
        async def view(request: HttpRequest, pk: int) -> HttpResponse:
            raise AssertionError("this is never called")
    else:

        @login_required
        @lock_resource("order:<pk>")
        def view(request: HttpRequest, pk: int) -> HttpResponse:  # type: ignore[misc]
            raise AssertionError("this is never called")

    def answer() -> int:
        request = factory.post("/orders/1/")
        request.user = AnonymousUser()
        request.auser = functools.partial(_nobody)
        response: Any = view(request, pk=1)
        return int((asyncio.run(response) if is_async else response).status_code)

    assert answer() == 302
    with lock("order:1"):  # an anonymous user does not learn either that the order is locked
        assert answer() == 302


async def _nobody() -> AnonymousUser:
    return AnonymousUser()

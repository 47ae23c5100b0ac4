"""@lock_resource and its mixin: exclusion, order of lock and transaction, answers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from asgiref.sync import iscoroutinefunction
from django.contrib.auth.decorators import login_required
from django.contrib.auth.mixins import AccessMixin
from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import PermissionDenied, SynchronousOnlyOperation
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse
from django.template import engines
from django.template.response import SimpleTemplateResponse
from django.test import AsyncRequestFactory, Client, RequestFactory, TestCase
from django.urls import path
from django.utils.decorators import method_decorator
from django.views.decorators.csrf import csrf_exempt
from django.views.generic import View

from redlock_django import LockResourceMixin, lock_resource, resource
from redlock_django.backends.memory.backend import MemoryBackend
from redlock_django.exceptions import InvalidRedlock, ResourceLocked
from redlock_django.testing import held_elsewhere
from testproject.shop.models import Order
from tests.app.conftest import Configure, Urls, memory_backend, order
from tests.programs import run_to_its_end

WRITES = pytest.mark.django_db(transaction=True)
KEY = "order:<int:pk>"
factory = RequestFactory()
afactory = AsyncRequestFactory()
locked = lock_resource(KEY)
pytestmark = pytest.mark.usefixtures("memory")


def respond(request: HttpRequest, **_: Any) -> HttpResponse:
    return HttpResponse("done")


async def arespond(request: HttpRequest, **_: Any) -> HttpResponse:
    return HttpResponse("done")


# Order and transaction.


@WRITES
def test_atomic_requests_is_read_at_call_time(
    happened: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    view = lock_resource("nightly")(respond)
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", False)
    view(factory.get("/"))
    assert happened == ["lock", "release"]
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    happened.clear()
    view(factory.get("/"))
    assert happened == ["lock", "BEGIN", "guard", "COMMIT", "release"]


def test_only_the_aliases_of_atomic_requests_are_opened_as_django_nests_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[tuple[str, bool]] = []

    def atomic(using: str, durable: bool) -> Any:
        opened.append((using, durable))
        return contextlib.nullcontext()

    monkeypatch.setattr(transaction, "atomic", atomic)
    default = connections.settings["default"]
    for alias, is_atomic in (("atomic", True), ("plain", False), ("excluded", True)):
        monkeypatch.setitem(connections.settings, alias, {**default, "ATOMIC_REQUESTS": is_atomic})

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


@WRITES
def test_an_exception_while_rendering_rolls_back(happened: list[str]) -> None:
    def fail() -> str:
        raise PermissionDenied

    @locked
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
        @locked
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
    @locked
    def pay(request: HttpRequest, pk: int) -> HttpResponse:
        happened.append("view")
        return HttpResponse()

    with transaction.atomic(), pytest.raises(InvalidRedlock) as caught:
        pay(factory.get("/"), pk=7)
    for words in (f"{__name__}.", "pay", "'default'", "@lock_resource above @transaction.atomic"):
        assert words in str(caught.value)
    assert "lock" not in happened
    assert "view" not in happened


# Exclusion.


@pytest.mark.django_db
def test_the_status_comes_from_the_decorator_or_from_the_settings(memory: Configure) -> None:
    memory(STATUS=409)
    with held_elsewhere("nightly"):
        assert lock_resource("nightly")(respond)(factory.get("/")).status_code == 409
        assert lock_resource("nightly", status=429)(respond)(factory.get("/")).status_code == 429


@pytest.mark.django_db
def test_on_locked_may_answer_itself() -> None:
    def own(request: HttpRequest, error: ResourceLocked) -> HttpResponse | None:
        if "quiet" in request.GET:
            return None
        return HttpResponse(f"busy {error.retry_after is not None}", status=202)

    view = lock_resource("nightly", on_locked=own)(respond)
    with held_elsewhere("nightly"):
        response = view(factory.get("/"))
        assert (response.status_code, response.content) == (202, b"busy True")
        assert view(factory.get("/?quiet")).status_code == 423
    memory_backend().down = [True]
    assert view(factory.get("/")).status_code == 503, "it is asked for held locks only"


@pytest.mark.django_db
def test_several_templates_are_all_locked() -> None:
    view = lock_resource("order:<pk>", "user:<header:X-User>", "order:<pk>")(respond)
    made = factory.get("/", headers={"X-User": "7"})
    assert view(made, pk=1).status_code == 200
    for name in ("order:1", "user:7"):
        with held_elsewhere(name):
            assert view(made, pk=1).status_code == 423


@WRITES
def test_other_methods_run_unlocked_but_in_their_transaction(happened: list[str]) -> None:
    @lock_resource(KEY, methods=["post"])
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
    with transaction.atomic():
        answer = lock_resource(KEY, methods=["POST"])(respond)(factory.get("/"), pk=7)
    assert answer.status_code == 200


@pytest.mark.django_db
def test_locking_get_locks_head() -> None:
    view = lock_resource(KEY, methods=["GET"])(respond)
    with held_elsewhere("order:7"):
        assert view(factory.head("/"), pk=7).status_code == 423
        assert view(factory.post("/"), pk=7).status_code == 200


# Async views.


async def own_async(request: HttpRequest, error: ResourceLocked) -> HttpResponse:
    return HttpResponse(status=202)


async def test_an_async_view_stays_async_and_is_locked() -> None:
    other = lock_resource(KEY, on_locked=own_async)(arespond)

    @locked
    async def view(request: HttpRequest, pk: int) -> HttpResponse:
        inner: Any = await asyncio.create_task(other(request, pk=pk))
        return HttpResponse(str(inner.status_code))

    assert iscoroutinefunction(view)
    assert view.__name__ == "view"
    assert (await view(afactory.get("/"), pk=7)).content == b"202"
    assert (await other(afactory.get("/"), pk=7)).status_code == 200


async def test_an_async_view_locks_only_its_methods() -> None:
    view = lock_resource(KEY, methods=["POST"])(arespond)
    async with held_elsewhere("order:7"):
        assert (await view(afactory.get("/"), pk=7)).status_code == 200
        assert (await view(afactory.post("/"), pk=7)).status_code == 423


@WRITES
async def test_on_locked_of_an_async_view_may_query_the_database() -> None:
    def own(request: HttpRequest, error: ResourceLocked) -> HttpResponse:
        return HttpResponse(str(Order.objects.count()), status=202)

    async with held_elsewhere("order:7"):
        answer = await lock_resource(KEY, on_locked=own)(arespond)(afactory.get("/"), pk=7)
    assert (answer.status_code, answer.content) == (202, b"0")


def test_an_async_on_locked_of_a_sync_view_is_refused_before_a_lock_is_held() -> None:
    view = lock_resource(KEY, on_locked=own_async)(respond)
    with pytest.raises(InvalidRedlock, match=r"own_async, the on_locked .* Use a plain function"):
        view(factory.get("/"), pk=7)


async def test_an_async_view_is_rendered_under_its_lock_where_it_may_block() -> None:
    statuses: list[int] = []
    other: Any = lock_resource("nightly")(arespond)

    def look() -> str:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            statuses.append(asyncio.run(other(afactory.get("/"))).status_code)
            return "shown"
        raise SynchronousOnlyOperation

    @lock_resource("nightly")
    async def view(request: HttpRequest) -> SimpleTemplateResponse:
        return SimpleTemplateResponse(engines["django"].from_string("{{ f }}"), {"f": look})

    response = await view(afactory.get("/"))
    assert response.content == b"shown"
    assert statuses == [423]


# Errors that name the view: others are in test_mistakes.py.


def test_a_template_of_a_sync_view_is_a_sync_function() -> None:
    async def by_tenant(request: HttpRequest) -> str:
        return "a"

    with pytest.raises(InvalidRedlock, match="must return str, got coroutine"):
        lock_resource(by_tenant)(respond)(factory.get("/"))


def test_a_call_without_a_request_is_refused() -> None:
    with pytest.raises(InvalidRedlock, match="was called without a request"):
        lock_resource("nightly")(respond)(7)  # type: ignore[arg-type]


def test_the_decorator_can_be_imported_before_there_are_settings() -> None:
    code = "from redlock_django import *; import redlock_django.middleware; print(lock_resource)"
    done = run_to_its_end(code)
    assert done.returncode == 0, done.stderr


# Decorators above it.


def never(request: HttpRequest, pk: int) -> HttpResponse:
    raise AssertionError("this is never called")


async def anever(request: HttpRequest, pk: int) -> HttpResponse:
    raise AssertionError("this is never called")


async def nobody() -> AnonymousUser:
    return AnonymousUser()


@pytest.mark.attack
@pytest.mark.parametrize("view", [never, anever])
def test_a_check_in_a_decorator_above_comes_before_the_lock(view: Any) -> None:
    checked: Any = login_required(locked(view))

    def answer() -> int:
        request = factory.post("/orders/1/")
        request.user, request.auser = AnonymousUser(), nobody
        response = checked(request, pk=1)
        return int((asyncio.run(response) if view is anever else response).status_code)

    assert answer() == 302
    with held_elsewhere("order:1"):  # an anonymous user does not learn that the order is locked
        assert answer() == 302


# Class-based views: dispatch, the mixin, the result of as_view().


class Plain(View):
    seen: ClassVar[list[str]] = []

    def post(self, request: HttpRequest, pk: int) -> HttpResponse:
        self.seen.append("view")
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
    assert happened == ["access", "lock", "BEGIN", "view", "guard", "COMMIT", "release"]


@WRITES
@pytest.mark.parametrize("place", ["below", "above"])
def test_fields_that_the_user_excluded_stay_excluded(
    urls: Urls, client: Client, happened: list[str], place: str
) -> None:
    own: Any = type("Own", (Plain,), {})
    decorators = (transaction.non_atomic_requests, locked)
    for decorate in decorators if place == "below" else decorators[::-1]:
        own = method_decorator(decorate, name="dispatch")(own)
    urls(path("<int:pk>/", own.as_view()))
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
        assert form()(factory.post("/"), pk=7).content == b"done"


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
    for view in (Decorated, Mixed):
        with pytest.raises(InvalidRedlock, match="two lock decorators"):
            locked(view.as_view())


@pytest.mark.django_db
def test_each_as_view_and_each_instance_has_arguments_of_its_own(
    urls: Urls, client: Client
) -> None:
    """The arguments of a class are checked once, and not taken for those of its other views."""

    class Own(Mixed):
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

    class Changing(Mixed):
        lock_methods = methods

    urls(path("class/<int:pk>/", Changing.as_view()))
    with held_elsewhere("order:7"):
        assert client.post("/class/7/").status_code == 200
        methods.append("POST")
        assert client.post("/class/7/").status_code == 423

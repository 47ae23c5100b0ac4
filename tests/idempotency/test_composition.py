"""@idempotent with @lock_resource and in classes: record, then lock, then transaction."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.decorators import login_required, permission_required
from django.contrib.auth.mixins import LoginRequiredMixin, PermissionRequiredMixin
from django.contrib.auth.models import Permission, User
from django.core.checks import run_checks
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory
from django.utils.decorators import method_decorator
from django.views.generic import View
from pytest_django import Settings

from redlock_django import IdempotentMixin, LockResourceMixin, idempotent, lock_resource
from redlock_django.exceptions import InvalidRedlock
from redlock_django.models import IdempotencyRecord
from redlock_django.testing import held_elsewhere
from tests.app.conftest import wrapping
from tests.idempotency.conftest import KEY, Site, make_order, orders

pytestmark = pytest.mark.django_db(transaction=True)
locked = lock_resource("order:7")


def function(request: HttpRequest, **_: Any) -> HttpResponse:
    return make_order(request)


class Plain(View):
    def post(self, request: HttpRequest, **_: Any) -> HttpResponse:
        return function(request)


class IdempotentHandler(Plain):
    @idempotent
    def post(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        return super().post(request, **kwargs)


class Derived(Plain):
    pass


class OwnDispatch(IdempotentMixin, Plain):
    def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        return super().dispatch(request, *args, **kwargs)


class OnlyIdempotent(IdempotentMixin, Plain):
    pass


@pytest.mark.attack
@pytest.mark.parametrize(
    "view",
    [
        lambda: locked(idempotent(function)),
        lambda: locked(wrapping(idempotent(function))),
        lambda: locked(idempotent(Plain.as_view())),
        lambda: locked(OnlyIdempotent.as_view()),
        lambda: locked(OwnDispatch.as_view()),
        lambda: locked(method_decorator(idempotent, name="dispatch")(Derived).as_view()),
    ],
)
def test_a_lock_around_a_record_is_refused_at_import(view: Callable[[], Any]) -> None:
    """A replay would wait for the lock."""
    with pytest.raises(InvalidRedlock, match="Put @idempotent above @lock_resource"):
        view()


@pytest.mark.attack
@pytest.mark.parametrize("key", [KEY, None])
def test_a_lock_around_a_record_is_refused_at_the_first_request(
    site: Site, key: str | None
) -> None:
    @method_decorator(locked, name="dispatch")
    @method_decorator(idempotent, name="dispatch")
    class Stacked(Plain):
        pass

    @method_decorator(locked, name="dispatch")
    class AroundTheHandler(IdempotentHandler):
        pass

    class Mixed(LockResourceMixin, IdempotentMixin, Plain):
        lock_key = "order:7"

    class MixedHandler(LockResourceMixin, IdempotentHandler):
        lock_key = "order:7"

    class Between(LockResourceMixin, OwnDispatch):
        lock_key = "order:7"

    for view in (
        Stacked.as_view(),
        AroundTheHandler.as_view(),
        Mixed.as_view(),
        MixedHandler.as_view(),
        Between.as_view(),
        locked(IdempotentHandler.as_view()),
    ):
        site.serve(view)
        site.refuses("@idempotent is below the lock", key)
    assert (orders(), IdempotencyRecord.objects.count()) == (0, 0)


def test_the_database_of_the_records_is_committed_last(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    default = connections.settings["default"]
    monkeypatch.setitem(connections.settings, "other", {**default, "ATOMIC_REQUESTS": True})
    real = transaction.atomic

    def atomic(using: str | None = None, savepoint: bool = True, durable: bool = False) -> Any:
        if not durable:  # of the store
            return real(using, savepoint, durable)
        opened.append(str(using))
        return real()

    site.serve(idempotent(make_order))
    monkeypatch.setattr(transaction, "atomic", atomic)
    assert site.post().status_code == 201
    assert opened == ["default", "other"]


# Permissions are checked before a replay.


@pytest.fixture
def allowed(site: Site) -> User:
    user = User.objects.get(username="ann")
    user.user_permissions.add(Permission.objects.get(codename="add_order"))
    return user


class Permitted(PermissionRequiredMixin, IdempotentMixin, Plain):
    permission_required = "shop.add_order"


class PermittedHandler(PermissionRequiredMixin, Plain):
    permission_required = "shop.add_order"

    @method_decorator(idempotent)
    def post(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        return super().post(request, **kwargs)


@pytest.mark.attack
@pytest.mark.parametrize(
    "view",
    [
        permission_required("shop.add_order", raise_exception=True)(idempotent(function)),
        Permitted.as_view(),
        PermittedHandler.as_view(),
        idempotent(replay_check=lambda request, **_: request.user.has_perm("shop.add_order"))(
            function
        ),
    ],
    ids=["decorator", "mixin", "handler", "replay_check"],
)
def test_a_user_without_the_permission_gets_no_replay(
    site: Site, allowed: User, view: Any, plain: None
) -> None:
    site.serve(view)
    assert site.post().status_code == 201
    assert site.post()["Idempotent-Replayed"] == "true"
    allowed.user_permissions.clear()
    refused = site.post()
    assert refused.status_code == 403
    assert b"A-1" not in refused.content


def test_a_decorator_that_a_replay_would_slip_past_is_found_out() -> None:
    with pytest.raises(InvalidRedlock, match="below login and permission"):
        idempotent(login_required(make_order))
    idempotent(replay_check=lambda request: True)(login_required(make_order))


def test_a_permission_mixin_that_a_replay_would_skip_is_an_error(site: Site) -> None:
    @method_decorator(idempotent, name="dispatch")
    class Decorated(LoginRequiredMixin, Plain):
        pass

    class LoggedIn(LoginRequiredMixin, Plain):
        pass

    class WrongWay(IdempotentMixin, LoginRequiredMixin, Plain):
        pass

    with pytest.raises(InvalidRedlock, match="LoginRequiredMixin is inside"):
        idempotent(LoggedIn.as_view())
    for view in (Decorated, WrongWay):
        site.serve(view.as_view())
        site.refuses("LoginRequiredMixin is inside")
        (error,) = run_checks(tags=["redlock"])[:1]
        assert error.id == "redlock_django.E011"
        assert "LoginRequiredMixin" in error.msg


add_order = permission_required("shop.add_order", raise_exception=True)


class CheckedHandler(Plain):
    @method_decorator(add_order)
    def post(self, request: HttpRequest, **kwargs: Any) -> HttpResponse:
        return super().post(request, **kwargs)


class CheckedAsyncHandler(View):
    @method_decorator(add_order)
    async def post(self, request: HttpRequest, **_: Any) -> HttpResponse:
        raise AssertionError("never")


class CheckedDispatch(Plain):
    @method_decorator(add_order)
    def dispatch(self, *args: Any, **kwargs: Any) -> Any:
        return super().dispatch(*args, **kwargs)


class MixinAboveHandler(IdempotentMixin, CheckedHandler):
    pass


@method_decorator(idempotent, name="dispatch")
class DecoratedDispatch(CheckedHandler):
    pass


class MixinAboveAsyncHandler(IdempotentMixin, CheckedAsyncHandler):
    pass


class MixinAboveDispatch(IdempotentMixin, CheckedDispatch):
    pass


@pytest.mark.attack
@pytest.mark.parametrize(
    ("view", "what"),
    [
        (MixinAboveHandler.as_view(), "decorator of post()"),
        (MixinAboveAsyncHandler.as_view(), "decorator of post()"),
        (MixinAboveDispatch.as_view(), "CheckedDispatch"),
        (idempotent(CheckedHandler.as_view()), "decorator of post()"),
        (idempotent(CheckedAsyncHandler.as_view()), "decorator of post()"),
        (DecoratedDispatch.as_view(), "decorator of post()"),
    ],
    ids=["mixin", "async mixin", "dispatch", "as_view()", "async as_view()", "method_decorator"],
)
def test_a_permission_decorator_inside_the_class_is_an_error(
    site: Site, plain: None, view: Any, what: str
) -> None:
    """A replay would not run the decorator of `post()`, so it would ignore a removed permission."""
    site.serve(view)
    site.refuses(re.escape(what))
    assert ("redlock_django.E011", True) in [
        (error.id, what in error.msg) for error in run_checks(tags=["redlock"])
    ]


class Rechecked(MixinAboveHandler):
    idempotent_options = {  # noqa: RUF012
        "replay_check": lambda request, **_: request.user.has_perm("shop.add_order")
    }


class OtherMethod(MixinAboveHandler):
    idempotent_options = {"methods": ["PATCH"]}  # noqa: RUF012


def test_a_permission_decorator_that_no_replay_skips_is_no_error(site: Site, allowed: User) -> None:
    for view in (Rechecked, OtherMethod):
        site.serve(view.as_view())
        assert run_checks(tags=["redlock"]) == []
    site.serve(Rechecked.as_view())
    assert [site.post().status_code, site.post().status_code] == [201, 201]
    allowed.user_permissions.clear()
    refused = site.post()
    assert (refused.status_code, b"A-1" in refused.content) == (403, False)


def test_a_list_of_options_may_change_after_the_first_request(site: Site) -> None:
    """A method that is added to the list would else take effect again at each retry."""
    methods = ["PATCH"]

    class Changing(IdempotentMixin, Plain):
        idempotent_options = {"methods": methods}  # noqa: RUF012

    site.serve(Changing.as_view())
    site.post()
    site.post()
    assert orders() == 2
    methods.append("POST")
    site.post()
    site.post()
    assert orders() == 3


def test_the_views_of_a_class_have_their_own_options(site: Site) -> None:
    patched = OnlyIdempotent.as_view(idempotent_options={"methods": ["PATCH"]})
    for view, made in (OnlyIdempotent.as_view(), 1), (patched, 3), (OnlyIdempotent.as_view(), 3):
        site.serve(view)
        site.post()
        site.post()
        assert orders() == made


def without_autocommit(view: Any) -> Any:
    @functools.wraps(view)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        transaction.set_autocommit(False)
        try:
            return view(*args, **kwargs)
        finally:
            transaction.rollback()
            transaction.set_autocommit(True)

    return wrapped


@pytest.mark.attack
def test_a_view_without_autocommit_is_an_error(site: Site) -> None:
    """The record and the effects would be committed later, or never."""
    site.serve(without_autocommit(idempotent(function)))
    site.refuses("autocommit is off for the database 'default'")
    assert orders() == 0


def test_a_handler_inside_a_transaction_of_django_is_found_out(site: Site) -> None:
    site.serve(PermittedHandler.as_view())
    site.client.force_login(User.objects.create_superuser("root"))
    site.refuses("inside an atomic block")
    assert site.post(None).status_code == 201


@pytest.mark.parametrize("headers", [{"Idempotency-Key": "k"}, {}], ids=["with a key", "without"])
def test_a_view_without_a_transaction_is_an_error(site: Site, headers: dict[str, str]) -> None:
    view = transaction.non_atomic_requests(idempotent(make_order))
    request = RequestFactory().post("/", headers=headers)
    request.user = User.objects.get()
    with pytest.raises(InvalidRedlock, match="non_atomic_requests"):
        view(request)
    assert view(RequestFactory().get("/")).status_code == 201


def test_an_excluded_view_is_refused_when_it_is_decorated() -> None:
    def view(request: HttpRequest, **_: Any) -> HttpResponse:
        return make_order(request)

    transaction.non_atomic_requests(view)
    with pytest.raises(InvalidRedlock, match="non_atomic_requests"):
        idempotent(view)
    with pytest.raises(InvalidRedlock, match="non_atomic_requests"):
        idempotent(locked(view))


def test_a_view_that_is_excluded_from_another_database_may_be_idempotent(site: Site) -> None:
    def view(request: HttpRequest, **_: Any) -> HttpResponse:
        return make_order(request)

    site.serve(idempotent(transaction.non_atomic_requests("other")(view)))
    assert [site.post().status_code for _ in range(2)] == [201, 201]
    assert orders() == 1


def test_an_async_class_may_be_excluded_below_the_decorator(site: Site, plain: None) -> None:

    @method_decorator([idempotent, transaction.non_atomic_requests], name="dispatch")
    class Async(View):
        async def post(self, request: HttpRequest, **_: Any) -> HttpResponse:
            return await sync_to_async(make_order)(request)

    site.serve(Async.as_view())
    assert [site.post().status_code for _ in range(2)] == [201, 201]
    assert orders() == 1


def test_the_same_decorator_twice_is_refused() -> None:
    with pytest.raises(InvalidRedlock, match="@idempotent twice"):
        idempotent(idempotent(make_order))
    with pytest.raises(InvalidRedlock, match="two lock decorators"):
        locked(locked(make_order))


@pytest.mark.parametrize("wrong", [Plain, 7, "view"])
def test_only_a_view_can_be_decorated(wrong: Any) -> None:
    with pytest.raises(InvalidRedlock, match="needs a view function"):
        idempotent()(wrong)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"wait": -1}, "wait must be at least 0"),
        ({"wait": 1e10}, r"wait must be at most 604800 s \(7 days\)"),
        ({"retention": 1e12}, "retention must be at most"),
        ({"retention": 0}, "retention must be at least 1"),
        ({"methods": ["GET"]}, "got 'GET'"),
        ({"methods": "POST"}, "methods must be a list"),
        ({"required": 1}, "required must be True or False"),
        ({"tenant": "x"}, "tenant must be a callable"),
        ({"anonymous_scope": "x"}, "anonymous_scope must be a callable"),
    ],
)
def test_arguments_that_cannot_work_are_refused_at_import(
    arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRedlock, match=message):
        idempotent(**arguments)


class LockedHandler(View):
    @locked
    def post(self, request: HttpRequest, **_: Any) -> HttpResponse:
        return make_order(request)


class AsyncLockedHandler(View):
    @locked
    async def post(self, request: HttpRequest, **_: Any) -> HttpResponse:
        return HttpResponse(status=201)


def created(*bases: type[View]) -> Any:
    """Return a new class, because method_decorator() changes the one that it gets."""
    return type("Own", bases, {})


AROUND_THE_HANDLER: dict[str, Callable[[Any], Any]] = {
    "as_view": lambda view: idempotent(view.as_view()),
    "dispatch": lambda view: method_decorator(idempotent, name="dispatch")(view).as_view(),
    "mixin": lambda view: created(IdempotentMixin, view).as_view(),
}


@pytest.mark.parametrize("place", AROUND_THE_HANDLER)
def test_a_handler_whose_refused_lock_would_be_recorded_is_refused(
    site: Site, plain: None, place: str
) -> None:
    site.serve(AROUND_THE_HANDLER[place](created(AsyncLockedHandler)))
    site.refuses(r"\.post: its lock is inside of @idempotent, which")
    assert orders() == 0


@pytest.mark.parametrize("place", AROUND_THE_HANDLER)
def test_the_lock_of_a_handler_in_the_transaction_of_the_record_must_see_commits(
    site: Site, plain: None, settings: Settings, place: str
) -> None:
    site.serve(AROUND_THE_HANDLER[place](created(LockedHandler)))
    site.refuses("may read data from before the lock")
    settings.MIDDLEWARE = [each for each in settings.MIDDLEWARE if "LockMiddleware" not in each]
    site.client.handler.load_middleware()  # as the settings are now
    site.refuses("only LockMiddleware can answer a lock error after")


@pytest.mark.parametrize("place", AROUND_THE_HANDLER)
def test_the_lock_of_a_handler_of_another_method_is_in_order(
    site: Site, plain: None, place: str
) -> None:
    class Get(View):
        @locked
        def get(self, request: HttpRequest, **_: Any) -> HttpResponse:
            return HttpResponse()

    site.serve(AROUND_THE_HANDLER[place](Get))
    assert site.client.get("/", headers={"Idempotency-Key": KEY}).status_code == 200


@pytest.mark.parametrize("is_async", [False, True])
def test_the_refusal_of_another_locked_view_is_never_recorded(
    site: Site, plain: None, sees_commits: None, is_async: bool
) -> None:
    """The refusal says that a retry may help, so a retry must not get it again."""

    def outer(request: HttpRequest, **_: Any) -> Any:
        return locked(function)(request)

    async def aouter(request: HttpRequest, **_: Any) -> Any:
        return await locked(afunction)(request)

    async def afunction(request: HttpRequest) -> HttpResponse:
        return HttpResponse(status=201)

    site.serve(idempotent(aouter if is_async else outer))
    with held_elsewhere("order:7"):
        assert site.post().status_code == 423
    assert site.post().status_code == (409 if is_async else 201)
    with held_elsewhere("order:7"):
        assert site.post(key=None).status_code == 423

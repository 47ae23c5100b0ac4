"""Owners of keys: a caller that the view itself would have refused gets no replay."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import ninja
import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.core.checks import run_checks
from django.db import connection
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import Client
from django.urls import include, path
from django.utils.decorators import method_decorator, sync_and_async_middleware
from ninja.decorators import decorate_view
from pytest_django import Settings
from rest_framework.authentication import BaseAuthentication
from rest_framework.decorators import action, api_view, authentication_classes, permission_classes
from rest_framework.permissions import IsAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter
from rest_framework.throttling import BaseThrottle
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from redlock_django import IdempotentMixin, idempotent, lock_resource
from redlock_django.contrib.drf import LockAPIMixin
from redlock_django.exceptions import InvalidRedlock
from redlock_django.models import IdempotencyRecord
from redlock_django.testing import held_elsewhere
from testproject.shop.models import Order
from tests.app.conftest import MEMORY, Urls, wrapping
from tests.idempotency.conftest import KEY, Site, make_order, orders

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("site", "plain")]
TOKEN = {"Authorization": "ann"}
number = count()  # older versions of django-ninja want a namespace for each API

# One owner for all callers: the scope does not separate them.
shared = idempotent(anonymous_scope=lambda request, **_: "all")
locked = lock_resource("order:7")


def post(headers: dict[str, str] | None = None, url: str = "/pay/") -> Any:
    return Client(headers={"Idempotency-Key": KEY} | (headers or {})).post(url)


def errors() -> list[tuple[str, str]]:
    """The errors of the system checks."""
    return [(str(error.id)[-4:], error.msg) for error in run_checks(tags=["redlock"])]


# django-ninja.


def by_token(request: HttpRequest) -> str | None:
    return request.headers.get("Authorization")


async def by_token_async(request: HttpRequest) -> str | None:
    return request.headers.get("Authorization")


def view_of(kind: str) -> Any:
    """A new function each time, because django-ninja writes attributes to it."""

    def pay(request: HttpRequest) -> HttpResponse:
        return make_order(request)

    async def apay(request: HttpRequest) -> HttpResponse:
        await Order.objects.acreate(number="A-1", total=1)
        return JsonResponse({"order": "A-1"}, status=201)

    return pay if kind == "sync" else apay


def api_of(view: Any, where: str = "api", auth: Any = by_token) -> ninja.NinjaAPI:
    """An API with one operation; the operation, its router or the whole API authenticates."""
    api = ninja.NinjaAPI(
        urls_namespace=f"pay-{next(number)}", auth=auth if where == "api" else None
    )
    router = ninja.Router(auth=auth) if where == "router" else ninja.Router()
    outer = ninja.Router(auth=auth) if where == "outer router" else ninja.Router()
    router.post("/", **({"auth": auth} if where == "operation" else {}))(view)
    outer.add_router("", router)
    api.add_router("/pay", outer)
    return api


WHERE = ["operation", "router", "outer router", "api"]
AROUND = {
    "alone": decorate_view(shared),
    "a lock inside": decorate_view(locked, shared),
    "a decorator inside": decorate_view(wrapping, shared),
    "a decorator outside": decorate_view(shared, wrapping),
}


@pytest.mark.attack
@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("where", WHERE)
def test_an_operation_is_not_recorded_around_its_authentication(
    urls: Urls, where: str, kind: str
) -> None:
    """A caller without a token got the stored response of another one."""
    view = view_of(kind)
    urls(path("", api_of(decorate_view(shared)(view), where).urls))
    for headers in (TOKEN, {}):
        with pytest.raises(InvalidRedlock, match=r"pay: django-ninja.*directly on the function"):
            post(headers)
    assert (orders(), IdempotencyRecord.objects.count()) == (0, 0)
    assert [(identity, f".{view.__name__}: " in message) for identity, message in errors()] == [
        ("E010", True)
    ]


@pytest.mark.parametrize("around", AROUND)
def test_no_decorator_hides_the_authentication_of_an_operation(urls: Urls, around: str) -> None:
    urls(path("", api_of(AROUND[around](view_of("sync"))).urls))
    with pytest.raises(InvalidRedlock, match="django-ninja authenticates"):
        post(TOKEN)
    assert orders() == 0
    assert "E010" in {identity for identity, _ in errors()} or around == "a decorator outside"


@pytest.mark.skipif(not hasattr(ninja.NinjaAPI, "add_decorator"), reason="django-ninja before 1.5")
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_decorator_of_the_whole_api(urls: Urls, kind: str) -> None:
    api = ninja.NinjaAPI(urls_namespace=f"pay-{next(number)}", auth=by_token)
    api.add_decorator(shared, mode="view")
    api.post("/pay/")(view_of(kind))
    urls(path("", api.urls))
    with pytest.raises(InvalidRedlock, match="django-ninja authenticates"):
        post(TOKEN)
    assert [identity for identity, _ in errors()] == ["E010"]


@pytest.mark.parametrize(
    ("kind", "auth"), [("sync", by_token), ("async", by_token), ("async", by_token_async)]
)
def test_directly_on_the_function_a_replay_is_authenticated(
    urls: Urls, kind: str, auth: Any
) -> None:
    view = shared(view_of(kind))
    urls(path("", api_of(view, auth=auth).urls))
    assert errors() == []
    assert [post(TOKEN)["Idempotent-Replayed"] for _ in range(2)] == ["false", "true"]
    refused = post()
    assert (refused.status_code, b"A-1" in refused.content) == (401, False)
    assert orders() == 1


def test_the_token_may_be_the_owner_of_the_key(urls: Urls) -> None:
    by_auth = idempotent(anonymous_scope=lambda request, **_: request.auth)
    urls(path("", api_of(by_auth(view_of("sync"))).urls))
    tokens = [TOKEN, {"Authorization": "bob"}, TOKEN]
    assert [post(token).json()["order"] for token in tokens] == ["A-1", "A-2", "A-1"]


@pytest.mark.parametrize("auth", [{}, {"auth": None}])
def test_around_an_operation_without_authentication(urls: Urls, auth: dict[str, Any]) -> None:
    """Its function may return what it likes, because the response around it is recorded."""
    api = ninja.NinjaAPI(urls_namespace=f"pay-{next(number)}", auth=by_token if auth else None)

    @api.post("/pay/", **auth)
    @decorate_view(shared)
    def pay(request: HttpRequest) -> dict[str, int]:
        Order.objects.create(number="A-1", total=1)
        return {"orders": orders()}

    urls(path("", api.urls))
    assert errors() == []
    assert [post().json() for _ in range(2)] == [{"orders": 1}] * 2


@pytest.mark.parametrize("decorators", [[locked], [wrapping, locked], [locked, wrapping]])
def test_a_lock_around_the_authentication_is_found(urls: Urls, decorators: list[Any]) -> None:
    view = decorate_view(*decorators)(view_of("sync"))
    urls(path("", api_of(view).urls))
    with pytest.raises(InvalidRedlock, match=r"\.pay: django-ninja authenticates"):
        post(TOKEN)
    assert orders() == 0
    assert [identity for identity, _ in errors()] == ["E012"]


# REST framework.


class ByToken(BaseAuthentication):
    def authenticate(self, request: Request) -> tuple[User, None] | None:
        return (User(pk=1), None) if "Authorization" in request.headers else None


class Closed(BaseThrottle):
    def allow_request(self, request: Request, view: APIView) -> bool:
        return "X-Throttled" not in request.headers


class Base(APIView):
    authentication_classes = (ByToken,)
    permission_classes = (IsAuthenticated,)
    throttle_classes = (Closed,)

    def post(self, request: Request) -> Response:
        return Response({"order": make_order(request._request).content.decode()}, status=201)


class OnHandler(LockAPIMixin, Base):
    post = shared(Base.post)


class OnHandlerByMethodDecorator(LockAPIMixin, Base):
    @method_decorator(shared)
    def post(self, request: Request) -> Response:
        return super().post(request)


class OnActions(LockAPIMixin, ViewSet):
    authentication_classes = (ByToken,)
    permission_classes = (IsAuthenticated,)
    throttle_classes = (Closed,)

    @shared
    def create(self, request: Request) -> Response:
        return Base.post(self, request)

    @action(detail=False, methods=["post"])
    @shared
    def extra(self, request: Request) -> Response:
        return Base.post(self, request)


router = SimpleRouter()
router.register("pay", OnActions, basename="pay")
AFTER = {
    "handler": (path("pay/", OnHandler.as_view()), "/pay/"),
    "method_decorator": (path("pay/", OnHandlerByMethodDecorator.as_view()), "/pay/"),
    "view set": (path("", include(router.urls)), "/pay/"),
    "extra action": (path("", include(router.urls)), "/pay/extra/"),
}


@pytest.mark.parametrize("where", AFTER)
def test_rest_framework_authenticates_before_a_replay(urls: Urls, where: str) -> None:
    pattern, url = AFTER[where]
    urls(pattern)
    assert errors() == []
    assert [post(TOKEN, url)["Idempotent-Replayed"] for _ in range(2)] == ["false", "true"]
    refused = [post({}, url), post(TOKEN | {"X-Throttled": "1"}, url)]
    assert [(answer.status_code, b"A-1" in answer.content) for answer in refused] == [
        (403, False),
        (429, False),
    ]
    assert orders() == 1


@method_decorator(shared, name="dispatch")
class OnDispatch(LockAPIMixin, Base):
    pass


class MixinAround(IdempotentMixin, Base):
    idempotent_options = {"anonymous_scope": lambda request, **_: "all"}  # noqa: RUF012


class WithoutMixin(Base):
    post = shared(Base.post)


class ActionWithoutMixin(ViewSet):
    authentication_classes = (ByToken,)
    permission_classes = (IsAuthenticated,)

    @action(detail=False, methods=["post"])
    @shared
    def pay(self, request: Request) -> Response:
        return Base.post(self, request)


def function(decorate: Any) -> Any:
    def pay(request: Request) -> Response:
        return Base().post(request)

    return api_view(["POST"])(
        authentication_classes([ByToken])(permission_classes([IsAuthenticated])(decorate(pay)))
    )


BEFORE = {
    "dispatch": OnDispatch.as_view(),
    "mixin": MixinAround.as_view(),
    "as_view()": shared(Base.as_view()),
    "as_view() and a decorator": shared(wrapping(Base.as_view())),
    "api_view": shared(function(lambda view: view)),
    "below api_view": function(shared),
    "without LockAPIMixin": WithoutMixin.as_view(),
    "action without LockAPIMixin": ActionWithoutMixin.as_view({"post": "pay"}),
}


@pytest.mark.attack
@pytest.mark.parametrize("where", BEFORE)
def test_rest_framework_is_not_recorded_around_its_authentication(urls: Urls, where: str) -> None:
    urls(path("pay/", BEFORE[where]))
    for headers in (TOKEN, {}):
        if where.endswith(("LockAPIMixin", "below api_view")) and not headers:
            assert post(headers).status_code == 403  # authenticated first, so nothing leaks
            continue
        with pytest.raises(InvalidRedlock, match="LockAPIMixin"):
            post(headers)
    assert (orders(), IdempotencyRecord.objects.count()) == (0, 0)
    assert [identity for identity, _ in errors()] == ["E010"]


# Plain Django.


def token_required(view: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator of the site, which nothing can recognise."""

    def wrapper(request: HttpRequest, **kwargs: Any) -> Any:
        if "Authorization" not in request.headers:
            return HttpResponse("Who are you?", status=401)
        request.user = User(pk=1)
        return view(request, **kwargs)

    return wrapper


def basic_auth(view: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(request: Any, **kwargs: Any) -> Any:
        request.auth = request.headers.get("Authorization")
        return view(request, **kwargs) if request.auth else HttpResponse("Who?", status=401)

    return wrapper


def atoken_required(view: Callable[..., Any]) -> Callable[..., Any]:
    async def wrapper(request: HttpRequest, **kwargs: Any) -> Any:
        request.user = User(pk=1)
        return await view(request, **kwargs)

    return wrapper


def hiding(view: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator without functools.wraps, which hides the framework of the view."""
    return lambda request, **kwargs: view(request, **kwargs)


INSIDE: dict[str, Any] = {
    "user": shared(token_required(make_order)),
    "token": shared(basic_auth(make_order)),
    "user, async": shared(atoken_required(view_of("async"))),
    "REST framework, hidden": shared(hiding(Base.as_view())),
    "django-ninja, hidden": api_of(decorate_view(hiding, shared)(view_of("sync"))),
}


@pytest.mark.attack
@pytest.mark.parametrize("where", INSIDE)
def test_a_request_that_the_view_authenticates_is_not_replayed(
    urls: Urls, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    """The stored response of a client with a token was sent to one without."""
    view = INSIDE[where]
    urls(path("", view.urls) if isinstance(view, ninja.NinjaAPI) else path("pay/", view))
    assert post(TOKEN).status_code == 201
    assert "request.user or request.auth was set inside of @idempotent" in caplog.text
    for headers in ({}, TOKEN):
        refused = post(headers)
        assert refused.json()["code"] == "idempotency-result-unavailable"
    assert orders() == 1


@pytest.mark.parametrize(
    "view",
    [
        token_required(idempotent(make_order)),
        idempotent(
            anonymous_scope=lambda request, **_: "all",
            replay_check=lambda request, **_: "Authorization" in request.headers,
        )(token_required(make_order)),
    ],
    ids=["above", "replay_check"],
)
def test_a_replay_that_is_always_authenticated_is_sent(
    urls: Urls, caplog: pytest.LogCaptureFixture, view: Any
) -> None:
    urls(path("pay/", view))
    assert [post(TOKEN)["Idempotent-Replayed"] for _ in range(2)] == ["false", "true"]
    assert post().status_code in (401, 403)
    assert (orders(), caplog.text.count("set inside")) == (1, 0)


ran: list[str] = []


def _named(request: HttpRequest) -> User | AnonymousUser:
    name = request.headers.get("X-As", "")
    return User(pk=1000 + len(name), username=name) if name else AnonymousUser()


@sync_and_async_middleware
def as_another_user(get_response: Callable[..., Any]) -> Callable[..., Any]:
    """Replace request.user, as middleware for tokens and impersonation does."""

    def middleware(request: HttpRequest) -> Any:
        request.user = _named(request)
        return get_response(request)

    return middleware


@sync_and_async_middleware
def as_another_async_user(get_response: Callable[..., Any]) -> Callable[..., Any]:
    """Replace request.auser and not request.user."""

    def middleware(request: HttpRequest) -> Any:
        async def auser() -> Any:
            return _named(request)

        request.auser = auser
        return get_response(request)

    return middleware


class Named(BaseAuthentication):
    def authenticate(self, request: Request) -> tuple[Any, None]:
        return _named(request), None


def note(request: Any) -> dict[str, str]:
    ran.append(request.headers.get("X-As", ""))
    return {"for": ran[-1]}


@idempotent
@lock_resource("wallet:<user.pk>")
def sync_view(request: HttpRequest, **_: Any) -> HttpResponse:
    return JsonResponse(note(request), status=201)


@idempotent
@lock_resource("wallet:<user.pk>")
async def async_view(request: HttpRequest, **_: Any) -> HttpResponse:
    return JsonResponse(note(request), status=201)


class ApiView(LockAPIMixin, APIView):
    authentication_classes = (Named,)

    @idempotent
    @lock_resource("wallet:<user.pk>")
    def post(self, request: Request, **_: Any) -> Response:
        return Response(note(request), status=201)


VIEWS = {"sync": sync_view, "async": async_view, "rest": ApiView.as_view()}


@pytest.fixture
def replaced_user(
    request: pytest.FixtureRequest, site: Site, plain: None, settings: Settings
) -> None:
    """Serve one kind of view, with a middleware that replaces the user of the session."""
    if request.param != "rest":  # REST framework replaces the user inside of its views
        _add_middleware(settings, as_another_user)
    site.serve(VIEWS[request.param])
    ran.clear()


def _add_middleware(settings: Settings, middleware: Any) -> None:
    index = next(n for n, p in enumerate(settings.MIDDLEWARE) if p.endswith("LockMiddleware"))
    settings.MIDDLEWARE = [
        *settings.MIDDLEWARE[:index],
        f"{__name__}.{middleware.__name__}",
        *settings.MIDDLEWARE[index:],
    ]


KINDS = pytest.mark.parametrize("replaced_user", VIEWS, indirect=True)


@pytest.mark.attack
@KINDS
def test_two_replaced_users_with_one_session_never_meet(site: Site, replaced_user: None) -> None:
    answers = [site.post(headers={"X-As": name}).json() for name in ("ann", "robert", "ann")]
    assert answers == [{"for": "ann"}, {"for": "robert"}, {"for": "ann"}]
    assert ran == ["ann", "robert"]


@KINDS
def test_a_key_of_a_replaced_user_without_a_session_is_honoured(
    site: Site, replaced_user: None
) -> None:
    site.client.logout()
    answers = [site.post(headers={"X-As": "ann"}) for _ in range(2)]
    assert [a.get("Idempotent-Replayed") for a in answers] == ["false", "true"]


@KINDS
def test_the_lock_is_the_replaced_users(site: Site, replaced_user: None) -> None:
    with held_elsewhere("wallet:1003"):
        assert site.post(headers={"X-As": "ann"}).status_code == 423
        assert site.post(headers={"X-As": "robert"}).status_code == 201


@pytest.mark.parametrize("replaced_user", ["sync", "async"], indirect=True)
def test_a_user_that_was_logged_out_by_the_middleware_has_no_scope(
    site: Site, replaced_user: None
) -> None:
    """The session still belongs to "ann", but the middleware says nobody is logged in."""
    assert site.post().status_code == 400  # <user.pk> has no value
    assert ran == []


def test_two_users_of_one_request_are_an_error(site: Site, plain: None, settings: Settings) -> None:
    _add_middleware(settings, as_another_async_user)
    site.serve(async_view)
    site.refuses("to the same user", headers={"X-As": "ann"})


@api_view(["POST"])
@authentication_classes([Named])
def rest_function(request: Request, **_: Any) -> Response:
    raise AssertionError("never")


@method_decorator(lock_resource("wallet:<user.pk>"), name="dispatch")
class LockedDispatch(LockAPIMixin, APIView):
    authentication_classes = (Named,)


@pytest.mark.parametrize(
    "view",
    [
        lock_resource("wallet:<user.pk>")(rest_function),
        LockedDispatch.as_view(),
    ],
    ids=["lock above @api_view", "lock on dispatch"],
)
@pytest.mark.parametrize("atomic", [False, True])
def test_a_decorator_outside_of_rest_frameworks_authentication_is_an_error(
    site: Site, view: Any, monkeypatch: pytest.MonkeyPatch, atomic: bool
) -> None:
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", atomic)
    site.put(path("orders/", view))
    assert "redlock_django.E012" in {error.id for error in run_checks(tags=["redlock"])}
    site.refuses(r"<user\.pk> is read before", headers={"X-As": "ann"})


@pytest.mark.parametrize("atomic", [False, True])
def test_a_rule_outside_of_rest_frameworks_authentication_is_an_error(
    site: Site, settings: Settings, monkeypatch: pytest.MonkeyPatch, atomic: bool
) -> None:
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", atomic)
    site.put(path("orders/", rest_function))
    rule = {"path": "/orders/", "key": "wallet:<user.pk>"}
    settings.REDLOCK = {"default": {"BACKEND": MEMORY, "RULES": [rule]}}
    messages = [error.msg for error in run_checks(tags=["redlock"])]
    assert any("RULES: rule 1" in m and "<user.pk> is read before" in m for m in messages)

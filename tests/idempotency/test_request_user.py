"""A replaced `request.user` decides about scopes and locks, in every kind of view."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, User
from django.core.checks import run_checks
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path
from django.utils.decorators import method_decorator, sync_and_async_middleware
from pytest_django import Settings
from rest_framework.authentication import BaseAuthentication
from rest_framework.decorators import api_view, authentication_classes
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from redlock_django import idempotent, lock_resource
from redlock_django.contrib.drf import LockAPIMixin
from tests.app.conftest import MEMORY
from tests.idempotency.conftest import Site

pytestmark = pytest.mark.django_db(transaction=True)
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
def kind(request: pytest.FixtureRequest, site: Site, plain: None, settings: Settings) -> None:
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


KINDS = pytest.mark.parametrize("kind", VIEWS, indirect=True)


@pytest.mark.attack
@KINDS
def test_two_replaced_users_with_one_session_never_meet(site: Site, kind: None) -> None:
    answers = [site.post(headers={"X-As": name}).json() for name in ("ann", "robert", "ann")]
    assert answers == [{"for": "ann"}, {"for": "robert"}, {"for": "ann"}]
    assert ran == ["ann", "robert"]


@KINDS
def test_a_key_of_a_replaced_user_without_a_session_is_honoured(site: Site, kind: None) -> None:
    site.client.logout()
    answers = [site.post(headers={"X-As": "ann"}) for _ in range(2)]
    assert [a.get("Idempotent-Replayed") for a in answers] == ["false", "true"]


@KINDS
def test_the_lock_is_the_replaced_users(
    site: Site, kind: None, held_elsewhere: Callable[[str], Any]
) -> None:
    with held_elsewhere("wallet:1003"):
        assert site.post(headers={"X-As": "ann"}).status_code == 423
        assert site.post(headers={"X-As": "robert"}).status_code == 201


@pytest.mark.parametrize("kind", ["sync", "async"], indirect=True)
def test_a_user_that_was_logged_out_by_the_middleware_has_no_scope(site: Site, kind: None) -> None:
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
def test_a_decorator_outside_of_rest_frameworks_authentication_is_an_error(
    site: Site, view: Any
) -> None:
    site.put(path("orders/", view))
    assert "redlock_django.E012" in {error.id for error in run_checks(tags=["redlock"])}
    site.refuses(r"<user\.pk> is read before", headers={"X-As": "ann"})


def test_a_rule_outside_of_rest_frameworks_authentication_is_an_error(
    site: Site, settings: Settings
) -> None:
    site.put(path("orders/", rest_function))
    rule = {"path": "/orders/", "key": "wallet:<user.pk>"}
    settings.REDLOCK = {"default": {"BACKEND": MEMORY, "RULES": [rule]}}
    messages = [error.msg for error in run_checks(tags=["redlock"])]
    assert any("RULES: rule 1" in m and "<user.pk> is read before" in m for m in messages)

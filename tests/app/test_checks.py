"""System checks of locked views, from settings and URLs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.decorators import login_required, permission_required
from django.contrib.auth.mixins import LoginRequiredMixin
from django.core.checks import run_checks
from django.core.checks.registry import registry
from django.http import HttpRequest, HttpResponse
from django.urls import include, path, re_path
from django.utils.decorators import method_decorator
from django.views.decorators.csrf import csrf_exempt
from django.views.generic import View
from pytest_django import Settings
from rest_framework.decorators import api_view
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from redlock_django import LockResourceMixin, idempotent, lock_resource
from redlock_django.checks import register_checks, views
from redlock_django.checks.aliases import valid_aliases as really_valid_aliases
from redlock_django.contrib.drf import LockAPIMixin
from tests.app.checking import found
from tests.app.conftest import DATABASE, LOCK_MIDDLEWARE, MEMORY, Urls
from tests.views.kinds import of_class

locked = lock_resource("order:<int:pk>")
Rules = Callable[..., None]


@pytest.fixture(autouse=True, params=[MEMORY, DATABASE], ids=["memory", "database"])
def rules(request: pytest.FixtureRequest, settings: Settings) -> Rules:
    """A site with each of two stores; return a function that sets its rules."""
    settings.REDLOCK = {"default": {"BACKEND": request.param}}
    settings.MIDDLEWARE = [LOCK_MIDDLEWARE]

    def put(*rules: dict[str, Any]) -> None:
        settings.REDLOCK = {"default": {"BACKEND": request.param, "RULES": list(rules)}}

    return put


@locked
def function(request: HttpRequest, pk: int) -> HttpResponse:
    return HttpResponse()


class Handler(View):
    @method_decorator(locked)
    def post(self, request: HttpRequest, pk: int) -> HttpResponse:
        return HttpResponse()


class Method(View):
    @locked
    def post(self, request: HttpRequest, pk: int) -> HttpResponse:
        return HttpResponse()


@method_decorator(locked, name="dispatch")
class Dispatch(View):
    pass


class Mixin(LockResourceMixin, View):
    lock_key = "order:<int:pk>"


def test_a_site_in_order_has_no_message(urls: Urls) -> None:
    views: list[Any] = [function, Dispatch.as_view(), Mixin.as_view()]
    urls(*(path(f"{index}/<int:pk>/", view) for index, view in enumerate(views)))
    assert found() == {}


def test_the_testproject_is_in_order(settings: Settings) -> None:
    settings.ROOT_URLCONF = "testproject.urls"
    assert found() == {}


def test_a_wrong_rule_is_reported(rules: Rules, urls: Urls) -> None:
    rules({"view": "pay", "key": "order:<pk>"})
    assert "rule 1 ('pay'): it matches no URL pattern" in found()["E002"]


def test_rules_without_the_middleware_are_reported(
    rules: Rules, settings: Settings, urls: Urls
) -> None:
    settings.MIDDLEWARE = ["not.there.Middleware", "django.middleware.common.CommonMiddleware"]
    rules({"view": "pay", "key": "order:<pk>"})
    urls(path("<int:pk>/", lambda request, pk: HttpResponse(), name="pay"))
    assert set(found()) == {"E003"}


@pytest.mark.attack
@pytest.mark.parametrize(
    ("view", "name"),
    [
        (function, "function"),
        (Dispatch.as_view(), "Dispatch"),
        (Mixin.as_view(), "Mixin"),
        (Handler.as_view(), "Handler.post"),
        (Method.as_view(), "Method.post"),
        (locked(View.as_view()), "View"),
    ],
)
def test_an_unknown_url_kwarg_names_the_view_and_the_parameter(
    urls: Urls, view: Any, name: str
) -> None:
    urls(path("shop/<slug:shop>/", include([path("<int:id>/", view)])))
    message = found()["E004"]
    assert f"{name}: template 'order:<int:pk>' needs the URL kwarg 'pk'" in message
    assert "the URL 'shop/<slug:shop>/<int:id>/' provides: 'id', 'shop'" in message


@pytest.mark.attack
@pytest.mark.parametrize(
    ("route", "template", "warned"),
    [
        (path("<pk>/", HttpResponse), "order:<pk>", True),
        (path("<str:order_id>/", HttpResponse), "order:<order_id>", True),
        (re_path(r"^(?P<pk>\d+)/$", HttpResponse), "order:<pk>", True),
        (re_path(r"^(?P<pk>\d+)/$", HttpResponse), "order:<int:pk>", False),
        (path("<int:pk>/", HttpResponse), "order:<pk>", False),
        (path("<uuid:pk>/", HttpResponse), "order:<pk>", False),
        (path("<int:pk>/", include([path("", HttpResponse)])), "order:<pk>", False),
        (path("", HttpResponse, {"pk": 7}), "order:<pk>", False),
        (path("<slug:shop>/", HttpResponse), "shop:<shop>", False),
        (path("", HttpResponse), "order:<get:order>", True),
        (path("", HttpResponse), "order:<int:get:order>", False),
        (path("", HttpResponse), "order:<get:a>:<str:header:X-Tenant>", True),
        (path("", HttpResponse), "user:<user.pk>", False),
    ],
)
@pytest.mark.parametrize("by_rule", [True, False])
def test_a_placeholder_with_several_spellings_of_one_value(
    rules: Rules, urls: Urls, route: Any, template: str, warned: bool, by_rule: bool
) -> None:
    view: Any = lambda request, **kwargs: HttpResponse()  # noqa: E731 - a rule needs its own name
    leaf = route
    while hasattr(leaf, "url_patterns"):
        (leaf,) = leaf.url_patterns
    leaf.callback = view if by_rule else lock_resource(template)(view)
    leaf.name = "it"
    urls(route)
    if by_rule:
        rules({"view": "it", "key": template})
    assert ("W013" in found()) is warned


def mixed(*bases: type[Any], **attributes: Any) -> type[Any]:
    """Return a class with these bases; without a `get_lock_key`, it has a template."""
    return type("Mixed", bases, attributes or {"lock_key": "order:<int:pk>"})


def handler(*decorators: Any) -> Any:
    """Return the view of a class whose handler has these decorators."""

    class Pay(View):
        @method_decorator(decorators)
        def post(self, request: HttpRequest, pk: int) -> HttpResponse:
            return HttpResponse()

    return Pay.as_view()


Private = mixed(LoginRequiredMixin, View, http_method_names=["post"])
DecoratedLogin: Any = method_decorator(login_required, name="dispatch")(mixed(View, doc=""))


def unlocked(request: HttpRequest, pk: int) -> HttpResponse:
    return HttpResponse()


class LockedApi(APIView):  # type: ignore[misc]
    pass


class Actions(LockAPIMixin, ViewSet):  # type: ignore[misc]
    @method_decorator([locked, login_required])
    def inside(self, request: Request, pk: int) -> Response:
        return Response()

    @method_decorator([login_required, locked])
    def in_order(self, request: Request, pk: int) -> Response:
        return Response()

    @lock_resource("report:<int:pk>", limit=2)
    def two_at_once(self, request: Request, pk: int) -> Response:
        return Response()


@pytest.mark.attack
@pytest.mark.parametrize(
    ("view", "inside"),
    [
        (login_required(function), None),
        (locked(login_required(HttpResponse)), "decorator"),
        (csrf_exempt(locked(permission_required("x")(HttpResponse))), "decorator"),
        (mixed(LoginRequiredMixin, LockResourceMixin, View).as_view(), None),
        (mixed(LockResourceMixin, LoginRequiredMixin, View).as_view(), "LoginRequiredMixin"),
        (
            mixed(
                LockResourceMixin, LoginRequiredMixin, View, get_lock_key=lambda self: "nightly"
            ).as_view(),
            "LoginRequiredMixin",
        ),
        (locked(Private.as_view()), "LoginRequiredMixin"),
        (of_class(View, login_required, locked), None),
        (of_class(View, locked, login_required), "decorator"),
        (of_class(Private, locked), "LoginRequiredMixin"),
        (mixed(LockResourceMixin, DecoratedLogin).as_view(), "decorator"),
        (of_class(Dispatch, login_required), None),
        (handler(locked, login_required), "Pay.post: a login or permission decorator"),
        (handler(login_required, locked), None),
        (api_view(["POST"])(locked(login_required(unlocked))), "decorator"),
        (api_view(["POST"])(login_required(locked(unlocked))), None),
        (locked(LockedApi.as_view()), "REST framework"),
        (Actions.as_view({"post": "inside"}), "Actions.inside: a login or permission decorator"),
        (Actions.as_view({"post": "in_order"}), None),
    ],
)
def test_a_login_check_inside_the_lock(urls: Urls, view: Any, inside: str | None) -> None:
    urls(path("<int:pk>/", view))
    messages = found()
    assert ("W014" in messages) is (inside is not None)
    assert (inside or "") in messages.get("W014", "")


@pytest.mark.attack
@pytest.mark.parametrize(
    ("view", "inside"),
    [
        (login_required(HttpResponse), "decorator"),
        (Private.as_view(), "LoginRequiredMixin"),
        (LockedApi.as_view(), "REST framework"),
        (View.as_view(), None),
    ],
)
def test_a_rule_around_a_login_check(
    rules: Rules, urls: Urls, view: Any, inside: str | None
) -> None:
    rules({"view": "it", "key": "order:<int:pk>"})
    urls(path("<int:pk>/", view, name="it"))
    assert ("W014" in found()) is (inside is not None)


def test_an_async_template_of_a_sync_view(urls: Urls) -> None:
    async def by_tenant(request: HttpRequest) -> str:
        return "a"

    urls(path("", lock_resource(by_tenant)(lambda request: HttpResponse())))
    assert "is a sync view, but its template" in found()["E007"]


def test_decorator_arguments_that_no_alias_can_keep(urls: Urls) -> None:
    unknown = lock_resource("order:<int:pk>", using="nope")(lambda request, pk: HttpResponse())
    endless = lock_resource("order:<int:pk>", ttl=999)(lambda request, pk: HttpResponse())
    urls(path("<int:pk>/", unknown))
    assert "no alias 'nope'" in found()["E008"]
    urls(path("<int:pk>/", endless))
    assert "MAX_TTL is 60 s" in found()["E008"]


@pytest.mark.parametrize(
    "redlock", [{"default": {"MASTERS": ["redis://a"], "TLL": 5}}, {"default": {}}, {}, None]
)
def test_one_wrong_setting_is_one_error(urls: Urls, settings: Settings, redlock: Any) -> None:
    """It was reported again for each view, and each handler of a class."""
    view = lock_resource("order:<int:pk>")(lambda request, pk: HttpResponse())
    urls(path("a/<int:pk>/", view), path("b/<int:pk>/", idempotent(view)))
    settings.REDLOCK = redlock
    messages = run_checks(tags=["redlock"])
    assert [message.id for message in messages] == ["redlock_django.E001"]


def test_the_settings_are_read_once_for_all_views(
    urls: Urls, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[None] = []

    def valid_aliases() -> Iterator[Any]:
        read.append(None)
        return really_valid_aliases()

    monkeypatch.setattr(views, "valid_aliases", valid_aliases)
    urls(*(path(f"{number}/<int:pk>/", locked(unlocked)) for number in range(9)))
    found()
    assert len(read) == 1


def test_setting_up_the_app_again_registers_no_check_twice() -> None:
    before = len(registry.get_checks(include_deployment_checks=True))
    register_checks()
    assert len(registry.get_checks(include_deployment_checks=True)) == before


def test_the_hint_about_missing_masters_can_be_pasted(settings: Settings) -> None:
    wrong: list[Any] = [{}, {"default": {}}, {"default": {"MASTERS": "localhost:6379"}}]
    for redlock in wrong:
        settings.REDLOCK = redlock
        (message,) = run_checks(tags=["redlock"])
        pasted: dict[str, Any] = {}
        exec(str(message.hint), pasted)
        settings.REDLOCK = pasted["REDLOCK"]
        assert run_checks(tags=["redlock"]) == []


def test_masters_beside_another_store_are_not_hinted_at(settings: Settings) -> None:
    section = {"BACKEND": "redlock_django.backends.database.DatabaseBackend"}
    settings.REDLOCK = {"default": {**section, "MASTERS": ["redis://localhost"]}}
    (message,) = run_checks(tags=["redlock"])
    assert "it is a key of redlock_django.backends.redis.RedisBackend" in message.msg
    assert message.hint is None


def test_a_rule_with_a_key_of_a_wrong_type(rules: Rules) -> None:
    rules({"view": "x", "key": 5})
    assert "'key' must be a template" in found()["E002"]

"""System checks of locked views, from settings and URLs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator
from typing import Any

import pytest
from django.contrib.auth.decorators import login_required, permission_required
from django.contrib.auth.mixins import LoginRequiredMixin
from django.core.checks import run_checks
from django.core.checks.registry import registry
from django.db import connections
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
from redlock_django.checks.views import sees_commits as really_sees_commits
from redlock_django.contrib.drf import LockAPIMixin
from tests.app.checking import found
from tests.app.conftest import DATABASE, LOCK_MIDDLEWARE, MEMORY

Urls = Callable[..., None]
locked = lock_resource("order:<int:pk>")


@pytest.fixture(autouse=True, params=[MEMORY, DATABASE], ids=["memory", "database"])
def _site(request: pytest.FixtureRequest, settings: Settings) -> None:
    settings.REDLOCK = {"default": {"BACKEND": request.param}}
    settings.MIDDLEWARE = [LOCK_MIDDLEWARE]


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


def test_wrong_settings_are_reported(settings: Settings) -> None:
    settings.REDLOCK = {"default": {**settings.REDLOCK["default"], "TLL": 3}}
    assert "unknown key 'TLL'" in found()["E001"]


def test_a_wrong_rule_is_reported(settings: Settings, urls: Urls) -> None:
    rules = [{"view": "pay", "key": "order:<pk>"}]
    settings.REDLOCK = {"default": {**settings.REDLOCK["default"], "RULES": rules}}
    assert "rule 1 ('pay'): it matches no URL pattern" in found()["E002"]


def test_rules_without_the_middleware_are_reported(settings: Settings, urls: Urls) -> None:
    settings.MIDDLEWARE = ["not.there.Middleware", "django.middleware.common.CommonMiddleware"]
    rules = [{"view": "pay", "key": "order:<pk>"}]
    settings.REDLOCK = {"default": {**settings.REDLOCK["default"], "RULES": rules}}
    urls(path("<int:pk>/", lambda request, pk: HttpResponse(), name="pay"))
    assert set(found()) == {"E003"}


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
    urls: Urls, view: Any, name: str, sees_commits: None
) -> None:
    urls(path("shop/<slug:shop>/", include([path("<int:id>/", view)])))
    message = found()["E004"]
    assert f"{name}: template 'order:<int:pk>' needs the URL kwarg 'pk'" in message
    assert "the URL 'shop/<slug:shop>/<int:id>/' provides: 'id', 'shop'" in message


@pytest.mark.parametrize("view", [Handler, Method])
def test_a_handler_without_the_middleware(
    settings: Settings, urls: Urls, view: type[View], sees_commits: None
) -> None:
    settings.MIDDLEWARE = []
    urls(path("<int:pk>/", view.as_view()))
    assert f"{view.__name__}.post acquires its lock inside the transaction" in found()["E005"]
    assert set(found()) == {"E005"}


def test_a_handler_where_reads_may_be_older_than_the_lock(
    urls: Urls, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls(path("<int:pk>/", Handler.as_view()))
    assert 'name="dispatch"' in found()["E006"]
    monkeypatch.setitem(connections["default"].settings_dict, "ATOMIC_REQUESTS", False)
    assert found() == {}


def test_only_a_check_of_the_database_asks_for_its_isolation(
    urls: Urls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server or role may set another default. Django 6.1 gives all aliases to every check."""
    asked: list[str] = []

    def sees(connection: Any, databases: Collection[str] = ()) -> bool:
        asked.extend({connection.alias} & {*databases})
        return connection.alias not in databases

    monkeypatch.setattr(views, "sees_commits", sees)
    urls(path("<int:pk>/", Handler.as_view()))
    assert found(databases=["default"]) == {}
    assert asked == []
    assert "may read data from before" in found(tag="database", databases=["default"])["E006"]
    assert asked == ["default"]


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
    settings: Settings, urls: Urls, route: Any, template: str, warned: bool, by_rule: bool
) -> None:
    view: Any = lambda request, **kwargs: HttpResponse()  # noqa: E731 - a rule needs its own name
    leaf = route
    while hasattr(leaf, "url_patterns"):
        (leaf,) = leaf.url_patterns
    leaf.callback = view if by_rule else lock_resource(template)(view)
    leaf.name = "it"
    urls(route)
    if by_rule:
        rule = {"view": "it", "key": template}
        settings.REDLOCK = {"default": {**settings.REDLOCK["default"], "RULES": [rule]}}
    assert ("W013" in found()) is warned


class Private(LoginRequiredMixin, View):
    pass


class LoginFirst(LoginRequiredMixin, LockResourceMixin, View):
    lock_key = "order:<int:pk>"


class LockFirst(LockResourceMixin, LoginRequiredMixin, View):
    lock_key = "order:<int:pk>"


class ComputedFirst(LockResourceMixin, LoginRequiredMixin, View):
    def get_lock_key(self) -> str:
        return "nightly"


@method_decorator([login_required, locked], name="dispatch")
class DecoratedInOrder(View):
    pass


@method_decorator([locked, login_required], name="dispatch")
class DecoratedInside(View):
    pass


@method_decorator(locked, name="dispatch")
class LockAroundMixin(LoginRequiredMixin, View):
    pass


@method_decorator(login_required, name="dispatch")
class DecoratedLogin(View):
    pass


class LockAroundDecorated(LockResourceMixin, DecoratedLogin):
    lock_key = "order:<int:pk>"


@method_decorator(login_required, name="dispatch")
class LoginAroundDecorated(Dispatch):
    pass


class HandlerInside(View):
    @method_decorator([locked, login_required])
    def post(self, request: HttpRequest, pk: int) -> HttpResponse:
        return HttpResponse()


class HandlerInOrder(View):
    @method_decorator([login_required, locked])
    def post(self, request: HttpRequest, pk: int) -> HttpResponse:
        return HttpResponse()


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


@pytest.mark.parametrize(
    ("view", "inside"),
    [
        (login_required(function), None),
        (locked(login_required(HttpResponse)), "decorator"),
        (csrf_exempt(locked(permission_required("x")(HttpResponse))), "decorator"),
        (LoginFirst.as_view(), None),
        (LockFirst.as_view(), "LoginRequiredMixin"),
        (ComputedFirst.as_view(), "LoginRequiredMixin"),
        (locked(Private.as_view()), "LoginRequiredMixin"),
        (DecoratedInOrder.as_view(), None),
        (DecoratedInside.as_view(), "decorator"),
        (LockAroundMixin.as_view(), "LoginRequiredMixin"),
        (LockAroundDecorated.as_view(), "DecoratedLogin"),
        (LoginAroundDecorated.as_view(), None),
        (HandlerInside.as_view(), "HandlerInside.post: a login or permission decorator"),
        (HandlerInOrder.as_view(), None),
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


@pytest.mark.parametrize(
    ("view", "inside"),
    [
        (login_required(HttpResponse), "decorator"),
        (Private.as_view(), "Private"),
        (LockedApi.as_view(), "REST framework"),
        (View.as_view(), None),
    ],
)
def test_a_rule_around_a_login_check(
    settings: Settings, urls: Urls, view: Any, inside: str | None
) -> None:
    rule = {"view": "it", "key": "order:<int:pk>"}
    settings.REDLOCK = {"default": {**settings.REDLOCK["default"], "RULES": [rule]}}
    urls(path("<int:pk>/", view, name="it"))
    assert ("W014" in found()) is (inside is not None)


def audit(view: Any) -> Any:
    @functools.wraps(view)
    def audited(*args: Any, **kwargs: Any) -> Any:
        return view(*args, **kwargs)

    return audited


class Audit:
    """A decorator of the site that is a class."""

    def __init__(self, view: Any) -> None:
        functools.update_wrapper(self, view)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("never")


@pytest.mark.parametrize(
    ("view", "warned"),
    [
        (audit(function), True),
        (csrf_exempt(audit(login_required(function))), True),
        (audit(Mixin.as_view()), True),
        (csrf_exempt(Audit(function)), True),
        (audit(idempotent(audit(HttpResponse))), True),
        (csrf_exempt(login_required(function)), False),
        (locked(audit(HttpResponse)), False),
        (Mixin.as_view(), False),
        (audit(HttpResponse), False),
        (login_required(locked(Audit(HttpResponse))), False),
    ],
)
def test_a_decorator_that_loses_its_transaction(
    urls: Urls, monkeypatch: pytest.MonkeyPatch, view: Any, warned: bool
) -> None:
    urls(path("<int:pk>/", view))
    assert ("W016" in found()) is warned
    assert not warned or f"a decorator in {__name__} is above the lock" in found()["W016"]
    monkeypatch.setitem(connections["default"].settings_dict, "ATOMIC_REQUESTS", False)
    assert "W016" not in found()


def test_a_middleware_with_a_transaction(
    settings: Settings, urls: Urls, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.MIDDLEWARE = ["reversion.middleware.RevisionMiddleware", LOCK_MIDDLEWARE]
    assert "database 'default'" in found()["W017"]
    monkeypatch.setattr(views, "sees_commits", lambda connection, databases=(): True)
    assert "W017" not in found()


def test_an_async_template_of_a_sync_view(urls: Urls) -> None:
    async def by_tenant(request: HttpRequest) -> str:
        return "a"

    urls(path("", lock_resource(by_tenant)(lambda request: HttpResponse())))
    assert "is a sync view, but its template" in found()["E007"]


@pytest.mark.parametrize(
    ("options", "sees"),
    [
        ({}, True),
        ({"isolation_level": 2}, True),
        ({"isolation_level": 3}, False),
        ({"isolation_level": 4}, False),
        ({"options": "-c default_transaction_isolation=serializable"}, False),
        ({"options": "-c statement_timeout=9"}, True),
    ],
)
def test_transactions_that_see_commits_of_others(options: dict[str, Any], sees: bool) -> None:
    from django.db.backends.postgresql.base import DatabaseWrapper

    connection = DatabaseWrapper({"OPTIONS": options}, "postgres")
    assert really_sees_commits(connection) is sees
    assert not really_sees_commits(connections["default"])


def test_decorator_arguments_that_no_alias_can_keep(urls: Urls) -> None:
    unknown = lock_resource("order:<int:pk>", using="nope")(lambda request, pk: HttpResponse())
    endless = lock_resource("order:<int:pk>", ttl=999)(lambda request, pk: HttpResponse())
    urls(path("<int:pk>/", unknown))
    assert "no alias 'nope'" in found()["E008"]
    urls(path("<int:pk>/", endless))
    assert "MAX_TTL is 60 s" in found()["E008"]


@pytest.mark.parametrize(
    "redlock",
    [{"default": {"MASTERS": ["redis://a"], "TLL": 5}}, {"default": {}}, {}, None],
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


@pytest.mark.parametrize("redlock", [None, [], {}])
def test_a_setting_that_holds_nothing(settings: Settings, redlock: object) -> None:
    settings.REDLOCK = redlock
    assert found()["E001"].startswith("REDLOCK: ")


def test_a_rule_with_a_key_of_a_wrong_type(settings: Settings) -> None:
    settings.REDLOCK = {
        "default": {**settings.REDLOCK["default"], "RULES": [{"view": "x", "key": 5}]}
    }
    assert "'key' must be a template" in found()["E002"]


@lock_resource("report:<int:pk>", limit=3)
def three_at_once(request: HttpRequest, pk: int) -> HttpResponse:
    return HttpResponse()


@lock_resource("report:<int:pk>", limit=2)
def two_at_once(request: HttpRequest, pk: int) -> HttpResponse:
    return HttpResponse()


class TwoAtOnce(LockResourceMixin, View):
    lock_key = "report:<int:pk>"
    lock_limit = 2


class MethodTwoAtOnce(View):
    @method_decorator(lock_resource("report:<int:pk>", limit=2))
    def post(self, request: HttpRequest, pk: int) -> HttpResponse:
        return HttpResponse()


@lock_resource("report:<int:pk>")
def one_at_once(request: HttpRequest, pk: int) -> HttpResponse:
    return HttpResponse()


class ThreeAtOnce(TwoAtOnce):
    lock_limit = 3


@pytest.mark.parametrize(
    "other",
    [
        two_at_once,
        TwoAtOnce.as_view(),
        MethodTwoAtOnce.as_view(),
        ThreeAtOnce.as_view(lock_limit=2),
        Actions.as_view({"post": "two_at_once"}),
    ],
)
def test_two_limits_of_a_template_are_reported(other: Any, urls: Urls) -> None:
    urls(
        path("a/<int:pk>/", three_at_once),
        path("again/<int:pk>/", three_at_once),
        path("b/<int:pk>/", other),
        path("c/<int:pk>/", other),
    )
    [message] = found()["W049"].splitlines()
    assert "locks 'report:<int:pk>' with limit=2, and " in message
    assert "three_at_once locks it with limit=3. So 3 clients may hold it at once" in message
    assert "Lock one template with one limit everywhere" in message


def test_a_template_with_and_without_a_limit_is_reported(urls: Urls) -> None:
    urls(path("a/<int:pk>/", three_at_once), path("b/<int:pk>/", one_at_once))
    assert "one_at_once locks 'report:<int:pk>' without a limit, and" in found()["W049"]


def test_two_limits_of_rules_are_reported(urls: Urls, settings: Settings) -> None:
    rule = {"key": "report:<int:pk>", "path": "rule/<int:pk>/"}
    settings.REDLOCK = {"default": {**settings.REDLOCK["default"], "RULES": [{**rule, "limit": 2}]}}
    urls(path("a/<int:pk>/", three_at_once), path("rule/<int:pk>/", csrf_exempt(plain)))
    assert "with limit=2, and" in found()["W049"]


def plain(request: HttpRequest, pk: int) -> HttpResponse:
    return HttpResponse()


@pytest.mark.parametrize(("name", "is_reported"), [("nightly", True), ("weekly", False)])
def test_two_limits_of_a_name_are_reported(urls: Urls, name: str, is_reported: bool) -> None:
    view = TwoAtOnce.as_view(lock_key=name)
    urls(path("a/", view), path("b/", ThreeAtOnce.as_view(lock_key="nightly")))
    assert ("locks 'nightly' with limit=3" in found().get("W049", "")) is is_reported


class Unhashable:
    """A callable that is equal to others of its class."""

    __hash__ = None  # type: ignore[assignment]

    def __call__(self, request: HttpRequest, **kwargs: Any) -> str:
        return "name"

    def __eq__(self, other: object) -> bool:
        return True


def maker(name: str) -> Callable[..., str]:
    """Return a function with the same `__qualname__` as all others that this makes."""
    return lambda request, **kwargs: name


one_name, one_callable = maker("a"), Unhashable()


@pytest.mark.parametrize(
    ("first", "second", "is_reported"),
    [
        (one_name, one_name, True),
        (one_name, maker("b"), False),
        (one_callable, one_callable, True),
        (one_callable, Unhashable(), False),
        ("".strip, "".strip, True),
        ("name", "name", True),
    ],
    ids=["one closure", "two closures", "one object", "two objects", "a method", "a string"],
)
def test_two_limits_of_a_callable_are_those_of_one_object(
    urls: Urls, first: Any, second: Any, is_reported: bool
) -> None:
    urls(
        path("a/", lock_resource(first, limit=2)(plain)),
        path("b/", lock_resource(second, limit=3)(plain)),
    )
    assert ("W049" in found()) is is_reported


def test_two_limits_of_a_name_of_a_class_and_of_a_decorator_are_reported(urls: Urls) -> None:
    view = TwoAtOnce.as_view(lock_key="nightly")
    urls(path("a/", view), path("b/", lock_resource("nightly", limit=3)(plain)))
    assert "locks 'nightly' with limit=3" in found()["W049"]


def test_one_limit_of_a_template_everywhere_is_in_order(urls: Urls, settings: Settings) -> None:
    urls(path("a/<int:pk>/", two_at_once), path("b/<int:pk>/", TwoAtOnce.as_view()))
    assert "W049" not in found()
    settings.REDLOCK = {**settings.REDLOCK, "other": settings.REDLOCK["default"]}
    elsewhere = lock_resource("report:<int:pk>", limit=9, using="other")(plain)
    urls(path("a/<int:pk>/", two_at_once), path("b/<int:pk>/", elsewhere))
    assert "W049" not in found()

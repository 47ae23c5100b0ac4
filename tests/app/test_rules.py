"""RULES: a rule locks a view as the decorator does, once the middleware is created."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import include, path, re_path, resolve, reverse
from django.utils.deprecation import MiddlewareMixin
from django.views.generic import View
from pytest_django import Settings

from redlock_django import InvalidRedlock, lock_resource
from redlock_django.middleware import LockMiddleware
from redlock_django.testing import held_elsewhere
from redlock_django.web.view_kinds import TransactionMarker
from tests.app.conftest import LOCK_MIDDLEWARE, MEMORY, Urls

Rules = Callable[..., None]
pytestmark = pytest.mark.django_db


def pay(request: HttpRequest, pk: int, **kwargs: Any) -> HttpResponse:
    return HttpResponse("paid")


async def apay(request: HttpRequest, pk: int) -> HttpResponse:
    return HttpResponse("paid")


def named(request: HttpRequest, pk: int) -> HttpResponse:
    return HttpResponse("paid")


class Pay(View):
    def post(self, request: HttpRequest, pk: int) -> HttpResponse:
        return HttpResponse("paid")


@pytest.fixture
def rules(settings: Settings, urls: Urls) -> Rules:
    """A site with many kinds of patterns; return a function that sets its rules."""
    settings.MIDDLEWARE = [LOCK_MIDDLEWARE]
    shop = ([path("pay/", pay, name="pay")], "shop")
    urls(
        path("orders/<int:pk>/", include(shop)),
        path("eu/<int:pk>/", include(shop, namespace="eu-shop")),
        path("class/<int:pk>/", Pay.as_view(), name="class"),
        path("plain/<int:pk>/", include([path("pay/", pay, {"extra": 1}, name="plain")])),
        re_path(r"^regex/(?P<pk>\d+)/$", pay, name="regex"),
        path("async/<int:pk>/", apay, name="async"),
        path("named/<int:pk>/", named, name="named"),
        path("none/", lambda request: HttpResponse(), name="none"),
    )

    def put(*rules: dict[str, Any]) -> None:
        settings.REDLOCK = {
            "default": {"BACKEND": MEMORY, "RULES": list(rules)},
            "other": {"BACKEND": MEMORY, "KEY_PREFIX": "other"},
        }

    return put


KEY = "order:<int:pk>"


@pytest.mark.parametrize(
    ("rule", "url"),
    [
        ({"view": "shop:pay"}, "/orders/7/pay/"),
        ({"view": "eu-shop:pay"}, "/eu/7/pay/"),
        ({"view": "plain"}, "/plain/7/pay/"),
        ({"view": f"{__name__}.pay"}, "/orders/7/pay/"),
        ({"view": f"{__name__}.Pay"}, "/class/7/"),
        ({"path": "orders/<int:pk>/pay/"}, "/orders/7/pay/"),
        ({"path": "/orders/<int:pk>/pay/"}, "/orders/7/pay/"),
        ({"path": r"regex/(?P<pk>\d+)/$"}, "/regex/7/"),
        ({"view": "class", "urlconf": "urls_of_a_test"}, "/class/7/"),
        ({"view": "plain", "methods": ["POST"]}, "/plain/7/pay/"),
        ({"view": "plain", "ttl": 5, "wait": 0}, "/plain/7/pay/"),
    ],
)
def test_a_rule_is_the_decorator(
    rules: Rules, client: Client, rule: dict[str, Any], url: str
) -> None:
    rules({**rule, "key": KEY})
    assert client.post(url).content == b"paid"
    with held_elsewhere("order:7"):
        assert client.post(url).status_code == 423
    marked: Any = resolve(url).func
    assert isinstance(marked._non_atomic_requests, TransactionMarker)


def test_the_name_of_an_app_means_all_its_instances(rules: Rules, client: Client) -> None:
    rules({"view": "shop:pay", "key": KEY})
    with held_elsewhere("order:7"):
        assert client.post("/orders/7/pay/").status_code == 423
        assert client.post("/eu/7/pay/").status_code == 423
        assert client.post("/plain/7/pay/").status_code == 200


def test_methods_statuses_and_several_keys(rules: Rules, client: Client) -> None:
    rules(
        {"view": "plain", "key": [KEY, "tenant:<header:X-T>"], "methods": ["POST"], "status": 409}
    )
    url = "/plain/7/pay/"
    for name in ("order:7", "tenant:a"):
        with held_elsewhere(name):
            assert client.post(url, headers={"X-T": "a"}).status_code == 409
            assert client.get(url).status_code == 200


def test_a_rule_may_use_another_alias(rules: Rules, client: Client) -> None:
    rules({"view": "plain", "key": KEY, "using": "other"})
    with held_elsewhere("order:7"):
        assert client.post("/plain/7/pay/").status_code == 200


def test_two_middlewares_put_a_rule_on_once(rules: Rules, client: Client) -> None:
    rules({"view": "plain", "key": KEY})
    for _ in range(2):
        LockMiddleware(lambda request: None)
    assert client.post("/plain/7/pay/").content == b"paid"


def test_a_change_of_settings_replaces_the_rules(rules: Rules, client: Client) -> None:
    rules({"view": "plain", "key": KEY})
    assert client.post("/plain/7/pay/").status_code == 200
    rules({"view": "class", "key": KEY})
    with held_elsewhere("order:7"):
        assert client.post("/plain/7/pay/").status_code == 200
        assert client.post("/class/7/").status_code == 423
    rules({"view": "plain", "key": KEY})
    with held_elsewhere("order:7"):
        assert client.post("/plain/7/pay/").status_code == 423
        assert client.post("/class/7/").status_code == 200


def test_reverse_still_finds_a_view_by_its_function(rules: Rules) -> None:
    rules({"view": "named", "key": KEY})
    LockMiddleware(lambda request: None)
    assert reverse(named, kwargs={"pk": 7}) == "/named/7/"
    assert reverse("named", kwargs={"pk": 7}) == "/named/7/"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ([{"view": "shop:pya", "key": KEY}], "rule 1 ('shop:pya'): it matches no URL pattern"),
        ([{"path": "orders/<pk>/", "key": KEY}], "it matches no URL pattern"),
        ([{"key": KEY}], "select the view by either 'view' or 'path'"),
        ([{"view": "a", "path": "b", "key": KEY}], "select the view by either 'view' or 'path'"),
        ([{"view": "plain"}], "'key' must be a template"),
        ([{"view": "plain", "key": "order:<pk"}], "malformed resource template"),
        ([{"view": "plain", "key": KEY, "tll": 3}], "unknown key 'tll'"),
        ([{"view": "plain", "key": KEY, "on_disconnect": "stop"}], "on_disconnect must be one of"),
        ([{"view": "plain", "key": KEY, "ttl": -3}], "ttl must be at least 0.1 s"),
        ([{"view": "plain", "key": KEY, "wait": 1e10}], "wait must be at most 604800 s (7 days)"),
        ([{"view": "plain", "key": KEY, "limit": 1001}], "limit must be a whole number from 1 to"),
        ([{"view": "plain", "key": KEY, "using": "x"}], "there is no alias 'x'"),
        (
            [{"view": "class", "key": KEY}, {"view": "none", "key": KEY}],
            "rule 2 ('none'): template 'order:<int:pk>' needs the URL kwarg 'pk'; the URL 'none/'",
        ),
        (
            [{"view": "class", "key": KEY}, {"path": "class/<int:pk>/", "key": "a"}],
            "rule 2 ('class/<int:pk>/'): another rule locks the same view",
        ),
    ],
)
def test_a_wrong_rule_is_an_error_at_start_that_names_it(
    rules: Rules, wrong: list[dict[str, Any]], says: str
) -> None:
    rules(*wrong)
    with pytest.raises(InvalidRedlock) as caught:
        LockMiddleware(lambda request: None)
    assert "REDLOCK['default']: RULES: rule " in str(caught.value)
    assert says in str(caught.value)


def test_a_rule_for_a_locked_view_is_an_error(rules: Rules, urls: Urls) -> None:
    urls(path("<int:pk>/", lock_resource(KEY)(pay), name="locked"))
    rules({"view": "locked", "key": KEY})
    with pytest.raises(InvalidRedlock, match=r"rule 1 .*two lock decorators"):
        LockMiddleware(lambda request: None)


class OtherUrls(MiddlewareMixin):
    """A middleware that selects another URLconf for a request, as sites with subdomains do."""

    def process_request(self, request: HttpRequest) -> None:
        request.urlconf = __name__


urlpatterns = [path("b2b/<int:pk>/", named, name="named"), path("free/<int:pk>/", pay)]


@pytest.mark.attack
def test_a_rule_locks_the_view_in_the_urlconf_of_the_request(
    rules: Rules, settings: Settings, urls: Urls, client: Client
) -> None:
    settings.MIDDLEWARE = [f"{__name__}.OtherUrls", LOCK_MIDDLEWARE]
    urls(path("<int:pk>/", named, name="named"))
    rules({"view": "named", "key": KEY})
    with held_elsewhere("order:7"):
        assert client.get("/b2b/7/").status_code == 423
        assert client.get("/free/7/").status_code == 200


@pytest.mark.attack
def test_a_urlconf_that_is_set_too_late_is_an_error(
    rules: Rules, settings: Settings, urls: Urls, client: Client
) -> None:
    settings.MIDDLEWARE = [LOCK_MIDDLEWARE, f"{__name__}.OtherUrls"]
    urls(path("<int:pk>/", named, name="named"))
    rules({"view": "named", "key": KEY})
    with pytest.raises(InvalidRedlock, match="before LockMiddleware"):
        client.get("/b2b/7/")
    rules()
    assert client.get("/b2b/7/").status_code == 200


@pytest.mark.attack
def test_a_pattern_that_is_included_again_without_the_kwarg_is_an_error_at_start(
    rules: Rules, urls: Urls, client: Client
) -> None:
    both = [path("pay/", pay)]
    urls(path("a/<int:pk>/", include(both)), path("b/<int:id>/", include(both)))
    rules({"path": "a/<int:pk>/pay/", "key": KEY})
    with pytest.raises(InvalidRedlock, match=r"the URL 'b/<int:id>/pay/' provides: 'id'"):
        client.get("/a/7/pay/")

"""`@idempotent(key=…, scope=…)`: the key is what its sender calls the event."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest
from django.test import Client
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from ninja import NinjaAPI
from ninja.decorators import decorate_view
from pytest_django import Settings

from redlock_django import idempotent
from redlock_django.exceptions import InvalidRedlock
from tests.app.conftest import LOCK_MIDDLEWARE, MEMORY
from tests.idempotency.conftest import Site, make_order, orders, record
from tests.idempotency.webhook_views import (
    EVENT,
    JSON,
    STRIPE,
    event_id,
    receive,
    send,
)
from tests.views.kinds import RECORDED, body, recorded

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("plain")]
Urls = Callable[..., None]
KEYS: dict[str, Any] = {
    "callable": event_id,
    "header": "header:webhook-id",
}


def once(**options: Any) -> Any:
    return idempotent(**STRIPE, **options)


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("kind", RECORDED)
def test_an_event_takes_effect_once_whatever_its_body(
    site: Site, urls: Urls, kind: str, key: str
) -> None:
    body[:] = [receive]
    urls(recorded(key=KEYS[key], scope="stripe")[kind].make())
    first, again = send(), send({**EVENT, "pending_webhooks": 2})
    assert (first.status_code, again.status_code) == (200, 200), first.content
    assert first.json()["event"] == EVENT  # the view reads it after the key was read
    assert again.content == first.content
    assert (first["Idempotent-Replayed"], again["Idempotent-Replayed"]) == ("false", "true")
    assert orders() == 1
    other = {"id": "evt_2", "data": {"object": {"id": "sub_8"}}}
    assert send(other, webhook_id="msg_2").json()["orders"] == 2


def test_each_provider_has_ids_of_its_own(site: Site, urls: Urls) -> None:
    def provider(request: HttpRequest, name: str) -> str:
        return name

    view = idempotent(key=event_id, scope=provider)(receive)
    urls(path("hooks/<slug:name>/", view))
    answers = [send(url=f"/hooks/{name}/").json()["orders"] for name in ("a", "b", "a", "b")]
    assert answers == [1, 2, 1, 2]


def test_an_event_at_another_path_is_refused(site: Site) -> None:
    """Another view might do something else with it, and must not be answered for the first one."""
    site.serve(once()(receive))
    assert send(url="/a/").status_code == 200
    refused = send(url="/b/")
    assert (refused.status_code, refused.json()["code"]) == (422, "idempotency-key-reused")


def test_a_scope_belongs_to_no_user_and_no_host(site: Site, settings: Settings) -> None:
    settings.ALLOWED_HOSTS = ["*"]
    site.serve(once()(receive))
    site.client.generic("POST", "/7/", json.dumps(EVENT).encode(), content_type=JSON)  # of ann
    assert (record().user, send().status_code) == ("", 200)
    other = Client().generic(
        "POST", "/7/", json.dumps(EVENT).encode(), content_type=JSON, headers={"Host": "b.test"}
    )
    assert other["Idempotent-Replayed"] == "true"
    assert orders() == 1


def test_a_tenant_has_events_of_its_own(site: Site) -> None:
    site.serve(once(tenant=lambda request, **_: request.headers["X-Shop"])(receive))
    assert [send(X_Shop=shop).json()["orders"] for shop in ("a", "b", "a")] == [1, 2, 1]


def test_without_a_scope_a_key_belongs_to_its_user(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.serve(idempotent(key=event_id)(make_order))
    assert [site.post(None, data={"id": "k"}).status_code for _ in range(2)] == [201, 201]
    assert orders() == 1
    changed = site.post(None, data={"id": "k", "total": 2})
    assert (changed.status_code, changed.json()["code"]) == (422, "idempotency-key-reused")
    refused = send()
    assert (refused.status_code, refused.json()["code"]) == (400, "idempotency-key-unscoped")
    assert "scope= for a webhook" in caplog.text


def test_an_idempotency_key_beside_it_is_ignored(site: Site) -> None:
    site.serve(once()(receive))
    answers = [send(Idempotency_Key=key) for key in ("a", "b")]
    assert [answer["Idempotent-Replayed"] for answer in answers] == ["false", "true"]
    assert {answer["Idempotency-Status"] for answer in answers} == {"ignored"}
    assert not any("Idempotency-Key" in answer for answer in answers)
    assert "Idempotency-Status" not in send()


def test_a_callable_may_say_that_there_is_no_key(site: Site) -> None:
    def key(request: HttpRequest, **_: Any) -> Any:
        return {"none": None, "empty": "", "number": 7, "key": "k"}[request.headers["X-Key"]]

    site.serve(idempotent(key=key, scope="acme")(make_order))
    assert send(X_Key="none").json()["code"] == "idempotency-key-missing"
    assert send(X_Key="empty").json()["code"] == "idempotency-key-invalid"
    assert send(X_Key="key").status_code == 201
    with pytest.raises(InvalidRedlock, match=r"key '.*key' must return a string.* got int"):
        Client().post("/", headers={"X-Key": "number"})


def test_the_header_of_the_settings_may_be_the_key(site: Site) -> None:
    site.serve(idempotent(key="header:idempotency-key", scope="acme")(receive))
    answers = [send(Idempotency_Key="k") for _ in range(2)]
    assert [answer["Idempotent-Replayed"] for answer in answers] == ["false", "true"]
    assert {answer["Idempotency-Key"] for answer in answers} == {"k"}
    assert not any("Idempotency-Status" in answer for answer in answers)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"key": "id"}, "key must be a place such as 'header:webhook-id'.*unknown source 'id'"),
        ({"key": "headr:id"}, "unknown source 'headr', did you mean 'header'"),
        ({"key": "json:id"}, "unknown source 'json'"),
        ({"key": "header:"}, "'header:' names nothing to read"),
        ({"key": "<str:get:id>"}, "unknown source '<str'"),
        ({"key": 7}, "key must be a place .*got int"),
        ({"key": event_id, "scope": ""}, "scope must be a string such as 'stripe'"),
        ({"scope": "stripe"}, "scope is for keys that a provider sends.*key=event_id"),
        (
            {"key": event_id, "scope": "s", "anonymous_scope": lambda request, **_: "all"},
            "anonymous_scope has no effect with scope",
        ),
    ],
)
def test_arguments_that_cannot_work_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRedlock, match=message):
        idempotent(**arguments)


def test_a_rule_around_a_webhook_is_refused(site: Site, urls: Urls, settings: Settings) -> None:
    urls(path("", csrf_exempt(once()(receive))))
    rule = {"path": "", "key": "sub:<str:get:number>"}
    settings.REDLOCK = {"default": {"BACKEND": MEMORY, "RULES": [rule]}}
    settings.MIDDLEWARE = [LOCK_MIDDLEWARE]
    with pytest.raises(InvalidRedlock, match="@idempotent is below the lock"):
        Client().post("/")
    settings.REDLOCK = {"default": {"BACKEND": MEMORY, "RULES": [{**rule, "scope": "stripe"}]}}
    with pytest.raises(InvalidRedlock, match=r"unknown key 'scope'.*@idempotent"):
        Client().post("/")


def test_idempotent_around_an_operation_with_a_login_decorator_is_refused() -> None:
    api = NinjaAPI(urls_namespace="login inside")
    with pytest.raises(InvalidRedlock, match=r"login.* is inside of @idempotent"):
        api.post("/")(decorate_view(once())(login_required(receive)))


def test_the_settings_of_a_view_can_be_read(site: Site) -> None:
    options = once()(make_order).idempotent_options
    assert (options.key, options.scope) == (event_id, "stripe")
    assert options.settings().required

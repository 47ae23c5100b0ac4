"""`@idempotent(key=…, scope=…)`: the key is what its sender calls the event, if it can be one."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import BytesIO
from typing import Any

import pytest
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import Client
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from ninja import NinjaAPI
from ninja.decorators import decorate_view
from pytest_django import Settings
from rest_framework.permissions import BasePermission

from redlock_django import idempotent
from redlock_django.exceptions import InvalidRedlock
from testproject.shop.models import Order
from tests.app.conftest import LOCK_MIDDLEWARE, MEMORY
from tests.idempotency.conftest import Site, make_order, orders, record
from tests.views.kinds import RECORDED, body, recorded

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("plain")]
Urls = Callable[..., None]
JSON = "application/json"
EVENT: dict[str, Any] = {"id": "evt_1", "data": {"object": {"id": "sub_7"}}}


def event_id(request: HttpRequest, **_: Any) -> Any:
    """Return the id in the body of an event."""
    return json.loads(request.body).get("id")


STRIPE: dict[str, Any] = {"key": event_id, "scope": "stripe"}


def receive(request: Any, **_: Any) -> HttpResponse:
    """Create an order, and show that the body can still be read."""
    Order.objects.create(number=f"A-{Order.objects.count() + 1}", total=1)
    event = request.data if hasattr(request, "data") else json.loads(request.body)
    return JsonResponse({"event": event, "orders": Order.objects.count()})


def send(body: Any = EVENT, url: str = "/7/", *, content_type: str = JSON, **headers: str) -> Any:
    """Send an event as its provider does: without a cookie, a user or an Idempotency-Key."""
    client = Client(raise_request_exception=False)
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    sent = {"webhook-id": "msg_1", **{name.replace("_", "-"): headers[name] for name in headers}}
    return client.generic("POST", url, data, content_type=content_type, headers=sent)


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


BAD = {
    "an empty string": "",
    "spaces": "  ",
    "a long string": "x" * 256,
    "a line end": "evt_1\n",
    "a lone surrogate": "\ud800",
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("required", [True, False])
def test_an_id_that_cannot_be_a_key_is_refused(
    site: Site, caplog: pytest.LogCaptureFixture, name: str, required: bool
) -> None:
    site.serve(once(required=required)(make_order))
    refused = send({"id": BAD[name]})
    assert (refused.status_code, refused.json()["code"]) == (400, "idempotency-key-invalid")
    assert orders() == 0
    assert "make_order refused a request for its key: " in caplog.text
    assert "evt_1" not in caplog.text


@pytest.mark.parametrize("sent", [{}, {"id": None}, {"data": "id"}])
def test_a_key_that_is_missing(site: Site, caplog: pytest.LogCaptureFixture, sent: Any) -> None:
    site.serve(once()(make_order))
    refused = send(sent)
    assert (refused.status_code, refused.json()["code"]) == (400, "idempotency-key-missing")
    assert "make_order refused a request for its key: it has no key" in caplog.text
    assert orders() == 0
    site.serve(once(required=False)(make_order))
    assert [send(sent).status_code for _ in range(2)] == [201, 201]
    assert orders() == 2


def test_a_header_that_is_repeated_or_missing(site: Site) -> None:
    site.serve(idempotent(key="header:webhook-id", scope="acme")(make_order))
    assert send(webhook_id="a,b").json()["code"] == "idempotency-key-invalid"
    assert send(webhook_id="").json()["code"] == "idempotency-key-invalid"
    assert Client().post("/").json()["code"] == "idempotency-key-missing"
    assert send(webhook_id='"a"').status_code == send(webhook_id="a").status_code == 201
    assert orders() == 2  # an id is not unquoted, as an Idempotency-Key is


def test_a_field_of_a_form(site: Site) -> None:
    def message(request: HttpRequest, **_: Any) -> Any:
        return request.POST.get("MessageSid")

    site.serve(idempotent(key=message, scope="sms")(make_order))
    form = "application/x-www-form-urlencoded"
    assert send(b"MessageSid=1&Body=a", content_type=form).status_code == 201
    assert send(b"MessageSid=1&Body=b", content_type=form)["Idempotent-Replayed"] == "true"
    assert orders() == 1


@pytest.mark.parametrize("key", [event_id, "header:webhook-id"])
def test_half_a_body_is_refused_and_the_retry_runs(site: Site, key: Any) -> None:
    site.serve(idempotent(key=key, scope="stripe")(receive))
    whole = json.dumps(EVENT).encode()
    sent: Any = {"wsgi.input": BytesIO(whole[:9]), "CONTENT_LENGTH": str(len(whole))}
    half = Client().generic("POST", "/", headers={"webhook-id": "msg_1"}, CONTENT_TYPE=JSON, **sent)
    assert (half.status_code, half.json()["code"]) == (400, "incomplete-body")
    assert (send().status_code, orders()) == (200, 1)


@pytest.mark.parametrize("kind", ["function", "REST handler"])
@pytest.mark.parametrize("given", [True, False])
def test_a_form_that_is_too_large_is_refused(
    site: Site, settings: Settings, kind: str, given: bool
) -> None:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 200
    key: dict[str, Any] = {"key": "header:webhook-id", "scope": "mail"}
    anyone: dict[str, Any] = {"anonymous_scope": lambda request, **_: "all"}
    site.put(recorded(**(key if given else anyone))[kind].make())
    part = b'--x\r\nContent-Disposition: form-data; name="f"\r\n\r\n%s\r\n--x--\r\n'
    options = {"content_type": "multipart/form-data; boundary=x", "Idempotency_Key": "k"}
    refused = send(part % (b"a" * 1000), **options)
    assert (refused.status_code, refused.json()["code"]) == (413, "idempotency-body-too-large")
    assert orders() == 0


def test_a_permission_of_rest_framework_may_read_the_body_first(site: Site) -> None:
    class Reads(BasePermission):
        def has_permission(self, request: Any, view: Any) -> bool:
            return bool(request.data)

    pattern = recorded(**STRIPE)["REST handler"].make()
    pattern.callback.cls.permission_classes = (Reads,)
    body[:] = [receive]
    site.put(pattern)
    assert [send(EVENT).status_code for _ in range(2)] == [200, 200]
    assert orders() == 1

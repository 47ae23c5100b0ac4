"""The key of a webhook in its body or in a header: refused if it cannot be a key."""

from __future__ import annotations

import json
from io import BytesIO
from typing import Any

import pytest
from django.http import HttpRequest
from django.test import Client
from pytest_django import Settings
from rest_framework.permissions import BasePermission

from redlock_django import idempotent
from tests.idempotency.conftest import Site, make_order, orders
from tests.idempotency.webhook_views import (
    EVENT,
    JSON,
    STRIPE,
    event_id,
    receive,
    send,
)
from tests.views.kinds import body, recorded

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("plain")]


def once(**options: Any) -> Any:
    return idempotent(**STRIPE, **options)


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

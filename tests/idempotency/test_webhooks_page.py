"""The code of docs/how-to/webhooks.md, with the published schemes of signatures."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any
from urllib.parse import urlencode

import pytest
from django.apps.registry import Apps
from django.db import connection, models
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory
from django.urls import path
from django.utils.decorators import method_decorator
from django.views.decorators.csrf import csrf_exempt
from django.views.generic import View
from ninja import NinjaAPI
from pytest_django import Settings
from rest_framework.permissions import BasePermission
from rest_framework.response import Response
from rest_framework.views import APIView

from redlock_django import IdempotentMixin, idempotent, lock_resource
from redlock_django.contrib.drf import LockAPIMixin
from redlock_django.models import IdempotencyRecord
from tests.app.checking import found
from tests.idempotency.conftest import Site
from tests.pages import Page

PAGE = Page("docs/how-to/webhooks.md")
STRIPE_SECRET, GITHUB_SECRET = "whsec_stripe", "It's a Secret to Everybody"
JSON = "application/json"
NOW = 1_614_265_330.0
factory = RequestFactory()


class Subscription(models.Model):
    """The model that the page leaves to its readers."""

    number = models.CharField(max_length=20, unique=True)
    status = models.CharField(max_length=20)
    objects: models.Manager[Subscription] = models.Manager()

    class Meta:
        app_label = "hooks"
        apps = Apps()

    def __str__(self) -> str:
        return self.number


at_stripe: dict[str, str] = {}
"""The state of each subscription, as the API of the provider reports it."""


@pytest.fixture(autouse=True)
def _settings(settings: Settings, plain: None) -> None:
    settings.STRIPE_SECRETS = [STRIPE_SECRET]
    settings.GITHUB_SECRETS = [GITHUB_SECRET]
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "rest_framework"]


@pytest.fixture(scope="module")
def page() -> ModuleType:
    """The code of the page, as one module."""
    module = ModuleType("page_on_webhooks")
    vars(module)["Subscription"] = Subscription
    vars(module)["status_at_stripe"] = lambda number: at_stripe[number]
    vars(module).update(PAGE.run(**vars(module)))
    return module


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Set the time of the page's clock; at first that of the published example."""

    def set_to(moment: float) -> None:
        monkeypatch.setattr(time, "time", lambda: moment)

    set_to(NOW)
    return set_to


def request(body: bytes, **headers: str) -> HttpRequest:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return factory.generic("POST", "/", body, JSON, headers=sent)


def of_stripe(body: bytes, at: float = NOW, secret: str = STRIPE_SECRET) -> str:
    """Sign as Stripe documents it: HMAC-SHA256 of the time, a dot and the body, in hex."""
    signed = f"{at:.0f}.".encode() + body
    digest = hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()
    return f"t={at:.0f},v1={digest}"


# The signatures.


def test_the_published_example_is_verified(page: ModuleType) -> None:
    github = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    assert page.github_signature(request(b"Hello, World!", X_Hub_Signature_256=github))
    assert not page.github_signature(request(b"Hello, World?", X_Hub_Signature_256=github))


def test_a_timestamp_is_tolerated_for_five_minutes(
    page: ModuleType, now: Callable[[float], None]
) -> None:
    for late, valid in ((0, True), (299, True), (-299, True), (301, False), (-301, False)):
        now(NOW + late)
        stripe = request(b"{}", Stripe_Signature=of_stripe(b"{}"))
        assert page.stripe_signature(stripe) is valid


@pytest.mark.usefixtures("now")
def test_one_of_several_signatures_is_enough(page: ModuleType, settings: Settings) -> None:
    other = of_stripe(b"{}", secret="other").partition(",")[2]
    for header in (f"{of_stripe(b'{}')},{other}", of_stripe(b"{}").replace(",", f",{other},")):
        assert page.stripe_signature(request(b"{}", Stripe_Signature=header))
    assert not page.stripe_signature(request(b"{}", Stripe_Signature=f"t={NOW:.0f},{other}"))
    settings.STRIPE_SECRETS = ["other", STRIPE_SECRET]  # while it is being changed
    for secret in settings.STRIPE_SECRETS:
        assert page.stripe_signature(request(b"{}", Stripe_Signature=of_stripe(b"{}", NOW, secret)))


GOOD = of_stripe(b"{}").partition("v1=")[2]
MALFORMED = [
    "", "t", "=", "t=,v1=", f"v1={GOOD}", f"t={NOW:.0f}", f"t=x,v1={GOOD}", f"t=nan,v1={GOOD}",
    f"t={'9' * 400},v1={GOOD}", f"t={'9' * 5000},v1={GOOD}", f"t=-1,v1={GOOD}",
    f"t={NOW:.0f},t={NOW:.0f},v1={GOOD}", f"t={NOW:.0f},v0={GOOD}", f"t={NOW:.0f},v1={GOOD[:-1]}",
    f"t={NOW:.0f},v1=\xe9\xff", f"t={NOW:.0f},v1={GOOD.upper()}x",
]  # fmt: skip


@pytest.mark.usefixtures("now")
@pytest.mark.parametrize("header", MALFORMED)
def test_a_malformed_signature_is_no_error(page: ModuleType, header: str) -> None:
    assert page.stripe_signature(request(b"{}", Stripe_Signature=header)) is False
    assert page.github_signature(request(b"{}", X_Hub_Signature_256=header)) is False


@pytest.mark.usefixtures("now")
def test_signatures_are_compared_in_constant_time(
    page: ModuleType, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return False

    monkeypatch.setattr(hmac, "compare_digest", compare)
    settings.STRIPE_SECRETS = ["a", "b"]
    header = f"t={NOW:.0f},v1={GOOD},v1=short"
    assert not page.stripe_signature(request(b"{}", Stripe_Signature=header))
    assert len(compared) == 4
    assert page.github_signature(request(b"{}")) is False
    assert len(compared) == 5


# The views.

by_github = idempotent(key="header:X-GitHub-Delivery", scope="github api")


@pytest.fixture
def hooks(site: Site, page: ModuleType, now: Callable[[float], None]) -> Iterator[Site]:
    """A site with the views of the page, and a table for its model."""

    class Signed(BasePermission):
        def has_permission(self, request: Any, view: Any) -> bool:
            return bool(page.github_signature(request._request))

    class Rest(LockAPIMixin, APIView):
        authentication_classes = ()
        permission_classes = (Signed,)

        @by_github
        @lock_resource(page.repository)
        def post(self, request: Any) -> Response:
            return Response("done")

    api = eval(
        re.findall(r"`(NinjaAPI\(.*?\))`", PAGE.text)[0], {**vars(page), "NinjaAPI": NinjaAPI}
    )
    api.urls_namespace = f"hooks-{id(site)}"

    @api.post("/github/")
    @by_github
    @lock_resource(page.repository)
    def of_ninja(request: HttpRequest) -> HttpResponse:
        return HttpResponse("done")

    at_stripe.clear()
    site.put(
        path("stripe/", page.stripe),
        path("github/", page.github),
        path("rest/", Rest.as_view()),
        path("ninja/", api.urls),
    )
    with connection.schema_editor() as editor:
        editor.create_model(Subscription)
    yield site
    with connection.schema_editor() as editor:
        editor.delete_model(Subscription)


transactional = pytest.mark.django_db(transaction=True)


def event(key: str = "evt_1", status: str = "active", **changed: Any) -> dict[str, Any]:
    return {
        "id": key, "created": 1, "type": "customer.subscription.updated",
        "data": {"object": {"id": "sub_7", "status": status}}, **changed,
    }  # fmt: skip


def post(url: str, data: bytes, content_type: str = JSON, **headers: str) -> Any:
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    client = Client(raise_request_exception=False)
    return client.generic("POST", url, data, content_type, headers=sent)


def stripe(body: Any, at: float = NOW) -> Any:
    data = json.dumps(body).encode()
    return post("/stripe/", data, Stripe_Signature=of_stripe(data, at))


FORM = "application/x-www-form-urlencoded"


def github(
    body: Any, url: str = "/github/", kind: str = "push", delivery: str = "72d3162e",
    content_type: str = JSON,
) -> Any:  # fmt: skip
    data = json.dumps(body)
    sent = (urlencode({"payload": data}) if content_type == FORM else data).encode()
    digest = hmac.new(GITHUB_SECRET.encode(), sent, "sha256").hexdigest()
    headers = {"X_GitHub_Delivery": delivery, "X_GitHub_Event": kind}
    return post(url, sent, content_type, X_Hub_Signature_256=f"sha256={digest}", **headers)


def replays(*answers: Any) -> list[tuple[int, str | None]]:
    return [(one.status_code, one.get("Idempotent-Replayed")) for one in answers]


ONCE = [(200, "false"), (200, "true")]


@transactional
def test_the_views_of_the_page_have_no_warnings(hooks: Site) -> None:
    assert found() == {}


@pytest.mark.attack
@transactional
def test_an_event_that_is_sent_again_is_signed_anew_and_replayed(
    hooks: Site, now: Callable[[float], None]
) -> None:
    Subscription.objects.create(number="sub_7", status="new")
    at_stripe["sub_7"] = "active"
    first = stripe(event())
    now(NOW + 3600)
    again = stripe({**event(), "pending_webhooks": 0}, at=NOW + 3600)
    assert replays(first, again) == ONCE
    assert again.content == b"done"
    # The first delivery itself, recorded by an attacker, is too old.
    assert replays(stripe(event())) == [(403, None)]


@transactional
@pytest.mark.parametrize("order", [("evt_1", "evt_2"), ("evt_2", "evt_1")])
def test_two_changes_in_one_second_leave_the_state_of_now_in_any_order(
    hooks: Site, order: tuple[str, str]
) -> None:
    """Comparing `created` dropped one of them for ever: its unit is a second."""
    Subscription.objects.create(number="sub_7", status="new")
    status = {"evt_1": "incomplete", "evt_2": "active"}
    for key in order:
        at_stripe["sub_7"] = "active"  # both have happened before the first delivery
        assert stripe(event(key, status[key])).status_code == 200
    assert Subscription.objects.get().status == "active"
    at_stripe["sub_7"] = "canceled"
    assert stripe(event("evt_3", "canceled")).status_code == 200
    assert Subscription.objects.get().status == "canceled"


@transactional
def test_an_event_whose_row_is_not_there_yet_is_sent_again(hooks: Site) -> None:
    """It was recorded as done, and the row never got its status."""
    at_stripe["sub_7"] = "active"
    assert stripe(event()).status_code == 503
    assert not IdempotencyRecord.objects.exists()
    Subscription.objects.create(number="sub_7", status="new")
    assert replays(stripe(event()), stripe(event())) == ONCE
    assert Subscription.objects.get().status == "active"


@transactional
@pytest.mark.parametrize(
    ("kind", "changed"),
    [
        ("invoice.upcoming", {"object": "invoice"}),
        ("invoice.upcoming", {"object": "invoice", "id": None}),
        ("balance.available", {"object": "balance", "available": []}),
        ("charge.succeeded", {"object": "charge", "id": "ch_1"}),
    ],
)
def test_events_about_something_without_an_id_are_answered(
    hooks: Site, kind: str, changed: Any
) -> None:
    """They were answered 400 for ever, and nothing was logged."""
    sent = event(type=kind, data={"object": changed})
    assert replays(stripe(sent), stripe(sent)) == ONCE


@pytest.mark.attack
@transactional
def test_a_forged_body_with_the_id_of_a_real_event_uses_up_nothing(
    hooks: Site, happened: list[str]
) -> None:
    Subscription.objects.create(number="sub_7", status="new")
    at_stripe["sub_7"] = "active"
    forged = json.dumps(event(status="active for ever")).encode()
    signature = of_stripe(json.dumps(event()).encode())
    happened.clear()
    answers = [
        post("/stripe/", forged, Stripe_Signature=signature),
        post("/stripe/", forged, Stripe_Signature=of_stripe(forged, NOW, "x")),
        post("/stripe/", forged),
        post("/github/", b"{}"),
    ]
    assert replays(*answers) == [(403, None)] * 4
    assert happened == []
    assert not IdempotencyRecord.objects.exists()
    assert replays(stripe(event())) == [(200, "false")]


REPOSITORY = {"id": 7}
DELIVERIES: dict[str, tuple[str, Any]] = {
    "push": ("push", {"repository": REPOSITORY, "ref": "refs/heads/main"}),
    "ping of a repository": ("ping", {"zen": "Speak.", "hook_id": 1, "repository": REPOSITORY}),
    "ping of an organization": ("ping", {"zen": "Speak.", "hook_id": 1, "organization": {"id": 1}}),
    "installation": ("installation", {"action": "created", "repositories": [REPOSITORY]}),
}


@pytest.mark.attack
@transactional
@pytest.mark.parametrize("content_type", [JSON, FORM])
@pytest.mark.parametrize("url", ["/github/", "/rest/", "/ninja/github/"])
@pytest.mark.parametrize("name", DELIVERIES)
def test_each_event_of_github_is_answered(
    hooks: Site, name: str, url: str, content_type: str
) -> None:
    """The form is what GitHub sends by default; it was answered 400, as were these events."""
    kind, body = DELIVERIES[name]
    answers = [github(body, url, kind, content_type=content_type) for _ in range(2)]
    assert replays(*answers) == ONCE
    # Its signature does not cover the id: a copy with another one runs.
    again = github(body, url, kind, "another id", content_type)
    assert replays(again) == [(200, "false")]
    assert post(url, b"{}", X_GitHub_Delivery="1", X_GitHub_Event="ping").status_code in (401, 403)


@transactional
def test_the_key_may_be_the_signed_body(site: Site, page: ModuleType) -> None:
    [text] = re.findall(r"`key=(lambda request.*?)`", PAGE.text)
    key = eval(text, {"hashlib": hashlib})
    view = idempotent(key=key, scope="github body")(lambda request: HttpResponse("done"))
    site.put(path("github/", csrf_exempt(page.signed_by(page.github_signature)(view))))
    body = {"repository": REPOSITORY}
    answers = [github(body, delivery=delivery) for delivery in ("a", "b")]
    assert replays(*answers) == ONCE


@transactional
def test_an_async_view_with_the_decorator_that_the_page_describes(
    site: Site, page: ModuleType, now: Callable[[float], None]
) -> None:
    code = (
        PAGE.blocks()[0]
        .replace("def wrapper", "async def wrapper")
        .replace("return view", "return await view")
    )
    asynchronous: dict[str, Any] = {}
    exec(code, asynchronous)

    async def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse("done")

    once = idempotent(key=page.event_id, scope="async")(view)
    site.put(path("stripe/", csrf_exempt(asynchronous["signed_by"](page.stripe_signature)(once))))
    assert post("/stripe/", b"{}").status_code == 403
    assert replays(stripe(event()), stripe(event())) == ONCE


@transactional
def test_a_class_of_the_page(site: Site, page: ModuleType, now: Callable[[float], None]) -> None:
    [text] = re.findall(r"`@(method_decorator\(.*?\))`", PAGE.text)
    decorate = eval(text, {**vars(page), "method_decorator": method_decorator})

    class Hook(IdempotentMixin, View):
        idempotent_options = {"key": page.event_id, "scope": "class"}  # noqa: RUF012

        def post(self, request: HttpRequest) -> HttpResponse:
            return HttpResponse("done")

    site.put(path("stripe/", decorate(Hook).as_view()))
    assert replays(stripe(event()), stripe(event())) == ONCE
    assert replays(stripe(event(), at=NOW - 900)) == [(403, None)]

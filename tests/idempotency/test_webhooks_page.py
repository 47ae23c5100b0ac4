"""The code of docs/how-to/webhooks.md, with the published schemes of signatures."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from types import ModuleType
from typing import Any

import pytest
from django.apps.registry import Apps
from django.db import connection, connections, models
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from pytest_django import Settings

from redlock_django import idempotent
from redlock_django.models import IdempotencyRecord
from testproject.shop.models import Order
from tests.app.checking import found
from tests.idempotency.conftest import Site
from tests.idempotency.test_databases import ALIAS, database
from tests.idempotency.webhook_views import event_id
from tests.test_documents import ROOT

__all__ = ["database"]

PAGE = (ROOT / "docs/how-to/webhooks.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
STRIPE_SECRET, GITHUB_SECRET = "whsec_stripe", "It's a Secret to Everybody"
STANDARD_SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
JSON = "application/json"
NOW = 1_614_265_330.0
factory = RequestFactory()


class Subscription(models.Model):
    """The model that the page leaves to its readers."""

    number = models.CharField(max_length=20, unique=True)
    status = models.CharField(max_length=20)
    changed = models.IntegerField(default=0)
    objects: models.Manager[Subscription] = models.Manager()

    class Meta:
        app_label = "hooks"
        apps = Apps()

    def __str__(self) -> str:
        return self.number


@pytest.fixture(autouse=True)
def _settings(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.STRIPE_SECRETS = [STRIPE_SECRET]
    settings.GITHUB_SECRETS = [GITHUB_SECRET]
    settings.WEBHOOK_SECRETS = [STANDARD_SECRET]
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "rest_framework"]
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", False)


@pytest.fixture(scope="module")
def page() -> ModuleType:
    """The code of the page, as one module."""
    module = ModuleType("page_on_webhooks")
    vars(module)["Subscription"] = Subscription
    for block in BLOCKS:
        exec(block, vars(module))
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


def of_standard(body: bytes, key: str, at: float = NOW, secret: str = STANDARD_SECRET) -> str:
    """Sign as Standard Webhooks specifies it: id, time and body, in base 64."""
    raw = base64.b64decode(secret.removeprefix("whsec_"))
    signed = f"{key}.{at:.0f}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(raw, signed, hashlib.sha256).digest()).decode()


# The signatures.


@pytest.mark.usefixtures("now")
def test_the_published_examples_are_verified(page: ModuleType) -> None:
    github = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    assert page.github_signature(request(b"Hello, World!", X_Hub_Signature_256=github))
    standard = {
        "webhook_id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook_timestamp": "1614265330",
        "webhook_signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }
    assert page.standard_signature(request(b'{"test": 2432232314}', **standard))
    assert not page.standard_signature(request(b'{"test": 2432232315}', **standard))
    for name, other in (("webhook_id", "msg_1"), ("webhook_timestamp", "1614265331")):
        sent = request(b'{"test": 2432232314}', **{**standard, name: other})
        assert not page.standard_signature(sent)


def test_a_timestamp_is_tolerated_for_five_minutes(
    page: ModuleType, now: Callable[[float], None]
) -> None:
    for late, valid in ((0, True), (299, True), (-299, True), (301, False), (-301, False)):
        now(NOW + late)
        stripe = request(b"{}", Stripe_Signature=of_stripe(b"{}"))
        assert page.stripe_signature(stripe) is valid
        signature = of_standard(b"{}", "msg_1")
        standard = {"webhook_id": "msg_1", "webhook_timestamp": f"{NOW:.0f}"}
        sent = request(b"{}", **standard, webhook_signature=signature)
        assert page.standard_signature(sent) is valid


@pytest.mark.usefixtures("now")
def test_one_of_several_signatures_is_enough(page: ModuleType, settings: Settings) -> None:
    other = of_stripe(b"{}", secret="other").partition(",")[2]
    for header in (f"{of_stripe(b'{}')},{other}", of_stripe(b"{}").replace(",", f",{other},")):
        assert page.stripe_signature(request(b"{}", Stripe_Signature=header))
    assert not page.stripe_signature(request(b"{}", Stripe_Signature=f"t={NOW:.0f},{other}"))
    settings.STRIPE_SECRETS = ["other", STRIPE_SECRET]  # while it is being changed
    for secret in settings.STRIPE_SECRETS:
        assert page.stripe_signature(request(b"{}", Stripe_Signature=of_stripe(b"{}", NOW, secret)))
    fresh = "whsec_" + base64.b64encode(b"fresh").decode()
    settings.WEBHOOK_SECRETS = [STANDARD_SECRET, fresh]
    signatures = [of_standard(b"{}", "m", secret=secret) for secret in (fresh, STANDARD_SECRET)]
    standard = {"webhook_id": "m", "webhook_timestamp": f"{NOW:.0f}"}
    for header in (*signatures, " ".join(signatures), f"v1a,AAAA {signatures[0]}"):
        assert page.standard_signature(request(b"{}", **standard, webhook_signature=header))


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
    standard = {"webhook_id": header, "webhook_timestamp": f"{NOW:.0f}"}
    assert page.standard_signature(request(b"{}", **standard, webhook_signature=header)) is False
    sent = request(b"{}", webhook_timestamp=header, webhook_signature=f"v1,{GOOD}")
    assert page.standard_signature(sent) is False


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
    code = "".join(BLOCKS)
    assert not re.search(r"[!=]= *(?:digest|expected|signature|given)|digests? [!=]=", code)


# The views.


@pytest.fixture
def hooks(site: Site, page: ModuleType, now: Callable[[float], None]) -> Iterator[Site]:
    """A site with the views of the page, and a table for its model."""
    page.hooks.urls_namespace = f"hooks-{id(site)}"
    site.put(
        path("stripe/", page.stripe),
        path("github/", page.github),
        path("github/once/", page.github_once_for_each_body),
        path("acme/", page.acme),
        path("class/", page.Stripe.as_view()),
        path("rest/", page.GitHub.as_view()),
        path("ninja/", page.hooks.urls),
    )
    with connection.schema_editor() as editor:
        editor.create_model(Subscription)
    yield site
    with connection.schema_editor() as editor:
        editor.delete_model(Subscription)


transactional = pytest.mark.django_db(transaction=True)


def event(key: str = "evt_1", created: int = 1, status: str = "active") -> dict[str, Any]:
    return {
        "id": key, "created": created, "type": "customer.subscription.updated",
        "data": {"object": {"id": "sub_7", "status": status}},
    }  # fmt: skip


def post(url: str, body: Any, **headers: str) -> Any:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return Client(raise_request_exception=False).generic("POST", url, data, JSON, headers=sent)


def stripe(body: Any, at: float = NOW, url: str = "/stripe/") -> Any:
    return post(url, body, Stripe_Signature=of_stripe(json.dumps(body).encode(), at))


def github(url: str, body: Any, delivery: str = "72d3162e") -> Any:
    digest = hmac.new(GITHUB_SECRET.encode(), json.dumps(body).encode(), "sha256").hexdigest()
    headers = {"X_GitHub_Delivery": delivery, "X_GitHub_Event": "push"}
    return post(url, body, X_Hub_Signature_256=f"sha256={digest}", **headers)


def replays(*answers: Any) -> list[tuple[int, str | None]]:
    return [(one.status_code, one.get("Idempotent-Replayed")) for one in answers]


@transactional
def test_the_views_of_the_page_have_no_warnings(hooks: Site) -> None:
    assert not {"W014", "W052", "E010", "E011"} & found().keys()


@transactional
def test_an_event_that_is_sent_again_is_signed_anew_and_replayed(
    hooks: Site, now: Callable[[float], None]
) -> None:
    Subscription.objects.create(number="sub_7", status="new")
    first = stripe(event())
    now(NOW + 3600)
    again = stripe({**event(), "pending_webhooks": 0}, at=NOW + 3600)
    assert replays(first, again) == [(200, "false"), (200, "true")]
    assert again.content == b"done"
    # The first delivery itself, recorded by an attacker, is too old.
    assert replays(stripe(event())) == [(403, None)]


@transactional
def test_events_out_of_order_leave_the_newest_state(hooks: Site) -> None:
    Subscription.objects.create(number="sub_7", status="new")
    for sent in (event("evt_2", 20, "canceled"), event("evt_1", 10, "active")):
        assert stripe(sent).status_code == 200
    assert Subscription.objects.get().status == "canceled"


@transactional
def test_a_forged_body_with_the_id_of_a_real_event_uses_up_nothing(hooks: Site) -> None:
    Subscription.objects.create(number="sub_7", status="new")
    forged = event(status="active for ever")
    signature = of_stripe(json.dumps(event()).encode())
    answers = [
        post("/stripe/", forged, Stripe_Signature=signature),
        post("/stripe/", forged, Stripe_Signature=of_stripe(json.dumps(forged).encode(), NOW, "x")),
        post("/stripe/", forged),
    ]
    assert replays(*answers) == [(403, None)] * 3
    assert not IdempotencyRecord.objects.exists()
    assert replays(stripe(event())) == [(200, "false")]
    assert Subscription.objects.get().status == "active"


@transactional
def test_a_redelivery_of_github_has_the_same_id(hooks: Site) -> None:
    push = {"repository": {"id": 7}, "action": "x"}
    for url in ("/github/", "/rest/"):
        assert replays(*(github(url, push) for _ in range(2))) == [(200, "false"), (200, "true")]
        # Its signature does not cover the id: a copy with another one runs.
        assert replays(github(url, push, "another id")) == [(200, "false")]
    by_body = [github("/github/once/", push, delivery) for delivery in ("a", "b")]
    assert replays(*by_body) == [(200, "false"), (200, "true")]


@transactional
def test_the_id_of_standard_webhooks_is_signed(hooks: Site) -> None:
    body = json.dumps({"type": "invoice.paid"}).encode()

    def send(url: str, key: str, signed: str) -> Any:
        headers = {"webhook_id": key, "webhook_timestamp": f"{NOW:.0f}"}
        return post(url, body, **headers, webhook_signature=of_standard(body, signed))

    for url in ("/acme/", "/ninja/acme/"):
        assert replays(*(send(url, "m", "m") for _ in range(2))) == [(200, "false"), (200, "true")]
        assert send(url, "other", "m").status_code == 403
        assert send(url, "m", "m").content == b"invoice.paid"


@transactional
def test_the_class_of_the_page(hooks: Site) -> None:
    answers = [stripe(event(), url="/class/") for _ in range(2)]
    assert replays(*answers) == [(200, "false"), (200, "true")]
    assert replays(stripe(event(), at=NOW - 900, url="/class/")) == [(403, None)]


def test_a_callable_names_what_two_events_have_in_common(page: ModuleType) -> None:
    keys = {page.change(request(json.dumps(event(key)).encode())) for key in ("evt_1", "evt_2")}
    assert keys == {"customer.subscription.updated sub_7"}


@pytest.mark.live
@pytest.mark.postgres
@pytest.mark.parametrize(
    "database", ["postgres", pytest.param("mysql", marks=pytest.mark.nightly)], indirect=True
)
@pytest.mark.parametrize("wait", [None, 60])
def test_one_event_one_millisecond_apart_takes_effect_once(
    database: None, urls: Callable[..., None], address: tuple[str, int], wait: int | None
) -> None:
    begun = threading.Event()

    def hook(request: HttpRequest) -> HttpResponse:
        begun.set()
        others.wait(60)
        Order.objects.using(ALIAS).create(number=json.loads(request.body)["id"], total=1)
        return HttpResponse("done")

    urls(path("", csrf_exempt(idempotent(key=event_id, scope="stripe", wait=wait)(hook))))
    answers: list[tuple[int, str]] = []
    others = threading.Event()

    def send() -> None:
        http = HTTPConnection(*address, timeout=120)
        http.request("POST", "/", json.dumps(event()), {"Content-Type": JSON})
        answer = http.getresponse()
        answers.append((answer.status, answer.read().decode()))
        http.close()
        if wait is None:
            others.set()  # it was refused while the first one was running

    senders = [threading.Thread(target=send) for _ in range(2)]
    for sender in senders:
        sender.start()
        time.sleep(0.001)
    assert begun.wait(60)
    if wait is not None:
        others.set()
    for sender in senders:
        sender.join(120)
    assert sorted(status for status, _ in answers) == [200, 409 if wait is None else 200]
    assert Order.objects.using(ALIAS).count() == 1
    again = idempotent(key=event_id, scope="stripe")(hook)(request(json.dumps(event()).encode()))
    assert again["Idempotent-Replayed"] == "true"

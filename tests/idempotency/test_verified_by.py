"""`@verified_by`: a request that its sender has not signed is refused, and uses up nothing."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from functools import partial
from io import BytesIO
from typing import Any, cast

import pytest
from django.contrib.auth.decorators import login_required
from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client, RequestFactory
from django.urls import path
from django.utils.decorators import method_decorator
from django.views.decorators.csrf import csrf_exempt
from django.views.generic import View
from ninja import NinjaAPI
from ninja.decorators import decorate_view
from pytest_django import Settings
from rest_framework.permissions import BasePermission
from rest_framework.views import APIView

from redlock_django import (
    IdempotentMixin,
    LockResourceMixin,
    idempotent,
    lock_resource,
    verified_by,
)
from redlock_django.contrib.drf import LockAPIMixin
from redlock_django.exceptions import InvalidRedlock
from redlock_django.models import IdempotencyRecord
from tests.app.checking import found
from tests.app.conftest import MEMORY, instance
from tests.idempotency.conftest import Site, make_order, orders
from tests.idempotency.webhook_views import ROWS, areceive, event_id, receive, views_of

pytestmark = pytest.mark.django_db(transaction=True)
Urls = Callable[..., None]
JSON = "application/json"
EVENT = {"id": "evt_1"}
STRIPE: dict[str, Any] = {"key": event_id, "scope": "stripe"}
once = idempotent(**STRIPE)
locked = lock_resource("order:7")


def is_signed(request: HttpRequest, **_: Any) -> bool:
    """Accept the signature "real"; read the body, as each check of a signature does."""
    return bool(request.body) and request.headers.get("X-Signature") == "real"


async def ais_signed(request: HttpRequest, **_: Any) -> bool:
    return is_signed(request)


verified = verified_by(is_signed)
factory = RequestFactory()


@pytest.fixture(autouse=True)
def _plain(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", False)
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "rest_framework"]


def put(urls: Urls, view: Any) -> None:
    """Make a view or an API of django-ninja the whole site."""
    urls(path("", view.urls if hasattr(view, "urls") else view))


def send(signature: str | None = "real", body: Any = EVENT, client: Any = None) -> Any:
    headers = {} if signature is None else {"X-Signature": signature}
    client = client or Client(raise_request_exception=False)
    return client.generic("POST", "/", json.dumps(body).encode(), JSON, headers=headers)


@pytest.mark.parametrize("row", ROWS)
def test_a_forged_event_is_refused_and_uses_up_nothing(site: Site, urls: Urls, row: str) -> None:
    put(urls, views_of(verified, **STRIPE)[row])
    for signature in ("forged", None):
        refused = send(signature, {**EVENT, "amount": 0})
        assert (refused.status_code, refused.json()["code"]) == (403, "signature-invalid")
        assert refused["Content-Type"] == "application/problem+json"
        assert refused["Cache-Control"] == "no-store"
        assert "Idempotent-Replayed" not in refused
    assert (orders(), IdempotencyRecord.objects.count()) == (0, 0)
    first, again = send(), send()
    assert json.loads(first.json()["body"]) == EVENT
    assert (first["Idempotent-Replayed"], again["Idempotent-Replayed"]) == ("false", "true")
    assert send("forged").status_code == 403  # gets no replay either
    assert orders() == 1


async def test_an_async_client_is_refused_alike(site: Site, urls: Urls) -> None:
    put(urls, views_of(verified_by(ais_signed), **STRIPE)["async function"])
    assert (await send("forged", client=AsyncClient())).status_code == 403
    assert (await send(client=AsyncClient())).status_code == 200
    again = await send(client=AsyncClient())
    assert again["Idempotent-Replayed"] == "true"


@pytest.mark.parametrize("row", [row for row in ROWS if "async" in row])
def test_the_check_of_an_async_view_may_be_async(site: Site, urls: Urls, row: str) -> None:
    put(urls, views_of(verified_by(ais_signed), **STRIPE)[row])
    assert [send(signature).status_code for signature in ("forged", "real")] == [403, 200]


@pytest.mark.parametrize("status", [400, 401, 403])
@pytest.mark.parametrize("row", ["function", "async function", "REST", "ninja"])
def test_the_status_of_the_refusal(site: Site, urls: Urls, row: str, status: int) -> None:
    put(urls, views_of(verified_by(is_signed, status=status), **STRIPE)[row])
    refused = send("forged")
    assert (refused.status_code, refused.json()["status"]) == (status, status)
    assert ("WWW-Authenticate" in refused) == (status == 401)  # as HTTP requires
    assert refused.json()["retryable"] is False
    assert "Retry-After" not in refused


def test_nothing_is_locked_for_a_forged_event(site: Site, happened: list[str]) -> None:
    site.serve(csrf_exempt(verified(once(locked(receive)))))
    happened.clear()
    send("forged")
    assert happened == []
    send()
    assert happened[:3] == ["lock", "lock", "BEGIN"]


def test_the_arguments_of_the_url_are_given_to_the_check(site: Site, urls: Urls) -> None:
    def of_account(request: HttpRequest, account: int) -> bool:
        return request.headers["X-Signature"] == f"of {account}"

    def view(request: HttpRequest, account: int) -> HttpResponse:
        return HttpResponse("done")

    urls(path("<int:account>/", verified_by(of_account)(view)))
    answers = [Client().post("/7/", headers={"X-Signature": f"of {n}"}) for n in (7, 8)]
    assert [answer.status_code for answer in answers] == [200, 403]


def test_half_a_body_is_refused_as_what_it_is(site: Site) -> None:
    site.serve(csrf_exempt(verified(once(receive))))
    sent: Any = {"wsgi.input": BytesIO(b'{"id"'), "CONTENT_LENGTH": "15"}
    half = Client().generic("POST", "/", CONTENT_TYPE=JSON, headers={"X-Signature": "real"}, **sent)
    assert (half.status_code, half.json()["code"]) == (400, "incomplete-body")
    assert (send().status_code, orders()) == (200, 1)


@pytest.mark.parametrize("options", [STRIPE, None])
def test_a_permission_of_rest_framework_may_read_the_body_first(
    site: Site, urls: Urls, options: Any
) -> None:
    class Reads(BasePermission):
        def has_permission(self, request: Any, view: Any) -> bool:
            return bool(request.data)

    view = views_of(verified, **STRIPE)["REST"]
    if options is None:
        view.cls.post = verified(view.cls.post.__wrapped__.__wrapped__)  # not idempotent
    view.cls.permission_classes = (Reads,)
    put(urls, view)
    assert [send(signature).status_code for signature in ("forged", "real")] == [403, 200]


# Mistakes.


def test_only_true_lets_a_request_in(site: Site) -> None:
    class Event:
        """The result of a provider's library."""

    for wrong in (None, Event(), 1, "yes"):
        view = verified_by(lambda request, wrong=wrong: wrong)(make_order)
        with pytest.raises(InvalidRedlock, match="must return True or False, got "):
            view(factory.post("/"))
    with pytest.raises(InvalidRedlock, match="ais_signed of @verified_by is a coroutine function"):
        verified_by(ais_signed)(make_order)(factory.post("/"))
    assert orders() == 0


def test_arguments_that_cannot_work_are_refused() -> None:
    wrong: list[tuple[Any, str]] = [
        (lambda: verified_by("key"), "needs a function"),  # type: ignore[arg-type]
        (lambda: verified_by(View), "needs a function"),
        (lambda: verified_by(is_signed, status=418), "status must be 400, 401 or 403"),
        (lambda: verified(View), r"@method_decorator\(verified_by"),
        (lambda: cast("Any", verified_by(make_order))(factory.get("/")), "decorated without one"),
        (lambda: cast("Any", verified_by(make_order))(View(), 7), "is decorated without one"),
    ]
    for make, message in wrong:
        with pytest.raises(InvalidRedlock, match=message):
            make()


@pytest.mark.parametrize("check", [None, lambda request, **_: True])
def test_idempotent_outside_of_it_is_refused_at_import(check: Any) -> None:
    with pytest.raises(InvalidRedlock, match="Put @verified_by above @idempotent"):
        idempotent(**STRIPE, replay_check=check)(csrf_exempt(verified(receive)))


class Verified(View):
    @method_decorator(verified)
    def dispatch(self, *args: Any, **kwargs: Any) -> Any:
        return super().dispatch(*args, **kwargs)

    def post(self, request: HttpRequest) -> HttpResponse:
        return receive(request)


class Inside(IdempotentMixin, Verified):
    idempotent_options = STRIPE


class Outside(Verified, IdempotentMixin, View):
    idempotent_options = STRIPE


class Handler(IdempotentMixin, View):
    idempotent_options = STRIPE

    @method_decorator(verified)
    def post(self, request: HttpRequest) -> HttpResponse:
        return receive(request)


@pytest.mark.parametrize("view", [Inside, Handler])
def test_a_class_that_verifies_inside_is_refused(site: Site, urls: Urls, view: Any) -> None:
    urls(path("", view.as_view()))
    assert "inside of @idempotent" in found()["E011"]
    with pytest.raises(InvalidRedlock, match="inside of @idempotent"):
        send(client=Client())
    assert orders() == 0


def test_a_class_that_verifies_outside(site: Site, urls: Urls) -> None:
    urls(path("", csrf_exempt(Outside.as_view())))
    assert not {"E011", "W052"} & found().keys()
    assert [send(signature).status_code for signature in ("forged", "real")] == [403, 200]


# System checks.


@method_decorator(verified, name="dispatch")
class LockedInside(LockResourceMixin, View):
    lock_key = "order:7"


class VerifiedInside(LockResourceMixin, Verified):
    lock_key = "order:7"


def test_a_lock_outside_of_it_is_warned_of(site: Site, urls: Urls, settings: Settings) -> None:
    for view in (locked(verified(receive)), VerifiedInside.as_view()):
        urls(path("", view))
        assert "is inside of the lock" in found()["W014"]
    for view in (verified(locked(receive)), LockedInside.as_view()):
        urls(path("", view))
        assert "W014" not in found()
    urls(path("", verified(receive)))
    rule = {"path": "", "key": "order:7"}
    settings.REDLOCK = {"default": {"BACKEND": MEMORY, "RULES": [rule]}}
    assert "@verified_by is inside of the lock" in found()["W014"]


class VerifiedHandler(LockResourceMixin, View):
    lock_key = "order:7"

    @method_decorator(verified)
    def post(self, request: HttpRequest) -> HttpResponse:
        return receive(request)


class VerifiedMethod(View):
    @method_decorator(locked)
    @method_decorator(verified)
    def post(self, request: HttpRequest) -> HttpResponse:
        return receive(request)


class VerifiedRest(LockAPIMixin, APIView):
    @locked
    @verified
    def post(self, request: Any) -> HttpResponse:
        return receive(request)


class LockedMethods(LockAPIMixin, APIView):
    @verified
    @locked
    def post(self, request: Any) -> HttpResponse:
        return receive(request)

    @method_decorator([verified, locked])
    def put(self, request: Any) -> HttpResponse:
        return receive(request)


@pytest.mark.parametrize(
    ("inside", "name"), [(verified, "@verified_by"), (login_required, "login")]
)
def test_idempotent_around_an_operation_that_checks_is_refused(inside: Any, name: str) -> None:
    with pytest.raises(InvalidRedlock, match=f"{name}.* is inside of @idempotent"):
        api_of(decorate_view(once)(inside(receive)), f"{name} inside")


def api_of(view: Any, name: str) -> NinjaAPI:
    api = NinjaAPI(urls_namespace=name)
    api.post("/")(view)
    return api


@pytest.mark.parametrize(
    ("view", "is_reported"),
    [
        (VerifiedHandler.as_view(), True),
        (VerifiedHandler.as_view(lock_methods=["PUT"]), False),
        (VerifiedMethod.as_view(), True),
        (VerifiedRest.as_view(), True),
        (LockedMethods.as_view(), False),
        (api_of(locked(verified(receive)), "locked first"), True),
        (api_of(verified(locked(receive)), "verified first"), False),
        (api_of(decorate_view(locked)(verified(receive)), "locked around"), True),
        (api_of(decorate_view(verified)(locked(receive)), "verified around"), False),
    ],
)
def test_a_lock_outside_of_a_verified_handler(
    site: Site, urls: Urls, view: Any, is_reported: bool
) -> None:
    put(urls, view)
    assert ("@verified_by is inside of the lock" in found().get("W014", "")) is is_reported


def of_the_site(view: Any) -> Any:
    """A decorator of the site, which may verify."""

    @functools.wraps(view)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return view(*args, **kwargs)

    return wrapper


class OfTheSite:
    """A decorator of the site that is a class, and may verify."""

    def __init__(self, view: Any) -> None:
        functools.update_wrapper(self, view)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("never")


class Mixed(IdempotentMixin, View):
    idempotent_options = STRIPE


@method_decorator([csrf_exempt, verified], name="dispatch")
class Signed(Mixed):
    pass


UNVERIFIED: dict[str, Any] = {
    "function": csrf_exempt(once(receive)),
    "a lock inside": csrf_exempt(once(locked(receive))),
    "a lock outside": csrf_exempt(locked(once(receive))),
    "class": csrf_exempt(Mixed.as_view()),
    "partial": csrf_exempt(partial(once(receive))),
    "partial around a lock": csrf_exempt(partial(locked(once(receive)))),
    "async partial": csrf_exempt(partial(once(areceive))),
    "instance": csrf_exempt(instance(once)),
    "instance, method_decorator": csrf_exempt(instance(method_decorator([locked, once]))),
    "partial of an instance": csrf_exempt(partial(instance(once))),
}
VERIFIED: dict[str, Any] = {
    "verified": csrf_exempt(verified(once(receive))),
    "csrf_exempt inside": verified(csrf_exempt(once(receive))),
    "a decorator of the site": csrf_exempt(of_the_site(once(receive))),
    "a login": csrf_exempt(login_required(once(receive))),
    "with CSRF protection": once(receive),
    "the key of a user": csrf_exempt(idempotent(key=event_id)(receive)),
    "no key of a sender": csrf_exempt(idempotent(receive)),
    "class": Signed.as_view(),
    "partial": csrf_exempt(partial(verified(once(receive)))),
    "around a partial": csrf_exempt(verified(partial(once(receive)))),
    "partial with CSRF protection": partial(csrf_exempt(once(receive))),
    "a decorator of the site in a partial": csrf_exempt(partial(of_the_site(once(receive)))),
    "a login in an instance": csrf_exempt(instance(method_decorator([login_required, once]))),
    "instance": csrf_exempt(instance(lambda call: method_decorator(verified)(once(call)))),
    "an instance of the site": csrf_exempt(OfTheSite(once(receive))),
}


@pytest.mark.parametrize("name", UNVERIFIED)
def test_a_webhook_that_nothing_verifies_is_warned_of(site: Site, urls: Urls, name: str) -> None:
    urls(path("", UNVERIFIED[name]))
    assert "nothing around @idempotent verifies" in found()["W052"]


@pytest.mark.parametrize("name", VERIFIED)
def test_a_webhook_that_may_be_verified_is_not(site: Site, urls: Urls, name: str) -> None:
    urls(path("", VERIFIED[name]))
    assert not {"W052", "E011", "E010"} & found().keys()


@pytest.mark.parametrize("row", ["REST", "ninja", "async ninja"])
def test_frameworks_authenticate_in_their_own_ways(site: Site, urls: Urls, row: str) -> None:
    put(urls, views_of(**STRIPE)[row])
    assert "W052" not in found()

"""Sessions: a replay has no cookie, so a response that begins or changes a session is not kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth import alogin, login, logout
from django.contrib.auth.models import User
from django.contrib.sessions.backends.base import SessionBase
from django.http import HttpRequest, HttpResponse
from django.test import Client
from pytest_django import Settings

from redlock_django import idempotent
from tests.idempotency.conftest import KEY, Site, record

pytestmark = pytest.mark.django_db(transaction=True)
DATABASE = "django.contrib.sessions.backends.db"
IN_COOKIES = "django.contrib.sessions.backends.signed_cookies"
visitors = idempotent(
    anonymous_scope=lambda request, **_: "all", replay_check=lambda request, **_: True
)


def session_of(request: HttpRequest) -> SessionBase:
    session: SessionBase = request.session
    return session


def add_to_cart(request: HttpRequest, **_: Any) -> HttpResponse:
    session = session_of(request)
    session["cart"] = [*session.get("cart", []), 7]
    return HttpResponse(f"cart {session['cart']}")


async def aadd_to_cart(request: HttpRequest, **_: Any) -> HttpResponse:
    session = session_of(request)
    await session.aset("cart", [*await session.aget("cart", []), 7])
    return HttpResponse(f"cart {await session.aget('cart')}")


def read_cart(request: HttpRequest, **_: Any) -> HttpResponse:
    return HttpResponse(f"cart {session_of(request).get('cart')}")


def change_user(request: HttpRequest, **_: Any) -> HttpResponse:
    login(request, User.objects.create_user("eve"))
    return HttpResponse("welcome")


async def achange_user(request: HttpRequest, **_: Any) -> HttpResponse:
    await alogin(request, await User.objects.acreate_user("eve"))
    return HttpResponse("welcome")


def touch(request: HttpRequest, **_: Any) -> HttpResponse:
    session_of(request).flush()
    return HttpResponse("nothing is left")


@pytest.fixture(params=[DATABASE, IN_COOKIES], ids=["database", "signed cookies"])
def engine(
    request: pytest.FixtureRequest,
    site: Site,
    settings: Settings,
    plain: None,
) -> str:
    settings.SESSION_ENGINE = request.param
    return str(request.param)


def post(client: Client) -> Any:
    body = {"total": 1}
    return client.post("/cart/", body, "application/json", headers={"Idempotency-Key": KEY})


@pytest.mark.attack
@pytest.mark.parametrize(
    "view", [add_to_cart, aadd_to_cart, change_user, achange_user], ids=lambda view: view.__name__
)
def test_a_session_that_a_view_began_is_not_replayed_without_its_cookie(
    site: Site, engine: str, view: Callable[..., Any]
) -> None:
    """The first answer was lost with its cookie, and the replay said all was well."""
    site.serve(visitors(view))
    first = post(Client())
    assert (first.status_code, "sessionid" in first.cookies) == (200, True)
    again = post(Client())
    assert again.json()["code"] == "idempotency-result-unavailable"
    assert "sessionid" not in again.cookies
    assert record().state == "tombstone"


def test_a_logout_is_not_replayed_without_its_cookie(site: Site) -> None:
    def leave(request: HttpRequest, **_: Any) -> HttpResponse:
        logout(request)
        return HttpResponse("bye")

    site.serve(visitors(leave))
    assert post(site.client).status_code == 200
    assert record().state == "tombstone"


def test_a_session_that_the_client_has_is_kept_on_the_server(
    site: Site, settings: Settings
) -> None:
    settings.SESSION_ENGINE = DATABASE
    client = Client()
    client.force_login(User.objects.get(username="ann"))
    site.serve(idempotent(add_to_cart))
    assert [post(client).content for _ in range(2)] == [b"cart [7]"] * 2
    assert client.session["cart"] == [7]


def test_a_session_in_a_cookie_changes_with_its_cookie(site: Site) -> None:
    site.serve(idempotent(add_to_cart))
    assert post(site.client).status_code == 200
    assert post(site.client).json()["code"] == "idempotency-result-unavailable"


@pytest.mark.parametrize("view", [read_cart, touch], ids=["read", "begun and flushed"])
def test_a_session_that_is_not_changed_has_no_cookie_to_lose(
    site: Site, engine: str, view: Callable[..., Any]
) -> None:
    site.serve(visitors(view))
    first, again = post(Client()), post(Client())
    assert (first.content, first.cookies) == (again.content, again.cookies)
    assert again["Idempotent-Replayed"] == "true"


def test_a_session_of_a_middleware_is_begun_again(site: Site, engine: str) -> None:
    """It runs for a replay too, which therefore has a cookie of its own."""
    site.settings.MIDDLEWARE = [*site.settings.MIDDLEWARE, f"{__name__}.counting"]
    site.serve(visitors(read_cart))
    first, again = post(Client()), post(Client())
    assert again["Idempotent-Replayed"] == "true"
    assert first.cookies["sessionid"].value != "" != again.cookies["sessionid"].value


def counting(get_response: Callable[[HttpRequest], HttpResponse]) -> Any:
    def middleware(request: HttpRequest) -> HttpResponse:
        session_of(request)["visits"] = 1
        return get_response(request)

    return middleware

"""Django's messages: a user who sends a form twice is shown once what the view has added."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from http.cookies import SimpleCookie
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib import messages
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template import engines
from django.test import Client
from django.urls import path
from django.utils import timezone
from django.utils.safestring import mark_safe
from django.utils.translation import gettext_lazy
from pytest_django import Settings

from redlock_django import idempotent
from redlock_django.idempotency.records import store_of
from redlock_django.idempotency.settings import settings_of
from redlock_django.models import IdempotencyRecord
from tests.idempotency.conftest import KEY, InThread, Site, make_order, orders, record

pytestmark = pytest.mark.django_db(transaction=True)
STORAGES = {
    name: f"django.contrib.messages.storage.{name.lower()}.{name}Storage"
    for name in ("Fallback", "Cookie", "Session")
}
SESSIONS = "django.contrib.sessions.backends."
LONG = "Paid. " * 500  # more than a cookie takes


@pytest.fixture(autouse=True, params=STORAGES)
def storage(request: pytest.FixtureRequest, settings: Settings) -> str:
    settings.MESSAGE_STORAGE = STORAGES[request.param]
    return str(request.param)


@pytest.fixture(params=["db", "signed_cookies"])
def sessions(request: pytest.FixtureRequest, site: Site) -> None:
    """Keep sessions on the server, or in a cookie."""
    keep_sessions(site, request.param)


def keep_sessions(site: Site, engine: str) -> None:
    site.settings.SESSION_ENGINE = SESSIONS + engine
    site.client = Client(raise_request_exception=False)
    site.client.force_login(User.objects.get(username="ann"))


def pay(request: HttpRequest, **_: Any) -> HttpResponse:
    make_order(request)
    messages.success(request, "Paid")
    return redirect("/thanks/")


async def apay(request: HttpRequest, **_: Any) -> HttpResponse:
    return await sync_to_async(pay)(request)


def thanks(request: HttpRequest) -> HttpResponse:
    page = engines["django"].from_string(
        "{% for message in messages %}<li class='{{ message.tags }}'>{{ message }}</li>{% endfor %}"
    )
    return HttpResponse(page.render({"messages": messages.get_messages(request)}, request))


def serve(site: Site, view: Any) -> None:
    site.put(path("pay/", view), path("thanks/", thanks), path("other/", other))


def other(request: HttpRequest) -> HttpResponse:
    messages.info(request, "Before")
    return HttpResponse()


def click(client: Client, **data: Any) -> Any:
    return client.post("/pay/", {"idempotency_key": KEY, **data})


def copy_of(cookies: SimpleCookie) -> SimpleCookie:
    """Return the cookies as they are now."""
    return SimpleCookie({name: cookie.value for name, cookie in cookies.items()})


def shown(client: Client) -> str:
    """Follow the redirect, and return what the page shows."""
    return client.get("/thanks/").content.decode()


PAID = "<li class='success'>Paid</li>"


@pytest.mark.parametrize("is_async", [False, True])
def test_a_second_click_shows_the_message_once(
    site: Site, plain: None, sessions: None, is_async: bool
) -> None:
    """The first answer arrives, and its page is not loaded: the browser follows the second."""
    serve(site, idempotent(apay if is_async else pay))
    first, second = click(site.client), click(site.client)
    assert (first["Idempotent-Replayed"], second["Idempotent-Replayed"]) == ("false", "true")
    assert second["Location"] == "/thanks/"
    assert shown(site.client) == PAID
    assert shown(site.client) == ""
    assert orders() == 1


def test_the_message_of_a_lost_answer_is_shown_after_the_replay(site: Site, sessions: None) -> None:
    """With the default storage it was only in a cookie of the first answer."""
    serve(site, idempotent(pay))
    before = copy_of(site.client.cookies)
    click(site.client)
    site.client.cookies = before
    assert click(site.client)["Idempotent-Replayed"] == "true"
    assert shown(site.client) == PAID
    assert shown(site.client) == ""


def test_a_click_after_the_page_shows_the_message_again_if_it_was_in_a_cookie(
    site: Site, storage: str
) -> None:
    """The server cannot know whether the cookie that the client does not send was shown."""
    keep_sessions(site, "db")
    serve(site, idempotent(pay))
    click(site.client)
    assert shown(site.client) == PAID
    assert click(site.client)["Idempotent-Replayed"] == "true"
    assert shown(site.client) == ("" if storage == "Session" else PAID)


@pytest.mark.usefixtures("records_in_a_file")
@pytest.mark.parametrize("engine", ["cache", "signed_cookies"])
def test_a_click_while_the_first_request_runs_shows_the_message_once(
    site: Site, engine: str
) -> None:
    """A browser drops the first answer, and follows the one to its last click."""
    keep_sessions(site, engine)
    before = copy_of(site.client.cookies)
    second: list[InThread] = []

    def view(request: HttpRequest, **_: Any) -> HttpResponse:
        client = Client()
        client.cookies = copy_of(before)
        second.append(InThread(lambda: click(client)))
        messages.success(request, "Paid")
        return redirect("/thanks/")

    serve(site, idempotent(view))
    click(site.client)
    answer = second[0].result
    assert answer["Idempotent-Replayed"] == "true"
    received = {name: cookie.value for name, cookie in answer.cookies.items()}
    site.client.cookies = SimpleCookie(
        {**{name: cookie.value for name, cookie in before.items()}, **received}
    )
    assert shown(site.client) == PAID
    assert shown(site.client) == ""


def test_an_anonymous_client_whose_first_answer_is_lost_is_shown_the_message(site: Site) -> None:
    site.settings.SESSION_ENGINE = SESSIONS + "db"
    serve(site, idempotent(anonymous_scope=lambda request, **_: "all")(pay))
    click(Client())
    client = Client()
    assert click(client)["Idempotent-Replayed"] == "true"
    assert shown(client) == PAID
    client = Client()
    client.cookies["sessionid"] = "a" * 32  # of a session that has ended
    assert click(client)["Idempotent-Replayed"] == "true"
    assert shown(client) == PAID


@pytest.mark.attack
def test_messages_of_other_requests_are_not_replayed(site: Site, sessions: None) -> None:
    """A stored cookie would have them, and they would be shown again after each replay."""
    serve(site, idempotent(pay))
    site.client.get("/other/")
    click(site.client)
    assert "Before" not in record().messages
    assert shown(site.client) == f"<li class='info'>Before</li>{PAID}"
    click(site.client)
    assert "Before" not in shown(site.client)


def test_messages_of_a_middleware_are_not_recorded(site: Site) -> None:
    site.settings.MIDDLEWARE = [*site.settings.MIDDLEWARE, f"{__name__}.greeting"]
    serve(site, idempotent(pay))
    click(site.client)
    click(site.client)
    assert "Hello" not in record().messages
    assert shown(site.client).count("Paid") == 1


def greeting(get_response: Callable[[HttpRequest], Any]) -> Any:
    """A middleware that adds a message to each POST."""

    def middleware(request: HttpRequest) -> Any:
        if request.method == "POST":
            messages.info(request, "Hello")
        return get_response(request)

    return middleware


def test_a_message_that_the_answer_shows_itself_is_not_shown_again(site: Site) -> None:
    def view(request: HttpRequest, **_: Any) -> HttpResponse:
        messages.success(request, "Paid")
        return thanks(request)

    serve(site, idempotent(view))
    assert [click(site.client).content.decode() for _ in range(2)] == [PAID, PAID]
    assert (record().messages, shown(site.client)) == ("", "")


def test_the_page_after_a_replay_is_the_page_after_the_first_answer(
    site: Site, sessions: None
) -> None:
    def view(request: HttpRequest, **_: Any) -> HttpResponse:
        messages.set_level(request, messages.DEBUG)
        messages.debug(request, mark_safe("<b>7</b>"), extra_tags="receipt")
        messages.warning(request, gettext_lazy("<i>"))
        messages.info(request, "a\0b é")
        messages.info(request, "twice")
        messages.info(request, "twice")
        return redirect("/thanks/")

    serve(site, idempotent(view))
    before = copy_of(site.client.cookies)
    click(site.client)
    expected = shown(site.client)
    assert "<li class='receipt debug'><b>7</b></li><li class='warning'>&lt;i&gt;</li>" in expected
    assert expected.count("twice") == 2
    IdempotencyRecord.objects.update(key_hash="0" * 64)  # another key, so that the view runs
    site.client.cookies = before
    click(site.client)
    site.client.cookies = copy_of(before)
    click(site.client)
    assert shown(site.client) == expected


@pytest.mark.parametrize("storage", ["Fallback", "Session"], indirect=True)
def test_a_message_that_no_cookie_can_hold_is_shown_once(site: Site, storage: str) -> None:
    keep_sessions(site, "db")

    def view(request: HttpRequest, **_: Any) -> HttpResponse:
        messages.success(request, LONG)
        return redirect("/thanks/")

    serve(site, idempotent(view))
    click(site.client)
    click(site.client)
    assert shown(site.client).count("<li") == 1


def test_without_the_middleware_nothing_is_recorded(site: Site) -> None:
    site.settings.MIDDLEWARE = [
        name for name in site.settings.MIDDLEWARE if "MessageMiddleware" not in name
    ]
    serve(site, idempotent(make_order))
    assert [click(site.client).status_code for _ in range(2)] == [201, 201]
    assert record().messages == ""


def test_messages_end_with_the_response(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(site, idempotent(pay))
    click(site.client)
    assert "Paid" in record().messages
    now = timezone.now
    monkeypatch.setattr(timezone, "now", lambda: now() + timedelta(days=2))
    store_of(settings_of("default")).forget_expired_responses()
    assert IdempotencyRecord.objects.get().messages == ""

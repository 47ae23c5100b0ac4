"""Hostile input: the answer is 400, or a separate key; never the key of other input or 500."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path
from pytest_django import Settings

from redlock_django import lock_resource
from redlock_django.signals import lock_acquired
from tests.app.conftest import LOCK_MIDDLEWARE

pytestmark = pytest.mark.django_db
Urls = Callable[..., None]


def done(request: HttpRequest, **kwargs: Any) -> HttpResponse:
    return HttpResponse()


@pytest.fixture(autouse=True)
def _site(settings: Settings, memory: None, urls: Urls) -> None:
    settings.MIDDLEWARE = [LOCK_MIDDLEWARE]
    urls(
        path("get/", lock_resource("order:<get:q>:end")(done)),
        path("header/", lock_resource("order:<header:X-T>:end")(done)),
        path("url/<path:p>", lock_resource("order:<p>:end")(done)),
        path("int/<str:p>/", lock_resource("order:<int:p>:end")(done)),
    )


@pytest.fixture
def keys() -> list[str]:
    """The resources that were locked, in order."""
    seen: list[str] = []

    def note(sender: Any, resources: tuple[str, ...], **_: Any) -> None:
        seen.extend(resources)

    lock_acquired.connect(note, weak=False)
    return seen


@pytest.fixture
def client() -> Client:
    # Exceptions become responses, as on a real server.
    return Client(raise_request_exception=False)


LOOKALIKES = [
    "a", "А", "ａ", "a\u200b", "a\u202e", "\u202aa", "a\x00", "a\n", "a b", "a\u00a0b",
    "a:b", "a%3Ab", "a%253Ab", "a%3ab", "a:end", "a:end:", ":", "*", "?", "[a]", "{a}", "a~", "%",
    "%2A", "..", "/", "redlock:held", "1", "01", "１", "x" * 199, "x" * 5000, "x" * 4999 + "y",
    "é", "😀", '"', "'", "\\", "<p>", "\r\nDEL x",
]  # fmt: skip


def senders(client: Client) -> dict[str, Callable[[str], Any]]:
    """Return functions that send a string to the site, by the part of the request they use."""
    return {
        "get": lambda text: client.get("/get/?q=" + quote(text, safe="")),
        "url": lambda text: client.get("/url/" + quote(text, safe="/")),
    }


@pytest.mark.parametrize("way", ["get", "url"])
def test_every_string_has_its_own_key(client: Client, keys: list[str], way: str) -> None:
    send = senders(client)[way]
    accepted = [text for text in LOOKALIKES if send(text).status_code == 200]
    assert len(accepted) >= len(LOOKALIKES) - 2  # a URL cannot contain every string
    assert len(set(keys)) == len(keys) == len(accepted)
    for key in keys:
        assert key.startswith("order:")
        assert key.isprintable()
        assert not set(key) & set("*?[]{}<>\"\\ '") - {"'"}
        # The key ends as the template says, or with a hash.
        assert key.endswith(":end") or "~" in key


@pytest.mark.parametrize("text", ["07", "7", "x", "-1", "7.0", "٧", "7 ", "%37", "1" * 5000])
def test_a_number_is_one_key_or_refused(client: Client, keys: list[str], text: str) -> None:
    response = client.get(f"/int/{quote(text, safe='')}/")
    assert response.status_code in (200, 400)
    assert set(keys) <= {"order:7:end"}


@pytest.mark.attack
def test_two_unicode_forms_of_a_string_are_one_key(client: Client, keys: list[str]) -> None:
    for text in ("é", "e\u0301"):
        senders(client)["get"](text)
    assert len(set(keys)) == 1

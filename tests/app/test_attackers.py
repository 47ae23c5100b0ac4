"""Hostile input: the answer is 400, 413, or a separate key; never the key of other input or 500."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
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
        path("json/", lock_resource("order:<json:a.b>:end")(done)),
        path("get/", lock_resource("order:<get:q>:end")(done)),
        path("post/", lock_resource("order:<post:f>:end")(done)),
        path("header/", lock_resource("order:<header:X-T>:end")(done)),
        path("url/<path:p>", lock_resource("order:<p>:end")(done)),
        path("int/<str:p>/", lock_resource("order:<int:p>:end")(done)),
    )


@pytest.fixture
def keys() -> Iterator[list[str]]:
    """The resources that were locked, in order."""
    seen: list[str] = []

    def note(sender: Any, resources: tuple[str, ...], **_: Any) -> None:
        seen.extend(resources)

    lock_acquired.connect(note)
    yield seen
    lock_acquired.disconnect(note)


@pytest.fixture
def client() -> Client:
    # Exceptions become responses, as on a real server.
    return Client(raise_request_exception=False)


BODIES: dict[str, bytes] = {
    "10 MB": b'{"a": {"b": "' + b"x" * 10_000_000 + b'"}}',
    "deep list": b"[" * 200_000,
    "deep dict": b'{"a":' * 200_000,
    "deep and whole": b'{"a": {"b": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}",
    "nothing": b"",
    "not JSON": b"a=b",
    "not a dict": b"[1, 2]",
    "not UTF-8": b"\xff\xfe\xfd",
    "null": b'{"a": {"b": null}}',
    "empty": b'{"a": {"b": ""}}',
    "bool": b'{"a": {"b": true}}',
    "float": b'{"a": {"b": 1.0}}',
    "nan": b'{"a": {"b": NaN}}',
    "list": b'{"a": {"b": ["x"]}}',
    "dict": b'{"a": {"b": {}}}',
    "a is a string": b'{"a": "b"}',
    "a is a list": b'{"a": [{"b": "x"}]}',
    "huge number": b'{"a": {"b": ' + b"9" * 100_000 + b"}}",
    "surrogate": b'{"a": {"b": "\\ud800"}}',
}


@pytest.mark.parametrize("name", BODIES)
def test_a_body_without_a_name_is_refused(client: Client, keys: list[str], name: str) -> None:
    response = client.post("/json/", BODIES[name], content_type="application/json")
    assert response.status_code in (400, 413)
    assert not keys


def test_a_body_of_unknown_length_is_bounded_too(client: Client, keys: list[str]) -> None:
    response = client.post(
        "/json/", BODIES["10 MB"], content_type="application/json", headers={"Content-Length": "0"}
    )
    assert response.status_code in (400, 413)
    assert not keys


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("multipart/form-data; boundary=x", b"--x\r\n"),
        ("multipart/form-data", b"f=1"),
        ("multipart/form-data; boundary=x", b'--x\r\nContent-Disposition: form-data; name="f"'),
        ("application/x-www-form-urlencoded", b"&".join(b"x%d=1" % n for n in range(5000))),
        ("application/x-www-form-urlencoded", b"f="),
        ("application/json", b'{"f": "x"}'),
    ],
)
def test_a_form_without_a_name_is_refused(
    client: Client, keys: list[str], content_type: str, body: bytes
) -> None:
    assert client.post("/post/", body, content_type=content_type).status_code in (400, 413)
    assert not keys


LOOKALIKES = [
    "a", "А", "ａ", "a\u200b", "a\u202e", "\u202aa", "a\x00", "a\n", "a b", "a\u00a0b",
    "a:b", "a%3Ab", "a%253Ab", "a%3ab", "a:end", "a:end:", ":", "*", "?", "[a]", "{a}", "a~", "%",
    "%2A", "..", "/", "redlock:held", "1", "01", "１", "x" * 199, "x" * 5000, "x" * 4999 + "y",
    "é", "😀", '"', "'", "\\", "<p>", "\r\nDEL x",
]  # fmt: skip


def senders(client: Client) -> dict[str, Callable[[str], Any]]:
    """Return functions that send a string to the site, by the part of the request they use."""
    return {
        "json": lambda text: client.post(
            "/json/", json.dumps({"a": {"b": text}}), content_type="application/json"
        ),
        "get": lambda text: client.get("/get/?q=" + quote(text, safe="")),
        "post": lambda text: client.post("/post/", {"f": text}),
        "url": lambda text: client.get("/url/" + quote(text, safe="/")),
    }


@pytest.mark.parametrize("way", ["json", "get", "post", "url"])
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


def test_two_unicode_forms_of_a_string_are_one_key(client: Client, keys: list[str]) -> None:
    for text in ("é", "e\u0301"):
        senders(client)["json"](text)
    assert len(set(keys)) == 1

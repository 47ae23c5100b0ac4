"""Fingerprints: which requests are the same, and that the view can still read the body."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.middleware.csrf import get_token
from django.test import Client, RequestFactory
from django.test.client import BOUNDARY, encode_multipart
from hypothesis import given
from hypothesis import strategies as st
from pytest_django import Settings

from redlock_django import idempotent
from redlock_django.exceptions import IdempotencyRefused, InvalidRedlock
from redlock_django.idempotency.fingerprint import request_fingerprint
from tests.idempotency.conftest import KEY, Site, make_order, orders

writes = pytest.mark.django_db(transaction=True)
factory = RequestFactory()


def of(request: HttpRequest, **options: Any) -> bytes:
    return request_fingerprint(request, key_field="idempotency_key", **options)


def post(body: Any = b"{}", path: str = "/a/", content_type: str = "application/json") -> Any:
    return factory.post(path, body, content_type=content_type)


@pytest.mark.parametrize(
    "other",
    [
        factory.put("/a/", b"{}", content_type="application/json"),
        post(path="/b/"),
        post(path="/a/?x=1"),
        post(b"[]"),
        post(b"{} "),
        post(content_type="text/plain"),
        post(b""),
        factory.post("/a/"),
    ],
)
def test_another_request_has_another_fingerprint(other: Any) -> None:
    assert of(post()) == of(post())
    assert of(post()) != of(other)


@given(st.lists(st.text("ab/?", max_size=3), min_size=3, max_size=3, unique=True))
def test_bytes_do_not_move_from_one_part_to_the_next(parts: list[str]) -> None:
    path, query, body = parts
    one = post(body.encode(), f"/{path}?q={query}")
    two = post((query + body).encode(), f"/{path}?q=")
    assert (of(one) == of(two)) == (query == "")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("application/json; charset=utf-8", "application/json", True),
        ("application/json;Charset=UTF8", "application/json", True),
        ("application/json; charset=utf-7", "application/json", False),
        ("application/json; charset=utf-7", "application/json; charset=latin-1", False),
        ("application/json; version=2", "application/json", False),
        ("application/json; a=1; b=2", "application/json; b=2; a=1", True),
        ('application/json; a="1; b=2"', "application/json; a=1; b=2", False),
    ],
)
def test_the_media_type_of_the_body_counts(one: str, other: str, same: bool) -> None:
    """The same bytes in another charset, or for another version of an API, have another meaning."""
    assert (of(post(content_type=one)) == of(post(content_type=other))) is same


def test_other_headers_do_not_count() -> None:
    headers = {"Accept": "text/html", "Accept-Language": "de", "If-Match": '"1"', "User-Agent": "x"}
    assert of(factory.post("/a/", b"{}", "application/json", headers=headers)) == of(post())


# Forms.


def multipart(boundary: str = BOUNDARY, **parts: Any) -> Any:
    body = encode_multipart(boundary, parts)
    return factory.post("/a/", body, content_type=f"multipart/form-data; boundary={boundary}")


def upload(content: bytes = b"one", name: str = "a.txt", kind: str = "text/plain") -> Any:
    return SimpleUploadedFile(name, content, kind)


def test_a_boundary_does_not_count() -> None:
    one, two = (multipart(boundary, a="1", f=upload()) for boundary in ("one", "two"))
    assert one.body != two.body
    one, two = (multipart(boundary, a="1", f=upload()) for boundary in ("one", "two"))
    assert of(one) == of(two)


@pytest.mark.parametrize(
    "other",
    [
        {"a": "2", "f": upload()},
        {"a": "1", "f": upload(b"two")},
        {"a": "1", "f": upload(name="b.txt")},
        {"a": "1", "f": upload(kind="text/html")},
        {"a": "1", "g": upload()},
        {"a": ["1", "1"], "f": upload()},
        {"a": "1"},
        {"a": "1", "f": "one"},
    ],
)
def test_every_part_counts(other: dict[str, Any]) -> None:
    assert of(multipart(a="1", f=upload())) != of(multipart(**other))


def test_neither_the_csrf_token_nor_the_key_counts() -> None:
    def form(token: str, key: str) -> Any:
        return factory.post("/", {"a": 1, "csrfmiddlewaretoken": token, "idempotency_key": key})

    def encoded(token: str) -> Any:
        return post(f"csrfmiddlewaretoken={token}&a=1".encode(), content_type=FORM)

    assert of(form("x", "1")) == of(form("y", "2"))
    assert of(encoded("x")) == of(encoded("y"))


FORM = "application/x-www-form-urlencoded"


def test_a_form_that_django_does_not_parse_by_itself() -> None:
    def patch(body: bytes, content_type: str) -> Any:
        return factory.patch("/", body, content_type=content_type)

    def parts(boundary: str, content: bytes = b"one") -> Any:
        body = encode_multipart(boundary, {"a": "1", "f": upload(content)})
        return patch(body, f"multipart/form-data; boundary={boundary}")

    one = parts("one")
    assert of(one) == of(parts("two")) != of(parts("two", b"two"))
    assert b"one" in one.body  # and the view can still read it
    assert of(patch(b"a=1&b=2", FORM)) == of(patch(b"b=2&a=1", FORM)) != of(patch(b"a=1", FORM))


def test_a_body_is_there_for_the_view_afterwards() -> None:
    request = post(b'{"a": 1}')
    of(request)
    assert request.body == b'{"a": 1}'
    assert request.read() == b'{"a": 1}'


def test_a_body_that_was_read_before_is_an_error() -> None:
    request = post(b'{"a": 1}')
    request.read()
    with pytest.raises(InvalidRedlock, match=r"request\.body"):
        of(request)


def test_a_body_that_is_too_large(settings: Settings) -> None:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 10
    with pytest.raises(IdempotencyRefused, match="must not be this large"):
        of(post(b"x" * 11))
    assert of(post(b"x" * 10))
    assert of(multipart(f=upload(b"x" * 11)))  # a form without its files


@writes
@pytest.mark.parametrize("size", [10, 3_000_000], ids=["in memory", "in a file"])
def test_uploads_after_csrf_middleware(site: Site, settings: Settings, size: int) -> None:
    def view(request: Any, **_: Any) -> HttpResponse:
        if request.method == "GET":
            return HttpResponse(get_token(request))
        make_order(request)
        return JsonResponse({"read": len(request.FILES["f"].read()), "a": request.POST["a"]})

    site.serve(idempotent(view))
    client = Client(enforce_csrf_checks=True)
    client.cookies = site.client.cookies

    def send(content: bytes) -> Any:
        # A page that is shown again has a different token.
        token = client.get("/").content.decode()
        data = {"csrfmiddlewaretoken": token, "a": "1", "f": upload(content)}
        return client.post("/", data, headers={"Idempotency-Key": KEY})

    first = send(b"x" * size)
    assert first.json() == {"read": size, "a": "1"}
    assert send(b"x" * size).content == first.content
    assert send(b"y" * size).status_code == 422
    assert orders() == 1


@writes
@pytest.mark.parametrize("charset", ["hex", "idna", "punycode", "undefined", "zlib_codec"])
def test_a_charset_that_is_none_is_the_clients_fault(site: Site, charset: str) -> None:
    """It was a 500, also for a view that does not read the form."""
    site.serve(idempotent(make_order))
    content = b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\xe4\r\n--x--\r\n'
    kinds, keys = ("multipart/form-data; boundary=x", FORM), (True, False)
    for n, (method, kind, has_key) in enumerate(product(("POST", "PATCH"), kinds, keys)):
        key, before = {"Idempotency-Key": f"k{n}"} if has_key else {}, orders()
        content_type = f"{kind}; charset={charset}"
        answer = site.client.generic(method, "/", content, content_type, headers=key)
        assert (answer.status_code, orders() - before) in [(400, 0), (201, 1)], (method, kind)


@writes
def test_a_broken_upload_is_the_clients_fault(site: Site) -> None:
    site.serve(idempotent(make_order))
    headers = {"Idempotency-Key": KEY}
    kinds = ["multipart/form-data", "multipart/form-data; boundary=x"]
    for method in (site.client.post, site.client.patch):
        for kind in kinds:
            answer = method("/", b"--x\r\nbroken", content_type=kind, headers=headers)
            assert answer.status_code in (400, 201, 422), (method, kind)
    assert orders() <= 1

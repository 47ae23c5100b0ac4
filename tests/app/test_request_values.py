"""The values that a lock reads are those that its view reads, in every kind of view."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from contextlib import closing
from http.client import HTTPConnection
from typing import Any
from urllib.parse import quote

import ninja
import pytest
from django.core.exceptions import BadRequest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.files.uploadhandler import MemoryFileUploadHandler
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import Client
from django.urls import path
from django.utils.decorators import method_decorator
from django.views.generic import View
from pytest_django import Settings
from rest_framework.decorators import api_view
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from redlock_django import LockResourceMixin, lock_resource, resource
from redlock_django.backends.memory.backend import MemoryBackend
from redlock_django.contrib.drf import LockAPIMixin
from tests.app.conftest import Urls
from tests.inspecting import is_free
from tests.views.kinds import KINDS, body, of_class

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("lock_middleware", "plain")]
JSON = "application/json"


@pytest.fixture
def locked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The resources that were locked, in order."""
    seen: list[str] = []
    acquire, aacquire = MemoryBackend.acquire, MemoryBackend.aacquire

    def note(self: Any, resources: tuple[str, ...], *args: Any) -> Any:
        seen.extend(resources)
        return acquire(self, resources, *args)

    async def anote(self: Any, resources: tuple[str, ...], *args: Any) -> Any:
        seen.extend(resources)
        return await aacquire(self, resources, *args)

    monkeypatch.setattr(MemoryBackend, "acquire", note)
    monkeypatch.setattr(MemoryBackend, "aacquire", anote)
    return seen


# Values in the body, read by a function of the request.


def order_of(request: HttpRequest) -> str:
    try:
        data = json.loads(request.body)
    except ValueError:
        raise BadRequest from None
    return resource("order:<int:pk>", pk=data.get("order"))


def order_of_rest(request: Request) -> str:
    return resource("order:<int:pk>", pk=request.data.get("order"))


async def aorder_of(request: HttpRequest) -> str:
    return order_of(request)


class Order(ninja.Schema):
    order: int


def order_of_ninja(request: HttpRequest, data: Order) -> str:
    return resource("order:<int:pk>", pk=data.order)


def read_json(request: HttpRequest) -> HttpResponse:
    return JsonResponse({"order": json.loads(request.body)["order"]})


async def aread_json(request: HttpRequest) -> HttpResponse:
    return read_json(request)


class Read(View):
    def post(self, request: HttpRequest) -> HttpResponse:
        return read_json(request)


class Mixed(LockResourceMixin, Read):
    def get_lock_key(self) -> str:
        return order_of(self.request)


def rest_view(lock_it: Any) -> Any:
    class ReadRest(LockAPIMixin, APIView):
        @lock_it
        def post(self, request: Request) -> Response:
            return Response({"order": request.data["order"]})

    return ReadRest.as_view()


@api_view(["POST"])
@lock_resource(order_of_rest)
def read_rest(request: Request) -> Response:
    return Response({"order": request.data["order"]})


api = ninja.NinjaAPI(urls_namespace="values")


@api.post("/")
@lock_resource(order_of_ninja)
def read_ninja(request: HttpRequest, data: Order) -> dict[str, int]:
    return {"order": data.order}


lock_it = lock_resource(order_of)
Handler: Any = type("Handler", (Read,), {"post": method_decorator(lock_it)(Read.post)})
VIEWS: dict[str, Any] = {
    "function": lock_it(read_json),
    "async function": lock_resource(aorder_of)(aread_json),
    "as_view": lock_it(Read.as_view()),
    "dispatch": of_class(Read, lock_it),
    "handler": Handler.as_view(),
    "mixin": Mixed.as_view(),
    "REST view": rest_view(lock_resource(order_of_rest)),
    "REST function": read_rest,
    "ninja": api.urls,
}


@pytest.mark.attack
@pytest.mark.parametrize("row", VIEWS)
def test_a_function_locks_what_the_view_reads_in_the_body(
    urls: Urls, locked: list[str], row: str
) -> None:
    urls(path("", VIEWS[row]))
    client = Client(raise_request_exception=False)
    answer = client.post("/", {"order": 7}, content_type=JSON)
    assert (answer.status_code, answer.json(), locked) == (200, {"order": 7}, ["order:7"])
    for data in (b"{", b'{"a": 7}', b'{"order": "x"}', b'{"order": null}', b'{"order": {}}'):
        refused = client.generic("POST", "/", data, content_type=JSON)
        assert refused.status_code in (400, 422), data
    assert locked == ["order:7"]


# Values of the query and of headers.


@pytest.mark.attack
@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("order=7", "order:7"),
        ("order=07", "order:7"),
        ("order=7&order=8", None),
        ("order=7&order=7", None),
        ("order=7&%6frder=8", None),
        ("order=&order=7", None),
        ("Order=8&order=7", "order:7"),
        ("order[]=8&order=7", "order:7"),
        ("order=7;order=8", None),
    ],
)
@pytest.mark.parametrize("kind", ["plain", "REST"])
def test_a_parameter_of_the_query_has_one_value(
    urls: Urls, locked: list[str], query: str, name: str | None, kind: str
) -> None:
    lock_it = lock_resource("order:<int:get:order>")

    def read(request: HttpRequest) -> HttpResponse:
        return HttpResponse(request.GET["order"])

    urls(path("", lock_it(read) if kind == "plain" else rest_view(lock_it)))
    response = Client(raise_request_exception=False).post(f"/?{query}", {"order": 9})
    assert locked == ([name] if name else [])
    assert (response.status_code == 400) == (name is None)


@pytest.mark.attack
@pytest.mark.parametrize(
    ("header", "name"), [("7", "order:7"), ("7,8", None), ("7, 8", None), (",7", None)]
)
@pytest.mark.parametrize("converter", ["int", "str"])
def test_a_header_has_one_value(
    urls: Urls, locked: list[str], header: str, name: str | None, converter: str
) -> None:
    urls(path("", lock_resource(f"order:<{converter}:header:X-Order>")(read_json)))
    response = Client(raise_request_exception=False).get("/", headers={"X-Order": header})
    assert locked == ([name] if name else [])
    assert (response.status_code == 400) == (name is None)


def test_two_header_lines_as_a_server_delivers_them(
    urls: Urls, locked: list[str], address: tuple[str, int]
) -> None:
    urls(path("", lock_resource("order:<str:header:X-Order>")(lambda _: HttpResponse())))

    def send(*headers: tuple[str, str]) -> int:
        connection = HTTPConnection(*address, timeout=60)
        connection.putrequest("POST", "/")
        for name, value in (("Content-Length", "0"), *headers):
            connection.putheader(name, value)
        connection.endheaders()
        with closing(connection):
            return connection.getresponse().status

    assert send(("X-Order", "7"), ("X-Order", "8")) == 400
    assert send(("X-Order", "7"), ("X_Order", "8")) == 200
    assert locked == ["order:7"]


LOOKALIKES = [
    "a", "А", "ａ", "a\u200b", "a\u202e", "\u202aa", "a\x00", "a\n", "a b", "a\u00a0b",
    "a:b", "a%3Ab", "a%253Ab", "a%3ab", "a:end", "a:end:", ":", "*", "?", "[a]", "{a}", "a~", "%",
    "%2A", "..", "/", "redlock:held", "1", "01", "１", "x" * 199, "x" * 5000, "x" * 4999 + "y",
    "é", "😀", '"', "'", "\\", "<p>", "\r\nDEL x",
]  # fmt: skip


@pytest.mark.attack
@pytest.mark.parametrize("start", ["/get/?q=", "/url/"])
def test_every_string_has_its_own_key(urls: Urls, locked: list[str], start: str) -> None:
    """The answer is 400, or a separate key; never the key of another string, or 500."""

    def done(request: HttpRequest, **_: Any) -> HttpResponse:
        return HttpResponse()

    urls(
        path("get/", lock_resource("order:<get:q>:end")(done)),
        path("url/<path:p>", lock_resource("order:<p>:end")(done)),
    )
    client, safe = Client(raise_request_exception=False), "/" if start == "/url/" else ""
    statuses = [client.get(start + quote(text, safe=safe)).status_code for text in LOOKALIKES]
    accepted = statuses.count(200)
    assert accepted >= len(LOOKALIKES) - 2  # a URL cannot contain every string
    assert len(set(locked)) == len(locked) == accepted
    for key in locked:
        assert key.startswith("order:")
        assert key.isprintable()
        assert not set(key) & set("*?[]{}<>\"\\ '") - {"'"}
        # The key ends as the template says, or with a hash.
        assert key.endswith(":end") or "~" in key


# A body that arrives slowly is read before the lock is acquired.

READS: dict[str, Callable[[Any], Any]] = {
    "body": lambda request: JsonResponse(json.loads(request.body)),
    "read": lambda request: HttpResponse(request.read(4) + request.read()),
    "data": lambda request: JsonResponse(request.data),
}
READERS = [("function", "body"), ("async function", "body"), ("REST handler", "data")]


class Body(io.BytesIO):
    """A body that notes whether the lock is free while it is read."""

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self.free: list[bool] = []

    def read(self, size: int | None = -1) -> bytes:
        self.free.append(is_free("order:7"))
        return super().read(size)


@pytest.fixture
def post(urls: Urls) -> Callable[..., Any]:
    """Return a function that sends a body to a kind of view, which reads it in some way."""

    def send(kind: str, how: str, sent: Body, declared: int) -> Any:
        body[:] = [READS[how]]
        urls(KINDS[kind].make())
        generic: Any = Client().generic
        extra = {"wsgi.input": sent, "CONTENT_LENGTH": str(declared), "CONTENT_TYPE": JSON}
        return generic("POST", "/7/", **extra)

    return send


@pytest.mark.attack
@pytest.mark.parametrize(("kind", "how"), [*READERS, ("function", "read")])
def test_the_lock_is_free_while_the_body_arrives(
    post: Callable[..., Any], kind: str, how: str
) -> None:
    sent = Body(b'{"total": 7}')
    response = post(kind, how, sent, 12)
    assert (response.status_code, json.loads(response.content)) == (200, {"total": 7})
    assert set(sent.free) == {True}


def test_an_upload_keeps_its_handlers(urls: Urls) -> None:
    def uploading(request: Any) -> HttpResponse:
        request.upload_handlers = [MemoryFileUploadHandler(request)]
        file: Any = request.FILES["file"]
        return HttpResponse(file.read() + request.POST["name"].encode())

    body[:] = [uploading]
    urls(KINDS["function"].make())
    file = SimpleUploadedFile("a.txt", b"content ")
    assert Client().post("/7/", {"file": file, "name": "ann"}).content == b"content ann"


def test_a_large_upload_is_left_to_the_view(post: Callable[..., Any], settings: Settings) -> None:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 10
    sent = Body(b"x" * 20)
    assert post("function", "read", sent, 20).content == b"x" * 20
    assert set(sent.free) == {False}


@pytest.mark.parametrize(("kind", "how"), READERS)
def test_half_a_body_is_refused_before_the_lock(
    post: Callable[..., Any], kind: str, how: str
) -> None:
    assert post(kind, how, Body(b"{}"), 12).status_code == 400
    assert is_free("order:7")

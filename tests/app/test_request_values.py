"""The value that a template locks is the value that the view reads, in every kind of view."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import closing
from http.client import HTTPConnection
from types import SimpleNamespace
from typing import Any

import ninja
import pytest
from django.db import connections
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client
from django.urls import path
from ninja.parser import Parser
from pytest_django import Settings
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.parsers import FormParser, JSONParser
from rest_framework.request import Request
from rest_framework.views import APIView

from redlock_django import LockResourceMixin, lock_resource
from redlock_django.backends.memory.backend import MemoryBackend
from redlock_django.exceptions import BadResource
from redlock_django.web.request_values import RequestValues
from tests.app.checking import found
from tests.app.conftest import LOCK_MIDDLEWARE, MEMORY
from tests.app.reading_views import (
    FORM_ROWS,
    JSON_ROWS,
    CamelCaseApi,
    FirstParser,
    aread_form,
    aread_json,
    by_form,
    by_json,
    ninja_view,
    plain_views,
    read_form,
    read_json,
    rest_function,
    rest_view,
    rest_views,
)

pytestmark = pytest.mark.django_db
Urls = Callable[..., None]
JSON, FORM = "application/json", "application/x-www-form-urlencoded"


@pytest.fixture(autouse=True)
def _site(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", False)
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "rest_framework"]
    settings.REDLOCK = {"default": {"BACKEND": MEMORY}}
    settings.MIDDLEWARE = [LOCK_MIDDLEWARE]


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


def serve(row: str, key: str, urls: Urls, settings: Settings) -> Client:
    """Make a view of one kind the whole site, and return a client of it."""
    if row.startswith("ninja"):
        urls(path("", ninja_view(row)))
    else:
        urls(path("", (plain_views(key) | rest_views(key))[row]))
    if row == "rule":
        rule = {"path": "", "key": f"order:<int:{key}:order>"}
        settings.REDLOCK = {"default": {"BACKEND": MEMORY, "RULES": [rule]}}
    return Client(raise_request_exception=False)


def check_reads_alike(response: Any, locked: list[str]) -> None:
    """Check that the view read the value that was locked, or that neither of them did."""
    if response.status_code == 200:
        assert locked == [f"order:{response.json()['order']}"]
    else:
        assert response.status_code in (400, 415, 422), response.content
        assert locked == []


BAD_JSON: dict[str, tuple[str, bytes]] = {
    "as a form": (FORM, b'{"order":7,"x":"&order=8&"}'),
    "as text": ("text/plain", b'{"order":7}'),
    "as nothing": ("", b'{"order":7}'),
    "as two types": (f"{JSON},{FORM}", b'{"order":7}'),
    "as multipart": (
        "multipart/form-data; boundary=x",
        (
            b'{"order":7,"x":"\r\n--x\r\nContent-Disposition: form-data; name=order\r\n\r\n'
            b'8\r\n--x--\r\n"}'
        ),
    ),
    "utf-7": (f"{JSON}; charset=utf-7", b'{"order":7,"+AG8-rder":8}'),
    "the second of two charsets": (
        f"{JSON}; charset=utf-8; charset=utf-7",
        b'{"order":7,"+AG8-rder":8}',
    ),
    "an extended charset": (f"{JSON}; charset*=utf-8''utf-7", b'{"order":7,"+AG8-rder":8}'),
    "an unknown charset": (f"{JSON}; charset=x", b'{"order":7}'),
    "utf-16": (f"{JSON}; charset=utf-16", '{"order":7}'.encode("utf-16")),
    "utf-16 that says utf-8": (JSON, '{"order":7}'.encode("utf-16-le")),
    "utf-32 that says utf-8": (JSON, '{"order":7}'.encode("utf-32-be")),
    "BOM": (JSON, b'\xef\xbb\xbf{"order":7}'),
    "latin-1": (JSON, b'{"order":7,"x":"\xe9"}'),
    "twice": (JSON, b'{"order":7,"order":8}'),
    "twice, one escaped": (JSON, b'{"order":7,"\\u006frder":8}'),
    "twice, deeper": (JSON, b'{"order":7,"x":[{"a":1,"a":2}]}'),
    "NaN": (JSON, b'{"order":7,"x":NaN}'),
    "Infinity": (JSON, b'{"order":7,"x":-Infinity}'),
    "a list": (JSON, b'[{"order":7}]'),
    "a string": (JSON, b'"order"'),
    "two documents": (JSON, b'{"order":7}{"order":8}'),
    "a comment": (JSON, b'{"order":7 /* "order":8 */}'),
    "a float": (JSON, b'{"order":7.0}'),
    "a list as the value": (JSON, b'{"order":[7]}'),
    "true": (JSON, b'{"order":true}'),
}
GOOD_JSON: dict[str, tuple[str, bytes]] = {
    "plain": (JSON, b'{"order":7}'),
    "utf-8": (f"{JSON}; charset=UTF-8", '{"order":7,"name":"é"}'.encode()),
    "a string": (JSON, b'{"order":"7"}'),
    "an escaped name": (JSON, b'{"\\u006frder":7}'),
    "equal names in different objects": (JSON, b'{"order":7,"a":{"order":8},"b":{"order":9}}'),
}


@pytest.mark.parametrize("row", JSON_ROWS)
def test_json_that_could_be_read_in_two_ways_is_refused(
    urls: Urls, settings: Settings, locked: list[str], row: str
) -> None:
    client = serve(row, "json", urls, settings)
    for name, (content_type, body) in BAD_JSON.items():
        response = client.generic("POST", "/", body, content_type=content_type)
        if row == "ninja callable":  # reads what django-ninja has validated, whatever that is
            check_reads_alike(response, locked)
            locked.clear()
            continue
        assert response.status_code in (400, 415, 422), name
        assert locked == [], name


@pytest.mark.parametrize("row", JSON_ROWS)
def test_json_is_read_as_the_view_reads_it(
    urls: Urls, settings: Settings, locked: list[str], row: str
) -> None:
    client = serve(row, "json", urls, settings)
    for name, (content_type, body) in GOOD_JSON.items():
        response = client.generic("POST", "/", body, content_type=content_type)
        assert response.status_code == 200, (name, response.content)
        assert str(response.json()["order"]) == "7"
        assert locked == ["order:7"], name
        locked.clear()


async def test_an_async_client_is_refused_and_answered_alike(
    urls: Urls, settings: Settings, locked: list[str]
) -> None:
    urls(path("", by_json(aread_json)), path("form/", by_form(aread_form)))
    client = AsyncClient()
    assert (await client.generic("POST", "/", b'{"order":7}', content_type=JSON)).status_code == 200
    assert (
        await client.generic("POST", "/form/", b"order=8", content_type=FORM)
    ).status_code == 200
    assert locked == ["order:7", "order:8"]
    for content_type, body in BAD_JSON.values():
        assert (
            await client.generic("POST", "/", body, content_type=content_type)
        ).status_code == 400
    twice = await client.generic("POST", "/form/", b"order=8&order=9", content_type=FORM)
    assert twice.status_code == 400
    assert locked == ["order:7", "order:8"]


@pytest.mark.parametrize("row", ["REST view, camel case", "ninja camel"])
def test_the_result_of_a_parser_of_the_site_is_locked(
    urls: Urls, settings: Settings, locked: list[str], row: str
) -> None:
    client = serve(row, "json", urls, settings)
    for body in ({"theOrder": 7}, {"theOrder": 7, "order": 8}, {"order": 8, "theOrder": 7}):
        response = client.post("/", body, content_type=JSON)
        assert response.status_code == 200
        check_reads_alike(response, locked)
        locked.clear()


def test_a_rule_around_django_ninja_locks_the_result_of_its_parser(
    urls: Urls, settings: Settings, locked: list[str]
) -> None:
    api = ninja.NinjaAPI(urls_namespace="ruled", parser=CamelCaseApi())

    @api.post("/")
    def read(request: HttpRequest) -> dict[str, int]:
        return {"order": 7}

    urls(path("", api.urls))
    rule = {"view": "ruled:read", "key": "order:<int:json:order>"}
    settings.REDLOCK = {"default": {"BACKEND": MEMORY, "RULES": [rule]}}
    check_reads_alike(Client().post("/", {"theOrder": 7}, content_type=JSON), locked)
    assert locked == ["order:7"]


def test_a_parser_of_the_api_that_fails_is_answered_400(
    urls: Urls, settings: Settings, locked: list[str]
) -> None:
    class Picky(Parser):
        def parse_body(self, request: HttpRequest) -> Any:
            raise RuntimeError("no")

    api = ninja.NinjaAPI(urls_namespace="picky", parser=Picky())

    @api.post("/")
    @by_json
    def read(request: HttpRequest) -> None:
        raise AssertionError("never")

    urls(path("", api.urls))
    assert Client().post("/", {"order": 7}, content_type=JSON).status_code == 400
    assert locked == []


def multipart(*names: bytes) -> tuple[str, bytes]:
    """Return a form with the values 7, 8 and so on."""
    body = b"".join(
        b"--x\r\nContent-Disposition: form-data; %s\r\n\r\n%d\r\n" % (name, number)
        for number, name in enumerate(names, 7)
    )
    return "multipart/form-data; boundary=x", body + b"--x--\r\n"


BAD_FORMS: dict[str, tuple[str, bytes]] = {
    "twice": (FORM, b"order=7&order=8"),
    "twice alike": (FORM, b"order=7&order=7"),
    "twice, one escaped": (FORM, b"order=7&%6Frder=8"),
    "as JSON": (JSON, b'{"order":7}'),
    "JSON as a form": (FORM, b'{"order":7}'),
    "as text": ("text/plain", b"order=7"),
    "multipart, twice": multipart(b'name="order"', b'name="order"'),
    "multipart, as a file too": multipart(b'name="order"', b'name="order"; filename="f"'),
}
FORMS: dict[str, tuple[str, bytes]] = {
    "a form": (FORM, b"order=7&x=8"),
    "with JSON in it": (FORM, b'{"order":8,"x":"&order=7&"}'),
    "multipart": multipart(b'name="order"'),
}


@pytest.mark.parametrize("row", FORM_ROWS)
def test_a_form_is_read_as_the_view_reads_it_or_refused(
    urls: Urls, settings: Settings, locked: list[str], row: str
) -> None:
    client = serve(row, "post", urls, settings)
    for name, (content_type, body) in FORMS.items():
        response = client.generic("POST", "/", body, content_type=content_type)
        assert response.status_code == 200, (name, response.content)
        assert str(response.json()["order"]) == "7", name
        assert locked == ["order:7"], name
        locked.clear()
    for name, (content_type, body) in BAD_FORMS.items():
        response = client.generic("POST", "/", body, content_type=content_type)
        assert response.status_code in (400, 415, 422), name
        assert locked == [], name


def test_a_form_of_another_charset_is_read_as_the_view_reads_it(
    urls: Urls, settings: Settings, locked: list[str]
) -> None:
    for row in ("function", "REST view"):
        client = serve(row, "post", urls, settings)
        response = client.generic(
            "POST", "/", b"+AG8-rder=7", content_type=f"{FORM}; charset=utf-7"
        )
        check_reads_alike(response, locked)
        locked.clear()


def test_a_negotiator_that_ignores_the_content_type_decides(
    urls: Urls, settings: Settings, locked: list[str]
) -> None:
    """The parser that is used decides, not the one that the Content-Type would select."""
    ignoring = {"content_negotiation_class": FirstParser}
    urls(
        path("json/", rest_view(by_json, (FormParser, JSONParser), **ignoring)),
        path("form/", rest_view(by_form, (JSONParser, FormParser), **ignoring)),
    )
    body = b'{"order":7,"x":"&order=8&"}'
    assert Client().generic("POST", "/json/", body, content_type=JSON).status_code == 400
    assert locked == []
    response = Client().generic("POST", "/form/", body, content_type=FORM)
    check_reads_alike(response, locked)


def test_a_body_that_a_permission_has_read_is_locked_as_the_handler_reads_it(
    urls: Urls, settings: Settings, locked: list[str]
) -> None:
    class Reads:
        def has_permission(self, request: Request, view: Any) -> bool:
            return "order" in request.data

    urls(path("", rest_view(by_json, (JSONParser,), permission_classes=(Reads,))))
    response = Client().post("/", {"order": 7}, content_type=JSON)
    assert response.json() == {"order": 7}
    assert locked == ["order:7"]


def test_a_stream_that_rest_framework_has_consumed_is_read_from_its_data() -> None:
    """Its releases before 3.18 parse a stream and do not keep the body."""
    request = SimpleNamespace(
        _request=Consumed(),
        negotiator=DefaultContentNegotiation(),
        parsers=[JSONParser()],
        content_type=JSON,
        data={"order": 7},
    )
    assert RequestValues(request).read("json", "order") == 7


class Consumed(HttpRequest):
    """A request whose body was parsed from the stream."""

    def __init__(self) -> None:
        super().__init__()
        self.content_type, self.content_params = JSON, {}
        self._read_started = True


@pytest.mark.parametrize("key", ["json", "post"])
def test_a_lock_outside_of_rest_frameworks_parsers_is_refused(
    urls: Urls, settings: Settings, locked: list[str], key: str
) -> None:
    lock_it = by_json if key == "json" else by_form
    unlocked = rest_function(lambda view: view)
    mixed: Any = type(
        "Mixed", (LockResourceMixin, APIView), {"lock_key": f"order:<int:{key}:order>"}
    )
    for view in (lock_it(unlocked), mixed.as_view()):
        urls(path("", view))
        assert "before REST framework parses it" in found()["E012"]
        client = Client(raise_request_exception=False)
        assert client.generic("POST", "/", b'{"order":7}', content_type=JSON).status_code == 500
    urls(path("", unlocked))
    rule = {"path": "", "key": f"order:<int:{key}:order>"}
    settings.REDLOCK = {"default": {"BACKEND": MEMORY, "RULES": [rule]}}
    assert "before REST framework parses it" in found()["E002"]
    assert locked == []


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

    urls(path("", lock_it(read) if kind == "plain" else rest_view(lock_it, (JSONParser,))))
    response = Client(raise_request_exception=False).post(f"/?{query}", {"order": 9})
    assert locked == ([name] if name else [])
    assert (response.status_code == 400) == (name is None)


@pytest.mark.parametrize(
    ("header", "name"), [("7", "order:7"), ("7,8", None), ("7, 8", None), (",7", None)]
)
@pytest.mark.parametrize("converter", ["int", "str"])
def test_a_header_has_one_value(
    urls: Urls, locked: list[str], header: str, name: str | None, converter: str
) -> None:
    urls(path("", lock_resource(f"order:<{converter}:header:X-Order>")(read_form)))
    response = Client(raise_request_exception=False).get("/", headers={"X-Order": header})
    assert locked == ([name] if name else [])
    assert (response.status_code == 400) == (name is None)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Encoding": "gzip"}, 400),
        ({"Content-Encoding": "deflate"}, 400),
        ({"Content-Encoding": "identity"}, 200),
        ({"Content-Encoding": ""}, 200),
    ],
)
def test_a_body_that_says_that_it_is_compressed_is_refused(
    urls: Urls, locked: list[str], headers: Mapping[str, str], status: int
) -> None:
    urls(path("", by_json(read_json)))
    response = Client().post("/", {"order": 7}, content_type=JSON, headers=headers)
    assert response.status_code == status


@pytest.mark.parametrize("converter", ["str", "slug", "path", "uuid"])
def test_a_number_is_no_value_of_a_converter_of_strings(
    urls: Urls, locked: list[str], converter: str
) -> None:
    """ "7" and 7 are different values of a view that reads a string."""
    urls(path("", lock_resource(f"order:<{converter}:json:order>")(read_json)))
    for value in (7, [7], {"a": 7}, True, 7.5, None):
        response = Client().post("/", {"order": value}, content_type=JSON)
        assert (response.status_code, response.json()["code"]) == (400, "bad-resource")
    assert locked == []


def test_a_dotted_path_reads_objects_only() -> None:
    request = SimpleNamespace(
        content_type=JSON, content_params={}, headers={}, META={}, resolver_match=None
    )
    request.body = json.dumps({"a": {"b": {"c": "x"}}, "a.b": {"c": "y"}, "l": ["z"]}).encode()
    values = RequestValues(request)
    assert values.read("json", "a.b.c") == "x"
    for name in ("l.0", "a.b.c.d", "x"):
        assert values.read("json", name) is None
    with pytest.raises(BadResource, match=r"<json:a\.b>: the value must be a string"):
        values.read("json", "a.b")


def test_requests_as_servers_deliver_them(
    urls: Urls, locked: list[str], address: tuple[str, int]
) -> None:
    """Two header lines, another Content-Type and a chunked body, as a client of HTTP sends them."""
    urls(
        path("header/", lock_resource("order:<str:header:X-Order>")(lambda _: HttpResponse())),
        path("json/", by_json(read_json)),
    )

    def send(where: str, body: bytes, *headers: tuple[str, str]) -> int:
        connection = HTTPConnection(*address, timeout=60)
        connection.putrequest("POST", where)
        for name, value in headers:
            connection.putheader(name, value)
        connection.endheaders(body)
        with closing(connection):
            return connection.getresponse().status

    json_type, length = ("Content-Type", JSON), ("Content-Length", "11")
    none = ("Content-Length", "0")
    assert send("/header/", b"", none, ("X-Order", "7"), ("X-Order", "8")) == 400
    assert send("/header/", b"", none, ("X-Order", "7"), ("X_Order", "8")) == 200
    assert locked == ["order:7"]
    assert send("/json/", b'{"order":7}', json_type, length) == 200
    assert locked == ["order:7", "order:7"]
    assert send("/json/", b'{"order":7}', ("Content-Type", FORM), length) == 400
    chunked = b'b\r\n{"order":7}\r\n0\r\n\r\n'
    assert send("/json/", chunked, json_type, ("Transfer-Encoding", "chunked")) == 400
    assert locked == ["order:7", "order:7"]

"""Which operations a schema completes: each way to lock a view, and each way to name its path."""

from __future__ import annotations

import re
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from django.http import HttpRequest, JsonResponse
from django.test import Client
from django.urls import path
from django.utils.decorators import method_decorator
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import OpenApiResponse, extend_schema, extend_schema_view
from hypothesis import given
from hypothesis import strategies as st
from rest_framework.decorators import api_view, schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.versioning import URLPathVersioning
from rest_framework.views import APIView

from redlock_django import LockResourceMixin, idempotent, lock_resource, resource
from redlock_django.contrib.drf import LockAPIMixin
from redlock_django.contrib.openapi import complete
from redlock_django.idempotency.key import BARE_KEY, parse_key
from redlock_django.testing import held_elsewhere
from tests.contrib.openapi_apis import rest_framework_schema, with_auto_schema

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("redlock_memory")]
ORDER = "order:<int:pk>"
locked = lock_resource(ORDER)


class Plain(APIView):
    authentication_classes = ()
    schema = AutoSchema()
    versioning_class: Any = None

    def post(self, request: Request, **_: Any) -> Response:
        return Response({})

    def get(self, request: Request, **_: Any) -> Response:
        return Response({})


@api_view(["POST", "PUT"])
@schema(AutoSchema())
@lock_resource(ORDER, methods=["POST"])
def function(request: Request, pk: int) -> Response:
    return Response({})


@method_decorator(lock_resource(ORDER, methods=["POST"]), name="dispatch")
class Dispatched(Plain):
    pass


class Mixed(LockResourceMixin, Plain):
    lock_key = ORDER
    lock_methods = ("POST",)


class Computed(LockResourceMixin, Plain):
    lock_methods = ("POST",)

    def get_lock_key(self) -> str:
        return resource(ORDER, pk=self.kwargs["pk"])


class Handled(LockAPIMixin, Plain):
    @locked
    def post(self, request: Request, **_: Any) -> Response:
        return Response({})


with with_auto_schema:

    @extend_schema_view(post=extend_schema(responses=OpenApiResponse(description="ok")))
    class Inherited(Handled):
        pass

    @extend_schema_view(post=extend_schema(exclude=True))
    class Hidden(Handled):
        pass


VIEWS: dict[str, Any] = {
    "api_view": function,
    "around as_view()": lock_resource(ORDER, methods=["POST"])(Plain.as_view()),
    "dispatch": Dispatched.as_view(),
    "mixin": Mixed.as_view(),
    "mixin with get_lock_key()": Computed.as_view(),
    "handler": Handled.as_view(),
    "extended handler": Inherited.as_view(),
}


@pytest.mark.parametrize("kind", VIEWS)
def test_each_way_to_lock_a_view_is_found(urls: Callable[..., None], kind: str) -> None:
    urls(path("<int:pk>/", VIEWS[kind]), path("plain/", Plain.as_view()))
    paths = rest_framework_schema()["paths"]
    item = next(value for key, value in paths.items() if key != "/plain/")
    with held_elsewhere("order:7"):
        status = Client().post("/7/").status_code
    assert status == 423
    assert {"400", "423", "503"} <= {*item["post"]["responses"]}
    others = [value for key, value in item.items() if key in ("get", "put")]
    for operation in (*others, *paths["/plain/"].values()):
        assert {*operation["responses"]} == {"200"}


def test_attributes_that_as_view_gets_count(urls: Callable[..., None]) -> None:
    urls(path("<int:pk>/", Mixed.as_view(lock_status=409, lock_methods=["GET"])))
    item = rest_framework_schema()["paths"]["/{id}/"]
    with held_elsewhere("order:7"):
        assert Client().get("/7/").status_code == 409
    assert {*item["get"]["responses"]} == {"200", "400", "409", "503"}
    assert {*item["post"]["responses"]} == {"200"}


def test_the_name_of_a_lock_decides_whether_its_values_may_be_refused(
    urls: Callable[..., None],
) -> None:
    class Named(LockAPIMixin, Plain):
        @lock_resource("order:<int:get:order>")
        def get(self, request: Request, **_: Any) -> Response:
            return Response({})

        @lock_resource("orders")
        def put(self, request: Request, **_: Any) -> Response:
            return Response({})

    urls(path("", Named.as_view()))
    item = rest_framework_schema()["paths"]["/"]
    refused = Client().get("/?order=seven")
    assert (refused.status_code, refused.json()["code"]) == (400, "bad-resource")
    assert {*item["get"]["responses"]} == {"200", "400", "423", "503"}
    assert "`bad-resource`" in item["get"]["responses"]["400"]["description"]
    assert item["put"]["responses"]["400"]["description"] == "`incomplete-body`: Body is incomplete"


class VersionInPath(URLPathVersioning):
    default_version = "v1"


@pytest.mark.parametrize(
    ("start", "configured", "expected"),
    [
        ("api/<version>/", {}, "/api/v1/some_orders/{order_pk}/"),
        ("api/", {"CAMELIZE_NAMES": True}, "/api/some_orders/{orderPk}/"),
        (
            "api/<version>/",
            {"SCHEMA_PATH_PREFIX": "/api/v[0-9]", "SCHEMA_PATH_PREFIX_TRIM": True},
            "/some_orders/{order_pk}/",
        ),
        (
            "api/",
            {"SCHEMA_PATH_PREFIX_TRIM": True, "SCHEMA_PATH_PREFIX_INSERT": "/x"},
            "/x/some_orders/{order_pk}/",
        ),
    ],
)
def test_a_path_is_found_however_the_schema_writes_it(
    urls: Callable[..., None], start: str, configured: dict[str, Any], expected: str
) -> None:
    class Other(Plain):
        versioning_class = VersionInPath if "version" in start else None

    class Versioned(Other):
        @lock_resource("order:<int:order_pk>")
        def post(self, request: Request, **_: Any) -> Response:
            return Response({})

    urls(
        path(f"{start}some_orders/<int:order_pk>/", Versioned.as_view()),
        path(f"{start}others/", Other.as_view()),
    )
    paths = rest_framework_schema(**configured)["paths"]
    assert "423" in paths[expected]["post"]["responses"]


def test_an_operation_that_is_not_in_the_schema_is_skipped(urls: Callable[..., None]) -> None:
    urls(path("<int:pk>/", Hidden.as_view()))
    found = rest_framework_schema()
    assert {*found["paths"]["/{id}/"]} == {"get"}
    assert "RedlockProblem423" not in str(found)


def test_the_docstring_of_a_mixin_is_not_the_description(urls: Callable[..., None]) -> None:
    class Described(Handled):
        """Orders of a customer."""

    urls(
        path("a/<int:pk>/", Handled.as_view()),
        path("b/<int:pk>/", Mixed.as_view()),
        path("c/<int:pk>/", Described.as_view()),
    )
    a, b, c = rest_framework_schema()["paths"].values()
    for item in (a, b):
        assert [operation.get("description") for operation in item.values()] == [None, None]
    assert c["get"]["description"] == "Orders of a customer."


def test_references_and_headers_of_the_site_are_kept() -> None:
    busy = {"$ref": "#/components/responses/busy"}
    mine = {"description": "mine", "headers": {"retry-after": {"description": "mine"}}}
    key = {"$ref": "#/components/parameters/key"}
    operation = {"parameters": [key], "responses": {"409": busy, "503": mine}}
    found: dict[str, Any] = {
        "paths": {"/": {"post": deepcopy(operation)}},
        "components": {"parameters": {"key": {"in": "header", "name": "idempotency-key"}}},
    }
    functions = {"post": [idempotent(make_order)]}
    complete(found, {"/": functions, "/other/": functions})
    completed = found["paths"]["/"]["post"]
    assert completed["parameters"] == [key]
    assert completed["responses"]["409"] == busy
    unavailable = completed["responses"]["503"]
    assert (unavailable["description"], unavailable["headers"]["retry-after"]) == (
        "mine",
        {"description": "mine"},
    )
    assert "Retry-After" not in unavailable["headers"]
    assert [*unavailable["content"]] == ["application/problem+json"]
    assert [*found["paths"]] == ["/"]


def make_order(request: HttpRequest) -> JsonResponse:
    return JsonResponse({})


@pytest.mark.slow
@given(st.from_regex(re.compile(BARE_KEY), fullmatch=True).filter(lambda key: len(key) <= 255))
def test_each_key_that_the_pattern_allows_is_valid(key: str) -> None:
    assert parse_key(key) == key

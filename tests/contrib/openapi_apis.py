"""The same locked and idempotent operations in REST framework and in django-ninja, with schemas."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import ninja
from asgiref.sync import sync_to_async
from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.test import override_settings
from django.urls import URLPattern, URLResolver, include, path
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.settings import patched_settings
from drf_spectacular.utils import extend_schema, inline_serializer
from ninja.decorators import decorate_view
from rest_framework import serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter
from rest_framework.viewsets import ViewSet

from redlock_django import idempotent, lock_resource
from redlock_django.contrib.drf import LockAPIMixin
from redlock_django.contrib.ninja import complete_schema

HOOK = "redlock_django.contrib.spectacular.hook"
during: list[Callable[[], None]] = []
"""Called once while a view runs."""


def everyone(request: HttpRequest, **_: Any) -> str:
    """Return one owner of all keys."""
    return "everyone"


def run() -> None:
    """Call what a test wants to happen while a view runs."""
    while during:
        during.pop()()


locked = lock_resource("order:<int:pk>")
required = idempotent(required=True, anonymous_scope=everyone)
optional = idempotent(anonymous_scope=everyone)
limited = lock_resource("export", limit=2, status=429, methods=["POST"])
for_events = idempotent(
    key=lambda request, **_: json.loads(request.body).get("id"), scope="provider"
)

Paid = inline_serializer("Paid", {"paid": serializers.IntegerField()})
TooLarge = inline_serializer("TooLarge", {"limit": serializers.IntegerField()})


# @extend_schema reads the setting when it decorates.
with_auto_schema = override_settings(
    REST_FRAMEWORK={"DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema"}
)

with with_auto_schema:

    class Orders(LockAPIMixin, ViewSet):
        authentication_classes = ()
        schema = AutoSchema()

        @extend_schema(operation_id="show", request=None, responses=Paid, parameters=[])
        def retrieve(self, request: Request, pk: int) -> Response:
            return Response({"paid": pk})

        @extend_schema(operation_id="pay", request=None, responses={201: Paid, 413: TooLarge})
        @action(detail=True, methods=["post"])
        @required
        @locked
        def pay(self, request: Request, pk: int) -> Response:
            run()
            if "stream" in request.GET:
                return StreamingHttpResponse([b"{}"], status=201)
            return Response({"paid": pk}, status=201)

        @extend_schema(operation_id="optional", request=None, responses={200: Paid})
        @action(detail=True, methods=["post"])
        @optional
        def optional(self, request: Request, pk: int) -> Response:
            run()
            return Response({"paid": pk})

        @extend_schema(operation_id="export", request=None, responses={200: Paid})
        @action(detail=True, methods=["post", "put"])
        @limited
        def export(self, request: Request, pk: int) -> Response:
            return Response({"paid": pk})

        @extend_schema(operation_id="event", request=None, responses={200: Paid})
        @action(detail=True, methods=["post"])
        @for_events
        def event(self, request: Request, pk: int) -> Response:
            return Response({"paid": pk})


def rest_framework_urls() -> list[URLPattern | URLResolver]:
    """Return URL patterns of the operations in REST framework."""
    router = SimpleRouter(use_regex_path=False)
    router.register("orders", Orders, basename="order")
    return [path("", include(router.urls))]


def rest_framework_schema(urlconf: str | None = None, **settings: Any) -> Any:
    """Return the schema of REST framework's operations, as a client gets it."""
    hooks = ["drf_spectacular.hooks.postprocess_schema_enums", HOOK]
    with patched_settings({"POSTPROCESSING_HOOKS": hooks, **settings}):
        generator: Any = SchemaGenerator
        result = generator(urlconf=urlconf).get_schema(request=None, public=True)
        return json.loads(json.dumps(result))


class PaidSchema(ninja.Schema):
    paid: int


class TooLargeSchema(ninja.Schema):
    limit: int


def ninja_api(name: str, *, is_async: bool) -> ninja.NinjaAPI:
    """Return an API with the operations."""
    api = complete_schema(ninja.NinjaAPI(urls_namespace=name))

    def add(
        route: str, *decorators: Any, methods: tuple[str, ...] = ("POST",), **options: Any
    ) -> None:
        def sync_view(request: HttpRequest, pk: int) -> HttpResponse:
            run()
            if "stream" in request.GET:
                return StreamingHttpResponse([b"{}"], status=201)  # type: ignore[return-value]
            return JsonResponse({"paid": pk}, status=201 if route == "pay" else 200)

        async def async_view(request: HttpRequest, pk: int) -> HttpResponse:
            return await sync_to_async(sync_view)(request, pk)

        view: Any = async_view if is_async else sync_view
        view.__name__ = route
        for decorator in reversed(decorators):
            view = decorator(view)
        api.api_operation(list(methods), f"/orders/{{pk}}/{route}/", operation_id=route, **options)(
            view
        )

    add("show", methods=("GET",), response=PaidSchema)
    add("pay", required, locked, response={201: PaidSchema, 413: TooLargeSchema})
    add("optional", optional, response=PaidSchema)
    add("export", decorate_view(limited), methods=("POST", "PUT"), response=PaidSchema)
    add("event", for_events, response=PaidSchema)
    return api


def ninja_schema(api: ninja.NinjaAPI, **arguments: Any) -> Any:
    """Return the schema of an API of django-ninja, as a client gets it."""
    return json.loads(json.dumps(api.get_openapi_schema(**arguments)))

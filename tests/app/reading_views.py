"""Views of every kind that return the value `order` of a request, as their frameworks read it."""

# No `from __future__ import annotations`: django-ninja reads the annotations of its functions.
# ruff: noqa: I002

import json
from collections.abc import Callable
from typing import Any

import ninja
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils.decorators import method_decorator
from django.views.generic import View
from ninja.parser import Parser
from rest_framework.decorators import action, api_view, parser_classes
from rest_framework.negotiation import DefaultContentNegotiation
from rest_framework.parsers import FormParser, JSONParser, MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from redlock_django import LockResourceMixin, lock_resource, resource
from redlock_django.contrib.drf import LockAPIMixin

by_json = lock_resource("order:<int:json:order>")
by_form = lock_resource("order:<int:post:order>")


def read_json(request: HttpRequest) -> HttpResponse:
    return JsonResponse({"order": json.loads(request.body)["order"]})


async def aread_json(request: HttpRequest) -> HttpResponse:
    return read_json(request)


def read_form(request: HttpRequest) -> HttpResponse:
    return JsonResponse({"order": request.POST["order"]})


async def aread_form(request: HttpRequest) -> HttpResponse:
    return read_form(request)


def class_view(read: Callable[[HttpRequest], HttpResponse]) -> Any:
    class Read(View):
        def post(self, request: HttpRequest) -> HttpResponse:
            return read(request)

    return Read


def plain_views(key: str) -> dict[str, Any]:
    read, aread = (read_json, aread_json) if key == "json" else (read_form, aread_form)
    lock_it = by_json if key == "json" else by_form
    mixed: Any = type(
        "Mixed", (LockResourceMixin, class_view(read)), {"lock_key": f"order:<int:{key}:order>"}
    )
    return {
        "function": lock_it(read),
        "async function": lock_it(aread),
        "as_view": lock_it(class_view(read).as_view()),
        "dispatch": method_decorator(lock_it, name="dispatch")(class_view(read)).as_view(),
        "handler": method_decorator(lock_it, name="post")(class_view(read)).as_view(),
        "mixin": mixed.as_view(),
        "rule": read,
    }


class CamelCaseParser(JSONParser):
    """A parser of the site: `theOrder` and `order` are one name, and the last one wins."""

    def parse(self, *args: Any, **kwargs: Any) -> Any:
        parsed = super().parse(*args, **kwargs)
        return {"order" if name == "theOrder" else name: parsed[name] for name in parsed}


class FirstParser(DefaultContentNegotiation):
    """Ignores the Content-Type, as in REST framework's documentation."""

    def select_parser(self, request: Request, parsers: Any) -> Any:
        return parsers[0]


def rest_view(lock_it: Any, parsers: Any, **attributes: Any) -> Any:
    class Read(LockAPIMixin, APIView):
        parser_classes = parsers

        @lock_it
        def post(self, request: Request) -> Response:
            return Response({"order": request.data["order"]})

    for name, value in attributes.items():
        setattr(Read, name, value)
    return Read.as_view()


def rest_action(lock_it: Any) -> Any:
    class Orders(LockAPIMixin, ViewSet):
        parser_classes = (JSONParser, FormParser, MultiPartParser)

        @action(detail=False, methods=["post"])
        @lock_it
        def pay(self, request: Request) -> Response:
            return Response({"order": request.data["order"]})

    return Orders.as_view({"post": "pay"})


def rest_function(lock_it: Any) -> Any:
    @api_view(["POST"])
    @parser_classes([JSONParser, FormParser, MultiPartParser])
    @lock_it
    def read(request: Request) -> Response:
        return Response({"order": request.data["order"]})

    return read


def rest_views(key: str) -> dict[str, Any]:
    lock_it = by_json if key == "json" else by_form
    return {
        "REST view": rest_view(lock_it, (JSONParser, FormParser, MultiPartParser)),
        "REST view, forms first": rest_view(lock_it, (FormParser, MultiPartParser, JSONParser)),
        "REST action": rest_action(lock_it),
        "REST function": rest_function(lock_it),
        "REST view, camel case": rest_view(lock_it, (CamelCaseParser, FormParser, MultiPartParser)),
    }


class Order(ninja.Schema):
    order: int


class CamelCaseApi(Parser):
    def parse_body(self, request: HttpRequest) -> Any:
        parsed = super().parse_body(request)
        return {"order" if name == "theOrder" else name: parsed[name] for name in parsed}


def ninja_view(kind: str) -> Any:
    parser = CamelCaseApi() if "camel" in kind else None
    api = ninja.NinjaAPI(urls_namespace=kind.replace(" ", "-"), parser=parser)

    def by_name(request: HttpRequest, data: Order) -> str:
        return resource("order:<int:pk>", pk=data.order)

    match kind:
        case "ninja async":

            @api.post("/")
            @by_json
            async def aread(request: HttpRequest, data: Order) -> dict[str, int]:
                return {"order": data.order}

        case "ninja form":

            @api.post("/")
            @by_form
            def form(request: HttpRequest, data: ninja.Form[Order]) -> dict[str, int]:
                return {"order": data.order}

        case "ninja callable":

            @api.post("/")
            @lock_resource(by_name)
            def named(request: HttpRequest, data: Order) -> dict[str, int]:
                return {"order": data.order}

        case _:

            @api.post("/")
            @by_json
            def read(request: HttpRequest, data: Order) -> dict[str, int]:
                return {"order": data.order}

    return api.urls


NINJA = ("ninja", "ninja async", "ninja camel", "ninja callable")
JSON_ROWS = (*plain_views("json"), *rest_views("json"), *NINJA)
FORM_ROWS = (*plain_views("post"), *rest_views("post"), "ninja form")

"""One webhook in every kind of view: it creates an order for each event that it gets."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from typing import Any

import ninja
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import Client
from django.utils.decorators import method_decorator
from django.views.decorators.csrf import csrf_exempt
from django.views.generic import View
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from redlock_django import IdempotentMixin, idempotent
from redlock_django.contrib.drf import LockAPIMixin
from testproject.shop.models import Order

Decorator = Callable[[Any], Any]
JSON = "application/json"
EVENT: dict[str, Any] = {"id": "evt_1", "data": {"object": {"id": "sub_7"}}}
_number = count()  # older versions of django-ninja want a namespace for each API


def event_id(request: HttpRequest, **_: Any) -> Any:
    """Return the id in the body of an event."""
    return json.loads(request.body).get("id")


STRIPE: dict[str, Any] = {"key": event_id, "scope": "stripe"}


def receive(request: HttpRequest, **_: Any) -> HttpResponse:
    """Create an order, and show that the body can still be read."""
    Order.objects.create(number=f"A-{Order.objects.count() + 1}", total=1)
    return JsonResponse({"body": request.body.decode(), "orders": Order.objects.count()})


async def areceive(request: HttpRequest, **_: Any) -> HttpResponse:
    number = await Order.objects.acount() + 1
    await Order.objects.acreate(number=f"A-{number}", total=1)
    return JsonResponse({"body": request.body.decode(), "orders": number})


def _function(view: Any, decorate: Decorator) -> Any:
    # A new function each time, because django-ninja writes attributes to it.
    if view is areceive:

        async def ahook(request: HttpRequest) -> HttpResponse:
            return await areceive(request)

        return decorate(ahook)

    def hook(request: HttpRequest) -> HttpResponse:
        return receive(request)

    return decorate(hook)


def _class(view: Any) -> type[View]:
    class Sync(View):
        def post(self, request: HttpRequest, **_: Any) -> HttpResponse:
            return receive(request)

    class Async(View):
        async def post(self, request: HttpRequest, **_: Any) -> HttpResponse:
            return await areceive(request)

    return Async if view is areceive else Sync


def _mixed(view: Any, options: dict[str, Any]) -> Any:
    mixed: Any = type("Mixed", (IdempotentMixin, _class(view)), {"idempotent_options": options})
    return mixed.as_view()


def _rest(decorate: Decorator) -> Any:
    class Hook(LockAPIMixin, APIView):
        authentication_classes = ()

        @decorate
        def post(self, request: Request) -> Response:
            Order.objects.create(number=f"A-{Order.objects.count() + 1}", total=1)
            return Response({"body": json.dumps(request.data), "orders": Order.objects.count()})

    return Hook.as_view()


def _ninja(view: Any, decorate: Decorator) -> Any:
    api = ninja.NinjaAPI(urls_namespace=f"hooks-{next(_number)}")
    api.post("/")(_function(view, decorate))
    return api


def views_of(**options: Any) -> dict[str, Any]:
    """Return a view of each kind with `@idempotent(**options)`."""
    decorate = idempotent(**options)
    return {
        "function": csrf_exempt(_function(receive, decorate)),
        "async function": csrf_exempt(_function(areceive, decorate)),
        "as_view": csrf_exempt(decorate(_class(receive).as_view())),
        "async as_view": csrf_exempt(decorate(_class(areceive).as_view())),
        "dispatch": method_decorator(decorate, name="dispatch")(_class(receive)).as_view(),
        "async dispatch": method_decorator(decorate, name="dispatch")(_class(areceive)).as_view(),
        "mixin": _mixed(receive, options),
        "async mixin": _mixed(areceive, options),
        "REST": _rest(decorate),
        "ninja": _ninja(receive, decorate),
        "async ninja": _ninja(areceive, decorate),
    }


ROWS = (
    "function", "async function", "as_view", "async as_view", "dispatch", "async dispatch",
    "mixin", "async mixin", "REST", "ninja", "async ninja",
)  # fmt: skip


def send(body: Any = EVENT, url: str = "/", *, content_type: str = JSON, **headers: str) -> Any:
    """Send an event as its provider does: without a cookie, a user or an Idempotency-Key."""
    client = Client(raise_request_exception=False)
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    sent = {"webhook-id": "msg_1", **{name.replace("_", "-"): headers[name] for name in headers}}
    return client.generic("POST", url, data, content_type=content_type, headers=sent)

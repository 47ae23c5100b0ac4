"""One increment in every kind of view, and every combination of decorators."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import ninja
from asgiref.sync import sync_to_async
from django.db import connection
from django.http import HttpRequest, JsonResponse
from django.urls import path
from django.utils.decorators import method_decorator
from django.views.generic import View
from rest_framework.request import Request
from rest_framework.views import APIView

from redlock_django import idempotent, lock_resource
from redlock_django.contrib.drf import LockAPIMixin

Decorate = Callable[[Any], Any]

locked = lock_resource("counter:<int:pk>")
deduplicated = idempotent(anonymous_scope=lambda request, **_: "all", wait=20)

DECORATES: dict[str, Decorate] = {
    "both": lambda view: deduplicated(locked(view)),
    "lock-only": locked,
    "idempotent-only": deduplicated,
}


def increment(pk: int) -> JsonResponse:
    """Read, wait, write, and note the effect."""
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO effect (counter) VALUES (%s)", [pk])
        cursor.execute("SELECT value FROM counter WHERE id = %s", [pk])
        value = cursor.fetchone()[0]
        time.sleep(0.001)
        cursor.execute("UPDATE counter SET value = %s WHERE id = %s", [value + 1, pk])
    return JsonResponse({"value": value + 1})


def function(decorate: Decorate) -> Any:
    """Return a function."""

    def view(request: HttpRequest, pk: int) -> JsonResponse:
        return increment(pk)

    return path("<int:pk>/", decorate(view))


def dispatch(decorate: Decorate) -> Any:
    """Return a class whose `dispatch` is decorated."""

    @method_decorator(decorate, name="dispatch")
    class Dispatch(View):
        def post(self, request: HttpRequest, pk: int) -> JsonResponse:
            return increment(pk)

    return path("<int:pk>/", Dispatch.as_view())


def handler(decorate: Decorate) -> Any:
    """Return a class whose handler is decorated."""

    class Handler(View):
        @decorate
        def post(self, request: HttpRequest, pk: int) -> JsonResponse:
            return increment(pk)

    return path("<int:pk>/", Handler.as_view())


def rest(decorate: Decorate) -> Any:
    """Return a view of REST framework with the mixin."""

    class Rest(LockAPIMixin, APIView):
        authentication_classes = ()

        @decorate
        def post(self, request: Request, pk: int) -> JsonResponse:
            return increment(pk)

    return path("<int:pk>/", Rest.as_view())


def bare_rest(decorate: Decorate) -> Any:
    """Return a view of REST framework without the mixin."""

    class BareRest(APIView):
        authentication_classes = ()

        @decorate
        def post(self, request: Request, pk: int) -> JsonResponse:
            return increment(pk)

    return path("<int:pk>/", BareRest.as_view())


numbers = itertools.count()


def ninja_function(decorate: Decorate) -> Any:
    """Return an operation of django-ninja."""
    api = ninja.NinjaAPI(urls_namespace=f"ninja-{next(numbers)}")

    def view(request: HttpRequest, pk: int) -> JsonResponse:
        return increment(pk)

    api.post("/{pk}/")(decorate(view))
    return path("", api.urls)


def asynchronous(decorate: Decorate) -> Any:
    """Return an async function."""

    async def view(request: HttpRequest, pk: int) -> JsonResponse:
        return await sync_to_async(increment)(pk)

    return path("<int:pk>/", decorate(view))

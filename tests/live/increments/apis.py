"""The same increment in Django REST framework and django-ninja."""

from __future__ import annotations

from typing import Any

import ninja
from django.http import HttpRequest, HttpResponse
from django.urls import path
from ninja.decorators import decorate_view
from rest_framework.request import Request
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from redlock_django.contrib.drf import LockAPIMixin
from tests.live.increments.views import increment, locked


class Api(APIView):
    """Locked inside the transaction that Django has opened."""

    authentication_classes = ()

    @locked
    def post(self, request: Request, pk: int) -> HttpResponse:
        """Increment."""
        return increment(pk)


class MixinApi(LockAPIMixin, APIView):
    """Locked before its transaction begins."""

    authentication_classes = ()

    @locked
    def post(self, request: Request, pk: int) -> HttpResponse:
        """Increment."""
        return increment(pk)


class Actions(ViewSet):
    """An action without the mixin."""

    authentication_classes = ()

    @locked
    def increment(self, request: Request, pk: int) -> HttpResponse:
        """Increment."""
        return increment(pk)


class MixinActions(LockAPIMixin, Actions):
    """An action with the mixin."""


api = ninja.NinjaAPI()


@api.post("/{pk}/")
@decorate_view(locked)
def ninja_view(request: HttpRequest, pk: int) -> dict[str, Any]:
    """Increment."""
    increment(pk)
    return {}


@api.post("/function/{pk}/")
@locked
def ninja_function(request: HttpRequest, pk: int) -> dict[str, Any]:
    """Increment, locked after authentication and validation."""
    increment(pk)
    return {}


urlpatterns = [
    path("drf/<int:pk>/", Api.as_view()),
    path("drf-mixin/<int:pk>/", MixinApi.as_view()),
    path("drf-action/<int:pk>/", Actions.as_view({"post": "increment"})),
    path("drf-mixin-action/<int:pk>/", MixinActions.as_view({"post": "increment"})),
    path("ninja/", api.urls),
]

"""The body of a request is read before its lock is acquired."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.files.uploadhandler import MemoryFileUploadHandler
from django.db import connection
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import Client
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from pytest_django import Settings
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from redlock_django import lock_resource
from redlock_django.contrib.drf import LockAPIMixin

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("memory")]
Urls = Callable[..., None]
locked = lock_resource("order:7")


@csrf_exempt
@locked
def view(request: HttpRequest) -> HttpResponse:
    return JsonResponse(json.loads(request.body))


@csrf_exempt
@locked
def streaming(request: HttpRequest) -> HttpResponse:
    return HttpResponse(request.read(4) + request.read())


@csrf_exempt
@locked
def uploading(request: HttpRequest) -> HttpResponse:
    request.upload_handlers = [MemoryFileUploadHandler(request)]
    file: Any = request.FILES["file"]
    return HttpResponse(file.read() + request.POST["name"].encode())


@csrf_exempt
@locked
async def asynchronous(request: HttpRequest) -> HttpResponse:
    return JsonResponse(json.loads(request.body))


class Api(LockAPIMixin, APIView):  # type: ignore[misc]
    authentication_classes = ()

    @locked
    def post(self, request: Request) -> Response:
        return Response(request.data)


class Body(io.BytesIO):
    """A body that arrives slowly: it notes whether the lock is free while it is read."""

    def __init__(self, content: bytes, is_free: Callable[[str], bool]) -> None:
        super().__init__(content)
        self.free: list[bool] = []
        self._is_free = is_free

    def read(self, size: int | None = -1) -> bytes:
        self.free.append(self._is_free("order:7"))
        return super().read(size)


def post(body: Body, declared: int) -> Any:
    extra = {
        "wsgi.input": body,
        "CONTENT_LENGTH": str(declared),
        "CONTENT_TYPE": "application/json",
    }
    sent: Any = Client().generic
    return sent("POST", "/", **extra)


@pytest.mark.attack
@pytest.mark.parametrize("kind", [view, streaming, asynchronous, Api.as_view()])
def test_the_lock_is_free_while_the_body_arrives(
    urls: Urls, is_free: Callable[[str], bool], monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", False)
    urls(path("", kind))
    body = Body(b'{"total": 7}', is_free)
    response = post(body, 12)
    assert (response.status_code, json.loads(response.content)) == (200, {"total": 7})
    assert set(body.free) == {True}


def test_an_upload_keeps_its_handlers(urls: Urls) -> None:
    urls(path("", uploading))
    file = SimpleUploadedFile("a.txt", b"content ")
    assert Client().post("/", {"file": file, "name": "ann"}).content == b"content ann"


def test_a_large_upload_is_left_to_the_view(
    settings: Settings, urls: Urls, is_free: Callable[[str], bool]
) -> None:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 10
    urls(path("", streaming))
    body = Body(b"x" * 20, is_free)
    assert post(body, 20).content == b"x" * 20
    assert set(body.free) == {False}


@pytest.mark.parametrize("kind", [view, asynchronous, Api.as_view()])
def test_half_a_body_is_refused_before_the_lock(
    urls: Urls, is_free: Callable[[str], bool], monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", False)
    urls(path("", kind))
    response = post(Body(b"{}", is_free), 12)
    assert response.status_code == 400
    assert is_free("order:7")

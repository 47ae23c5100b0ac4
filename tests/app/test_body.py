"""The body of a request is read before its lock is acquired."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.files.uploadhandler import MemoryFileUploadHandler
from django.http import HttpResponse, JsonResponse
from django.test import Client
from pytest_django import Settings

from tests.app.conftest import Urls
from tests.inspecting import is_free
from tests.views.kinds import KINDS, body

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("memory")]


READS: dict[str, Callable[[Any], Any]] = {
    "body": lambda request: JsonResponse(json.loads(request.body)),
    "read": lambda request: HttpResponse(request.read(4) + request.read()),
    "data": lambda request: JsonResponse(request.data),
}


def uploading(request: Any) -> HttpResponse:
    request.upload_handlers = [MemoryFileUploadHandler(request)]
    file: Any = request.FILES["file"]
    return HttpResponse(file.read() + request.POST["name"].encode())


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
    return sent("POST", "/7/", **extra)


@pytest.fixture
def serve(urls: Urls, plain: None) -> Callable[..., None]:
    """Return a function that makes a view of this kind, which does this, the whole site."""

    def put(work: Callable[[Any], Any], kind: str = "function") -> None:
        body[:] = [work]
        urls(KINDS[kind].make())

    return put


@pytest.mark.attack
@pytest.mark.parametrize(
    ("kind", "how"),
    [
        ("function", "body"),
        ("function", "read"),
        ("async function", "body"),
        ("REST handler", "data"),
    ],
)
def test_the_lock_is_free_while_the_body_arrives(
    serve: Callable[..., None], kind: str, how: str
) -> None:
    serve(READS[how], kind)
    sent = Body(b'{"total": 7}', is_free)
    response = post(sent, 12)
    assert (response.status_code, json.loads(response.content)) == (200, {"total": 7})
    assert set(sent.free) == {True}


def test_an_upload_keeps_its_handlers(serve: Callable[..., None]) -> None:
    serve(uploading)
    file = SimpleUploadedFile("a.txt", b"content ")
    assert Client().post("/7/", {"file": file, "name": "ann"}).content == b"content ann"


def test_a_large_upload_is_left_to_the_view(settings: Settings, serve: Callable[..., None]) -> None:
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 10
    serve(READS["read"])
    sent = Body(b"x" * 20, is_free)
    assert post(sent, 20).content == b"x" * 20
    assert set(sent.free) == {False}


@pytest.mark.parametrize("kind", ["function", "async function", "REST handler"])
def test_half_a_body_is_refused_before_the_lock(serve: Callable[..., None], kind: str) -> None:
    serve(READS["data" if "REST" in kind else "body"], kind)
    response = post(Body(b"{}", is_free), 12)
    assert response.status_code == 400
    assert is_free("order:7")

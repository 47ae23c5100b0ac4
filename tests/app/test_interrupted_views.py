"""A signal that raises while a request holds a lock: wherever it strikes, the lock is released.

Python handles signals where a function begins and where a function in C returns. The tests raise
KeyboardInterrupt at each such moment of a request, from the one at which its lock is held until
its release begins: what happens inside of a release is shown by the tests of locks.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import AsyncIterator, Callable
from types import FrameType
from typing import Any

import pytest
from django.core.handlers.base import BaseHandler
from django.db import connections
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.template import engines
from django.template.response import TemplateResponse
from django.test import AsyncRequestFactory, RequestFactory
from django.urls import path
from django.utils.decorators import method_decorator
from django.views.generic import View
from pytest_django import Settings
from rest_framework.response import Response
from rest_framework.views import APIView

from redlock_django import LockResourceMixin, hold, idempotent, lock_resource
from redlock_django.contrib.drf import LockAPIMixin
from redlock_django.locking.caller import held_leases
from redlock_django.locking.services import locks
from tests.app.conftest import LOCK_MIDDLEWARE, MEMORY
from tests.waiting import until

KEY = "order:<int:pk>"
HELD = "order:7"
pytestmark = pytest.mark.django_db(transaction=True)
locked, waits = lock_resource(KEY), lock_resource(KEY, wait=5)


ENDS = (
    "Lock.release",
    "Lock.arelease",
    "Lock.__exit__",
    "Lock.__aexit__",
    "ExitStack.__exit__",
    "AsyncExitStack.__aexit__",
)
"""The functions with which a release begins. Before them, nothing could handle an interrupt."""


class Strike:
    """Raise KeyboardInterrupt at one of the moments while a lock is held; counted from 0."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.seen = 0
        self.ended = False
        self.where = ""

    def run(self, work: Callable[[], object]) -> None:
        """Call `work`, and interrupt it; `where` is set if there was such a moment."""
        gc.disable()  # Python swallows what is raised in a finalizer that the collector calls
        sys.setprofile(self._event)
        try:
            work()
        except KeyboardInterrupt:
            assert self.where
        else:
            assert not self.where, f"an interrupt was swallowed: {self.where}"
        finally:
            sys.setprofile(None)
            gc.enable()

    def _event(self, frame: FrameType, event: str, argument: object) -> None:
        if event not in ("call", "c_return") or self.ended:
            return
        file = frame.f_code.co_filename
        if not ("/redlock_django/" in file or "contextlib" in file) or not is_held():
            return  # an interrupted event loop does not run on
        if event == "call" and frame.f_code.co_qualname in ENDS:
            self.ended = True
            return
        if self.seen == self.at:
            self.where = f"{event} in {frame.f_code.co_qualname}, line {frame.f_lineno}"
            raise KeyboardInterrupt
        self.seen += 1


def is_held() -> bool:
    """Return whether this process holds the lock."""
    return bool(held_leases(locks["default"].backend, HELD))


def answer(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
    assert is_held()
    return HttpResponse("done")


async def aanswer(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
    assert is_held()
    await asyncio.sleep(0)
    return HttpResponse("done")


class Plain(View):
    def get(self, request: HttpRequest, pk: int) -> HttpResponse:
        return answer(request)


class Async(View):
    async def get(self, request: HttpRequest, pk: int) -> HttpResponse:
        return await aanswer(request)


class Mixed(LockResourceMixin, Plain):
    lock_key = KEY


class AsyncMixed(LockResourceMixin, Async):
    lock_key = KEY


@method_decorator(locked, name="dispatch")
class Decorated(Plain):
    """A class whose dispatch is locked."""


class Api(LockAPIMixin, APIView):  # type: ignore[misc]
    @locked
    def get(self, request: Any, pk: int) -> Response:
        assert is_held()
        return Response({"done": pk})


def stream(request: HttpRequest, pk: int) -> StreamingHttpResponse:
    return StreamingHttpResponse(iter([b"a", b"b"]))


async def astream(request: HttpRequest, pk: int) -> StreamingHttpResponse:
    async def content() -> AsyncIterator[bytes]:
        yield b"a"

    return StreamingHttpResponse(content())


def template(request: HttpRequest, pk: int) -> TemplateResponse:
    return TemplateResponse(request, engines["django"].from_string("done"))


class ChangesTemplates:
    """A middleware for which Django renders a response after the view: the request has the lock."""

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> Any:
        return self.get_response(request)

    def process_template_response(self, request: HttpRequest, response: Any) -> Any:
        return response


def by_function(request: HttpRequest, pk: int) -> HttpResponse:
    return hold(KEY)(lambda pk: HttpResponse("done"))(pk)


SYNC: dict[str, Any] = {
    "function": locked(answer),
    "function that may wait": waits(answer),
    "dispatch": Decorated.as_view(),
    "as_view": locked(Plain.as_view()),
    "mixin": Mixed.as_view(),
    "rule": answer,
    "REST framework": Api.as_view(),
    "idempotent": idempotent(locked(answer)),
    "template": locked(template),
    "stream": locked(stream),
    "hold": by_function,
}
ASYNC: dict[str, Any] = {
    "function": locked(aanswer),
    "function that may wait": waits(aanswer),
    "as_view": locked(Async.as_view()),
    "mixin": AsyncMixed.as_view(),
    "rule": aanswer,
    "idempotent": idempotent(locked(aanswer)),
    "stream": locked(astream),
}


@pytest.fixture
def site(
    request: pytest.FixtureRequest,
    settings: Settings,
    urls: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Serve a view; with a rule if it has no lock of its own."""
    name, view = request.param
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", False)
    rules = [{"path": "orders/<int:pk>/", "key": KEY}] if name == "rule" else []
    settings.REDLOCK = {"default": {"BACKEND": MEMORY, "RULES": rules}}
    settings.MIDDLEWARE = [LOCK_MIDDLEWARE]
    if name == "template":
        settings.MIDDLEWARE += [f"{__name__}.ChangesTemplates"]
    urls(path("orders/<int:pk>/", view))


def strike_everywhere(ask: Callable[[], object]) -> int:
    ask()  # caches are filled: the number of events is the same for each request
    at = 0
    while True:
        strike = Strike(at)
        strike.run(ask)
        if not strike.where:
            return at
        # Before its TTL of 10 s is over.
        until(lambda: not is_held(), f"released after {strike.where} ({at})", seconds=8)
        at += 1


@pytest.mark.parametrize("site", SYNC.items(), ids=SYNC, indirect=True)
def test_at_every_event_of_a_request(site: None) -> None:
    handler = BaseHandler()
    handler.load_middleware()

    def ask() -> None:
        response = handler.get_response(RequestFactory().get("/orders/7/"))
        sys.setprofile(None)  # a stream is the server's from here on
        assert response.status_code == 200
        if not response.streaming:
            assert not is_held()
        response.close()

    assert strike_everywhere(ask) >= 10


@pytest.mark.parametrize("site", ASYNC.items(), ids=ASYNC, indirect=True)
def test_at_every_event_of_an_async_request(site: None) -> None:
    handler = BaseHandler()
    handler.load_middleware(is_async=True)

    async def one() -> None:
        response = await handler.get_response_async(AsyncRequestFactory().get("/orders/7/"))
        sys.setprofile(None)
        assert response.status_code == 200
        if not response.streaming:
            assert not is_held()
        response.close()

    assert strike_everywhere(lambda: asyncio.run(one())) > 10

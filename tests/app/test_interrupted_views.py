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
from functools import partial
from types import FrameType
from typing import Any

import pytest
from django.core.handlers.base import BaseHandler
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.template import engines
from django.template.response import TemplateResponse
from django.test import AsyncRequestFactory, RequestFactory
from django.urls import path
from django.views.generic import View
from pytest_django import Settings
from rest_framework.response import Response

from redlock_django import LockResourceMixin, hold, idempotent, lock_resource
from redlock_django.locking.caller import held_leases
from redlock_django.locking.services import locks
from tests.app.conftest import ADDS_CONTEXT, LOCK_MIDDLEWARE, MEMORY, Urls
from tests.views.kinds import KEY, KINDS, RECORDED, Kind, at, body
from tests.waiting import until

HELD = "order:7"
pytestmark = pytest.mark.django_db(transaction=True)
locked = lock_resource(KEY)


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


def answer(request: Any) -> Any:
    assert is_held()
    return HttpResponse("done")


def api(request: Any) -> Response:
    assert is_held()
    return Response({"done": 7})


async def aanswer(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
    assert is_held()
    await asyncio.sleep(0)
    return HttpResponse("done")


class Async(View):
    async def post(self, request: HttpRequest, pk: str) -> HttpResponse:
        return await aanswer(request)


class AsyncMixed(LockResourceMixin, Async):
    lock_key = KEY


def stream(request: Any) -> StreamingHttpResponse:
    return StreamingHttpResponse(iter([b"a", b"b"]))


async def astream(request: HttpRequest, pk: str) -> StreamingHttpResponse:
    async def content() -> AsyncIterator[bytes]:
        yield b"a"

    return StreamingHttpResponse(content())


def template(request: Any) -> TemplateResponse:
    return TemplateResponse(request, engines["django"].from_string("done"))


def by_function(request: HttpRequest, pk: str) -> HttpResponse:
    return hold(KEY)(lambda pk: HttpResponse("done"))(pk)


PLAIN = ("function", "dispatch", "as_view", "mixin", "rule")
SYNC: dict[str, tuple[Kind, Callable[[Any], Any]]] = {
    **{name: (KINDS[name], answer) for name in PLAIN},
    "REST handler": (KINDS["REST handler"], api),
    "function that may wait": (KINDS["function"], answer),
    "idempotent": (RECORDED["above a lock"], answer),
    "template": (KINDS["function"], template),
    "stream": (KINDS["function"], stream),
    "hold": (Kind(at(lambda: by_function)), answer),
}
ASYNC_VIEWS = {  # not those of tests/views, whose work is done in a thread, at any moment
    "function": locked(aanswer),
    "function that may wait": locked(aanswer),
    "as_view": locked(Async.as_view()),
    "mixin": AsyncMixed.as_view(),
    "rule": aanswer,
    "idempotent": idempotent(locked(aanswer)),
    "stream": locked(astream),
}
ASYNC = {
    name: (Kind(partial(path, "<str:pk>/", view, name="pay"), by_rule=name == "rule"), answer)
    for name, view in ASYNC_VIEWS.items()
}


@pytest.fixture
def site(request: pytest.FixtureRequest, settings: Settings, urls: Urls, plain: None) -> str:
    """Serve a view, with a rule if it has no lock of its own; return the method of its requests."""
    name, (kind, work) = request.param
    rules = [{"view": "pay", "key": KEY}] if kind.by_rule else []
    wait = 5 if "wait" in name else 0
    settings.REDLOCK = {"default": {"BACKEND": MEMORY, "RULES": rules, "WAIT": wait}}
    settings.MIDDLEWARE = [LOCK_MIDDLEWARE]
    if name == "template":
        settings.MIDDLEWARE += [ADDS_CONTEXT]
    body[:] = [work]
    urls(kind.make())
    # One that changes data is in a transaction; Django's own blocks stay open if interrupted.
    return "GET" if name == "idempotent" else "POST"


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
def test_at_every_event_of_a_request(site: str) -> None:
    handler = BaseHandler()
    handler.load_middleware()

    def ask() -> None:
        response = handler.get_response(RequestFactory().generic(site, "/7/"))
        sys.setprofile(None)  # a stream is the server's from here on
        assert response.status_code == 200
        if not response.streaming:
            assert not is_held()
        response.close()

    assert strike_everywhere(ask) >= 10


@pytest.mark.parametrize("site", ASYNC.items(), ids=ASYNC, indirect=True)
def test_at_every_event_of_an_async_request(site: str) -> None:
    handler = BaseHandler()
    handler.load_middleware(is_async=True)

    async def one() -> None:
        response = await handler.get_response_async(AsyncRequestFactory().generic(site, "/7/"))
        sys.setprofile(None)
        assert response.status_code == 200
        if not response.streaming:
            assert not is_held()
        response.close()

    assert strike_everywhere(lambda: asyncio.run(one())) > 10

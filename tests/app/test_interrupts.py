"""Signals that raise while a lock is acquired, handed on or held: the lock is released."""

from __future__ import annotations

import _thread
import asyncio
import gc
import signal
import sys
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from operator import methodcaller
from types import FrameType
from typing import Any

import pytest
from django.core.handlers.base import BaseHandler
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.template import engines
from django.template.response import TemplateResponse
from django.test import AsyncRequestFactory, RequestFactory
from pytest_django import Settings
from rest_framework.response import Response

from redlock_django import hold, lock, locks
from redlock_django.backends.memory.backend import MemoryBackend
from redlock_django.locking.caller import held_leases
from tests.app.conftest import ADDS_CONTEXT, LOCK_MIDDLEWARE, Configure, Urls
from tests.inspecting import free, look
from tests.live.test_locking_interrupts import Lines, Place
from tests.views.kinds import KEY, KINDS, RECORDED, Kind, at, body
from tests.waiting import until

HELD = "order:7"
pytestmark = pytest.mark.django_db(transaction=True)


class _Interrupting(weakref.ref[Any]):
    interrupt = staticmethod(_thread.interrupt_main)


class Tripwire:
    """A local variable: when the function that has it returns, a signal is pending.

    Python handles the signal in the caller, at the first instruction that looks for signals.
    """

    def __init__(self) -> None:
        self.reference = _Interrupting(self, methodcaller("interrupt"))
        kept.append(self.reference)


kept: list[Any] = []


@pytest.fixture
def trip(
    three_masters: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], None]]:
    """Return a function from which on each answer of the store is followed by an interrupt."""
    acquire, before = MemoryBackend.acquire, signal.getsignal(signal.SIGINT)

    def tripped(self: MemoryBackend, *arguments: Any) -> Any:
        answer = acquire(self, *arguments)
        wire = Tripwire()  # noqa: F841
        return answer

    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda: monkeypatch.setattr(MemoryBackend, "acquire", tripped)
    signal.signal(signal.SIGINT, before)
    assert kept, "the store was not asked"
    kept.clear()


def locks_left() -> Any:
    return look(locks["default"].backend, [HELD]).locks


@pytest.mark.parametrize("limit", [None, 1, 2])
def test_an_interrupt_as_the_store_returns_the_lease_leaves_no_lock(
    trip: Callable[[], None], limit: int | None
) -> None:
    lock(HELD).acquire().release()
    trip()
    with pytest.raises(KeyboardInterrupt):
        lock(HELD, limit=limit).acquire()
    assert not locks_left()


def test_an_interrupt_as_the_store_hands_a_lease_on_leaves_no_lock(
    trip: Callable[[], None],
) -> None:
    held = lock(HELD)
    with ExitStack() as stack:
        held.enter_in(stack)
        trip()
        with pytest.raises(KeyboardInterrupt):
            held.transfer(ttl=60)
    assert not locks_left()
    assert not held.locked


@pytest.mark.slow
@pytest.mark.usefixtures("three_masters")
def test_a_transfer_interrupted_at_every_line_ends_within_the_ttl_of_the_lock() -> None:
    # In a thread of its own: see `test_interrupted_at_every_line`.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(_interrupt_at_every_line).result()


def _interrupt_at_every_line() -> None:
    lines, visits = Lines(), Counter[Place]()
    _transfer(lines, None)
    visits |= lines.seen
    struck = 0
    for place, times in visits.items():
        for nth in {1, times}:
            try:
                struck += _transfer(lines, (place, nth))
            except AssertionError as error:
                raise AssertionError(f"after an interrupt at {place}, time {nth}") from error
    assert struck > 100


def _transfer(lines: Lines, wanted: tuple[Place, int] | None) -> bool:
    """Interrupt the transfer of a lock with a TTL of 10 s; return whether that struck."""
    held = lock(HELD, ttl=10).acquire()
    try:
        lines.run(lambda: held.transfer(ttl=60), wanted)
    except KeyboardInterrupt:
        found = locks_left()
        assert all((one.ttl or 0) <= 10 for one in found)
        assert held.locked is any(one.has_quorum for one in found), "it knows whether it holds"
        assert held.release() is bool(found)
    else:
        assert held.handed_on
        assert not lines.struck
        free(locks["default"].backend, HELD)
    assert not locks_left()
    return lines.struck


# While a request holds its lock. Python handles signals where a function begins and where a
# function in C returns. The tests raise KeyboardInterrupt at each such moment of a request, from
# the one at which its lock is held until its release begins: what happens inside of a release is
# shown by the tests of locks.


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


async def aanswer(request: Any) -> HttpResponse:
    assert is_held()
    await asyncio.sleep(0)
    return HttpResponse("done")


def stream(request: Any) -> StreamingHttpResponse:
    return StreamingHttpResponse(iter([b"a", b"b"]))


async def astream(request: Any) -> StreamingHttpResponse:
    async def content() -> AsyncIterator[bytes]:
        yield b"a"

    return StreamingHttpResponse(content())


def template(request: Any) -> TemplateResponse:
    return TemplateResponse(request, engines["django"].from_string("done"))


def by_function(request: HttpRequest, pk: str) -> HttpResponse:
    return hold(KEY)(lambda pk: HttpResponse("done"))(pk)


PLAIN = ("function", "dispatch", "as_view", "mixin", "rule")
ASYNC = ("async function", "async as_view", "async mixin", "async rule")
VIEWS: dict[str, tuple[Kind, Callable[[Any], Any]]] = {
    **{name: (KINDS[name], answer) for name in PLAIN},
    "REST handler": (KINDS["REST handler"], api),
    "function that may wait": (KINDS["function"], answer),
    "idempotent": (RECORDED["above a lock"], answer),
    "template": (KINDS["function"], template),
    "stream": (KINDS["function"], stream),
    "hold": (Kind(at(lambda: by_function)), answer),
    **{name: (KINDS[name], aanswer) for name in ASYNC},
    "async function that may wait": (KINDS["async function"], aanswer),
    "async idempotent": (RECORDED["async, above a lock"], aanswer),
    "async stream": (KINDS["async function"], astream),
}


@pytest.fixture(params=VIEWS)
def ask(
    request: pytest.FixtureRequest, settings: Settings, memory: Configure, urls: Urls, plain: None
) -> Callable[[], None]:
    """Serve a view, with a rule if it has no lock of its own; return a request of it."""
    name: str = request.param
    kind, work = VIEWS[name]
    wait = 5 if "wait" in name else 0
    memory(RULES=kind.rules, WAIT=wait)
    settings.MIDDLEWARE = [LOCK_MIDDLEWARE, *([ADDS_CONTEXT] if name == "template" else [])]
    body[:] = [work]
    urls(kind.make())
    # One that changes data is in a transaction; Django's own blocks stay open if interrupted.
    method = "GET" if "idempotent" in name else "POST"
    handler = BaseHandler()
    handler.load_middleware(is_async=kind.is_async)

    def end(response: Any) -> None:
        sys.setprofile(None)  # a stream is the server's from here on
        assert response.status_code == 200
        if not response.streaming:
            assert not is_held()
        response.close()

    def ask() -> None:
        end(handler.get_response(RequestFactory().generic(method, "/7/")))

    async def aask() -> None:
        end(await handler.get_response_async(AsyncRequestFactory().generic(method, "/7/")))

    return (lambda: asyncio.run(aask())) if kind.is_async else ask


def test_at_every_event_of_a_request(ask: Callable[[], None]) -> None:
    ask()  # caches are filled: the number of events is the same for each request
    at = 0
    while True:
        strike = Strike(at)
        strike.run(ask)
        if not strike.where:
            break
        # Before its TTL of 10 s is over.
        until(lambda: not is_held(), f"released after {strike.where} ({at})", seconds=8)
        at += 1
    assert at > 10

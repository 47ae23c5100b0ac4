"""The state that the package keeps with one request: locks that outlive its view, and its page.

It is used by the decorators of a view, which may have other decorators between them, and by
`LockMiddleware`, which releases the locks that outlive their view. The wrapper of `@idempotent`
puts a `Recorder` into `recorder`. The next call of a view takes it, and calls it inside the
transaction of the view.

A page may have a value for one visit, such as an idempotency key. Django's caches do not store such
a page, and its header is `Cache-Control: private, no-cache`. With `no-store`, a browser would load
the page again when its user goes back after submitting a form; with a new key, a second click would
be a second submission.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

from asgiref.sync import async_to_sync
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.utils.cache import patch_cache_control

if TYPE_CHECKING:
    from redlock_django.locking.lock import Lock

_ATTRIBUTE = "_redlock_state"
_HAS_MIDDLEWARE = "_redlock_middleware"


class Recorder(Protocol):
    """The hooks around the transaction of a view; they record the call and its response.

    An async view has no transaction, and its hooks are called in threads.
    """

    database: str | None
    """The database alias whose transaction the view must run in, or None for no particular one."""
    begun: bool
    """Set to True before the `begin` of an async view is called."""

    def begin(self, aliases: Sequence[str]) -> None:
        """Called right before the view, inside the transactions of these database aliases."""

    def finish(self, response: Any) -> None:
        """Called with the rendered response of the view, before COMMIT."""


class RequestState:
    """The state that the package keeps with one request; `RequestState.of` returns it."""

    has_middleware = False
    """True if the request came through LockMiddleware, which releases `locks`."""
    locks: Sequence[Lock] = ()
    """The locks that were handed over to the request, because they outlive their view."""
    single_use = False
    """True if the page contains a value for one visit, such as an idempotency key."""
    recording = False
    """True if a wrapper that records requests is running the view."""
    recorder: Recorder | None = None
    """The recorder for the next call of a view."""
    has_recorder = False
    """True if a call of a view has taken the recorder: the result of the view is recorded."""
    is_locked = False
    """True while a view of the request runs under its lock: none inside may be recorded."""
    on_answer: Callable[[Any], None] | None = None
    """Called with the response that leaves LockMiddleware, in a thread, before locks end."""
    _prepared: tuple[Exception, HttpResponse] | None = None

    @staticmethod
    def of(request: Any) -> RequestState:
        """Return the state of a request, and create it at the first call.

        A framework's request that wraps Django's has the state of Django's request.
        """
        request = getattr(request, "_request", request)
        state: RequestState | None = getattr(request, _ATTRIBUTE, None)
        if state is None:
            state = RequestState()
            state.has_middleware = getattr(request, _HAS_MIDDLEWARE, False)
            setattr(request, _ATTRIBUTE, state)
        return state

    @staticmethod
    def used(request: HttpRequest) -> RequestState | None:
        """Return the state of Django's request, or None if nothing has used it."""
        return getattr(request, _ATTRIBUTE, None)

    def take_recorder(self) -> Recorder | None:
        """Return the recorder, and remove it: it is for one call of a view."""
        recorder, self.recorder = self.recorder, None
        if recorder is not None:
            self.has_recorder = True
        return recorder

    def end_recording(self) -> None:
        """Forget the recorder, which is still there if a decorator has answered for the view."""
        self.recording = self.has_recorder = False
        self.recorder = None

    def prepare_answer(self, error: Exception, answer: HttpResponse) -> None:
        """Keep the answer to an error that is raised again, to roll back a transaction first."""
        self._prepared = (error, answer)

    def prepared_answer(self, error: Exception) -> HttpResponse | None:
        """Return the answer that was prepared for this error, or None."""
        if self._prepared is not None and self._prepared[0] is error:
            return self._prepared[1]
        return None

    def keep(self, lock: Lock) -> None:
        """Make a lock outlive its view: it belongs to the request from here on."""
        if lock not in self.locks:
            lock.detach()
            self.locks = (*self.locks, lock)

    def keep_for_stream(self, response: Any, request: Any, lock: Lock) -> None:
        """Make a lock outlive its view if the response streams, until it is closed."""
        if not isinstance(response, StreamingHttpResponse):
            return
        guard_stream(response, lock)
        lock.disown()  # this thread or task may serve another request before the stream ends
        if not self.has_middleware:
            call_on_close(response, request, self.release_locks)
        self.keep(lock)  # last: if a signal raises before, the caller releases the lock

    def release_locks(self) -> None:
        """Release the locks of the request; inside a running loop, do not wait for it."""
        while self.locks:
            lock = self.locks[-1]
            lock.release()
            # After it: see docs/explanation/interrupts.md. Signal receivers may have kept others.
            self.locks = tuple(other for other in self.locks if other is not lock)


request_attributes: dict[str, object] = {_HAS_MIDDLEWARE: True}
"""The attributes that `LockMiddleware` adds to every request; `apps.py` adds one."""


def call_on_close(response: Any, request: Any, function: Callable[[], object]) -> None:
    """Call a function when a response is closed, after its content is closed.

    A middleware may send another response instead, such as a 304, and then this one is never
    closed. Django closes the request together with the response that it sends, so the function is
    called then in any case; it may be called twice.
    """
    response._resource_closers.append(function)
    request = getattr(request, "_request", request)
    close = request.close

    def close_and_call() -> None:
        close()
        function()

    request.close = close_and_call


def guard_stream(response: StreamingHttpResponse, lock: Lock) -> None:
    """Make a stream raise LockLost at its next chunk once its lock is lost."""
    if response.is_async:
        response.streaming_content = _AsyncStream(response._iterator, lock)  # type: ignore[attr-defined]
    else:
        response.streaming_content = _guarded(response.streaming_content, lock)


def _ensure_held(lock: Lock) -> None:
    if not lock.handed_on:  # then the client that resumes it holds it
        lock.ensure_held()


def _guarded(content: Any, lock: Lock) -> Any:
    for chunk in content:
        _ensure_held(lock)
        yield chunk


class _AsyncStream:
    """An asynchronous stream that is closed together with its response.

    An async generator in its place would be closed only when the loop finalizes it.
    """

    def __init__(self, content: Any, lock: Lock) -> None:
        self._content = content
        self._lock = lock

    def __aiter__(self) -> _AsyncStream:
        return self

    async def __anext__(self) -> Any:
        chunk = await anext(self._content)
        _ensure_held(self._lock)
        return chunk

    def close(self) -> None:
        """Close the content while the lock is still held. `response.close()` calls this."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            async_to_sync(self._aclose)()
        # Only test clients close a response inside a loop, when the content is exhausted.

    async def _aclose(self) -> None:
        if hasattr(self._content, "aclose"):
            await self._content.aclose()


current_page: ContextVar[HttpRequest | None] = ContextVar("redlock_request", default=None)
"""The request whose page is being made, for `mark_single_use`.

Whoever sets it sets it back afterwards, without a token: a task may be closed in another context.
"""


def mark_single_use() -> None:
    """Mark the page that is being made; does nothing outside of a request."""
    request = current_page.get()
    if request is not None:
        RequestState.of(request).single_use = True
        # UpdateCacheMiddleware and @cache_page read it after the view.
        request._cache_update_cache = False  # type: ignore[attr-defined]


def forbid_caching(state: RequestState, response: Any) -> None:
    """Set the header of a page that was marked; a response that is not rendered yet, later."""
    if getattr(response, "is_rendered", True) is False:
        response.add_post_render_callback(lambda rendered: forbid_caching(state, rendered))
    elif state.single_use and isinstance(response, HttpResponseBase):
        patch_cache_control(response, private=True, no_cache=True)

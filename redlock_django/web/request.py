"""The values, the user and the body of a request, and the state that the package keeps with it.

If a client made the lock read one value and the view another, the view would change data without a
lock. So a request that could be read in two ways is refused.

`request.user` is the authority on the user, because everything that authenticates a request sets
it: Django's `login()` and `alogin()`, middleware for tokens or impersonation, REST framework.
Django's `request.auser()` reads the session and does not notice that `request.user` was replaced.

The state is used by the decorators of a view, which may have other decorators between them, and by
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
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from asgiref.sync import async_to_sync, iscoroutinefunction, sync_to_async
from django.conf import settings
from django.core.handlers.wsgi import WSGIRequest
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.request import HttpHeaders
from django.http.response import HttpResponseBase
from django.utils.cache import patch_cache_control

from redlock_django.exceptions import BadResource, IncompleteBody, InvalidRedlock

if TYPE_CHECKING:
    from redlock_django.locking.lock import Lock

# Values, the user and the body.

SOURCES = ("header", "get")
"""Where `request_value` finds values."""


def header_of(request: HttpRequest, name: str) -> str | None:
    """Return one header of a request, or None; `request.headers` copies all of them first."""
    value: str | None = request.META.get(HttpHeaders.to_wsgi_name(name))
    return value


def request_value(request: Any, source: str, name: str, label: str = "") -> str | None:
    """Return one value of a header or of the query, None if it is missing.

    `label` names the value in errors, instead of the source and the name. Raises BadResource for
    several values, of which the view might take another one.
    """
    request = getattr(request, "_request", request)
    values = request.GET.getlist(name) if source == "get" else [header_of(request, name)]
    if len(values) > 1:
        fault = f"it has {len(values)} values"
    elif source == "header" and "," in (values[0] or ""):  # as servers join two header lines
        fault = "the header has a comma, which separates several values"
    else:
        return values[0] if values else None
    raise BadResource(f"<{label or f'{source}:{name}'}>: {fault}")


_DJANGO = "django.contrib.auth.middleware"


def user_of_async_view(request: Any) -> Any:
    """Return the user of an async view's request, or None if nothing has set it.

    Call it in a thread. Raises InvalidRedlock if a middleware has replaced `request.auser` and not
    `request.user`.
    """
    user = getattr(request, "user", None)
    getattr(user, "is_authenticated", None)  # loads a lazy user, which may query the database
    auser = getattr(request, "auser", None)
    if auser is None or _reads_session(auser):
        return user
    replaced = async_to_sync(auser)()
    if user is not None and _identity(user) != _identity(replaced):
        raise InvalidRedlock(
            "request.user and request.auser() are different users. A middleware that sets "
            "request.auser must set request.user to the same user"
        )
    return replaced


def _reads_session(auser: Any) -> bool:
    """Return whether `request.auser` is the one that AuthenticationMiddleware has set."""
    return getattr(getattr(auser, "func", None), "__module__", "") == _DJANGO


def _identity(user: Any) -> tuple[object, ...]:
    # A lazy user reports the class of the user that it loads.
    return user.__class__, getattr(user, "is_authenticated", False), getattr(user, "pk", None)


async def acall_hook(hook: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return the result of a function of the site that is called for an async view.

    A coroutine function runs in the loop. A plain one may query the database, so it runs in a
    thread; what it returns may be awaitable, as that of a lambda.
    """
    call = hook if iscoroutinefunction(hook) else sync_to_async(hook)
    result = await call(*args, **kwargs)
    return await result if inspect.isawaitable(result) else result


LARGEST_READ = 2_621_440
"""Bytes of the largest body to read if DATA_UPLOAD_MAX_MEMORY_SIZE is None: Django's default."""


def declared_length(request: Any) -> int:
    """Return the Content-Length of a request in bytes, 0 if it has none."""
    try:
        return int(request.META.get("CONTENT_LENGTH") or 0)
    except ValueError:
        return 0  # as Django reads it


def read_body(request: Any) -> None:
    """Read a small body before a lock is acquired, so that a slow client does not hold the lock.

    A body over DATA_UPLOAD_MAX_MEMORY_SIZE (an upload of files) stays unread, because the view may
    stream it. Under ASGI the whole body has arrived before Django handles the request. Raises
    IncompleteBody if the connection was closed in the middle of the body.
    """
    if not request.META.get("CONTENT_LENGTH"):
        return  # as nearly all that only read
    request = getattr(request, "_request", request)
    declared = declared_length(request)
    if declared <= 0 or not isinstance(request, WSGIRequest) or vars(request).get("_read_started"):
        return
    if declared <= (settings.DATA_UPLOAD_MAX_MEMORY_SIZE or LARGEST_READ):
        request.body  # noqa: B018 - Django keeps it for the view, as POST or a stream too
        check_body_is_complete(request)


def check_body_is_complete(request: Any) -> None:
    """Raise IncompleteBody if a body that was read is shorter than its Content-Length.

    A WSGI server does not report that the client closed the connection in the middle of the body:
    Django sees the end of a shorter one. Call this after the body or the form was read; it reads
    nothing itself. Middleware that replaces a body by a shorter one has to set CONTENT_LENGTH.
    """
    request = getattr(request, "_request", request)
    read: int | None
    if hasattr(request, "_body"):
        read = len(request._body)
    else:
        # A form with files is parsed from Django's stream, whose position this is. Under ASGI there
        # is none: Django does not handle a request before its whole body has arrived.
        read = getattr(getattr(request, "_stream", None), "_pos", None)
    if read is not None and read < declared_length(request):
        raise IncompleteBody("the connection was closed before the whole body had arrived")


# The state.

_ATTRIBUTE = "_redlock_state"


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
    views_of_keys: Mapping[str, str] = MappingProxyType({})
    """The view that has used an idempotency key in this request, by the hash of the key."""
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
            setattr(request, _ATTRIBUTE, state)
        return state

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
            # After it: see docs/contributing/interrupts.md. Signal receivers may have kept others.
            self.locks = tuple(other for other in self.locks if other is not lock)


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


def mark_single_use(request: HttpRequest) -> None:
    """Mark the page of a request as one that no cache may store."""
    RequestState.of(request).single_use = True
    # UpdateCacheMiddleware and @cache_page read it after the view.
    request._cache_update_cache = False  # type: ignore[attr-defined]


def forbid_caching(state: RequestState, response: Any) -> None:
    """Set the header of a page that was marked; a response that is not rendered yet, later."""
    if getattr(response, "is_rendered", True) is False:
        response.add_post_render_callback(lambda rendered: forbid_caching(state, rendered))
    elif state.single_use and isinstance(response, HttpResponseBase):
        patch_cache_control(response, private=True, no_cache=True)

"""The state that the package keeps with one request.

It is used by the decorators of a view, which may have other decorators between them, and by
`LockMiddleware`, which releases the locks that outlive their view. An extension that records
requests, such as `@idempotent`, uses it in this order:

1. A lock decorator directly around the extension's wrapper does not acquire its lock. It leaves its
   options in `deferred_lock`, and the wrapper acquires that lock after it has looked at its record.
   With anything in between, which would run without the lock, it raises an error.
2. The wrapper puts a `Recorder` into `recorder`. The next locked call of a view takes it, and
   calls it inside the transaction of the view.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Protocol

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.utils.functional import SimpleLazyObject

from redlock_django.web.streams import call_on_close, guard_stream

if TYPE_CHECKING:
    from redlock_django.locking.lock import Lock
    from redlock_django.web.options import LockOptions

_ATTRIBUTE = "_redlock_state"
_HAS_MIDDLEWARE = "_redlock_middleware"


class Recorder(Protocol):
    """The hooks around the transaction of a view; they record the call and its response."""

    database: str | None
    """The database alias whose transaction the view must run in, or None for no particular one."""

    def begin(self, aliases: Sequence[str]) -> None:
        """Called right before the view, inside the transactions of these database aliases."""

    def finish(self, response: Any) -> None:
        """Called with the rendered response of the view, before COMMIT."""

    def committed(self) -> None:
        """Called after COMMIT; without a transaction, called after `finish`."""

    async def abegin(self) -> None:
        """Called instead of `begin` before an async view, which has no transaction."""

    async def afinish(self, response: Any) -> None:
        """Called instead of `finish` after an async view."""


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
    deferred_lock: LockOptions | None = None
    """The lock that the wrapper that records requests has to acquire."""
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
        return recorder

    def take_deferred_lock(self) -> LockOptions | None:
        """Return the options of the deferred lock, and remove them."""
        options, self.deferred_lock = self.deferred_lock, None
        return options

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


def records_requests(view: Callable[..., Any] | None) -> bool:
    """Return whether a view has a wrapper that records requests, at any depth.

    Such a wrapper has the attribute `records_requests`, whose value is the wrapper itself.
    """
    return hasattr(view, "records_requests")


def is_recording_wrapper(view: Callable[..., Any]) -> bool:
    """Return whether a view is itself a wrapper that records requests, with nothing around it."""
    function: Any = view
    while isinstance(function, partial):  # as method_decorator() binds a method
        function = function.func
    function = getattr(function, "__func__", function)
    return getattr(function, "records_requests", None) is function


@lru_cache(maxsize=1000)  # Django looks at every handler of the class each time
def is_async_class(view_class: Hashable) -> bool:
    """Return whether the methods of a view class are async, although `dispatch` is no coroutine."""
    return getattr(view_class, "view_is_async", False) is True


def opens_transaction(view: Callable[..., Any]) -> bool:
    """Return whether a view acquires a lock, at any depth, and opens its transaction after that."""
    return hasattr(view, "lock_options") or getattr(view, "opens_transaction", False) is True


request_attributes: dict[str, object] = {_HAS_MIDDLEWARE: True}
"""The attributes that `LockMiddleware` adds to every request."""


def register_attribute(name: str, make: Callable[[], object]) -> None:
    """Add an attribute to every request that comes through `LockMiddleware`.

    `make` returns its value, which all requests share. It is called when it is first used.
    """
    request_attributes[name] = SimpleLazyObject(make)

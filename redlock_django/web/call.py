"""One call of a view under its lock, for sync and async.

Django cancels an async view when the client disconnects. That stops neither a thread of
`asyncio.to_thread` nor a query, so the lock would be free before their work is committed, and the
effects of a request with an idempotency key would be unknown. So the view is finished first.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.http import HttpRequest
from django.utils.module_loading import import_string

from redlock_django.conf.settings import check_installed
from redlock_django.exceptions import InvalidRedlock, LockLost, RedlockError
from redlock_django.locking.event_loops import finish_despite_cancellation
from redlock_django.locking.transactions.open_transactions import guard_commits, open_blocks
from redlock_django.web.answers import (
    aanswer,
    answer,
    has_problem,
    judge_effects,
    was_rolled_back_by_django,
)
from redlock_django.web.request_state import RequestState, is_recording_wrapper, records_requests
from redlock_django.web.request_values import read_body
from redlock_django.web.transactions import (
    TransactionMarker,
    call_in_transactions,
    check_async,
    check_recordable,
    check_response,
    marker_of_request,
    not_adjacent_error,
    transactions_of,
    unanswerable_error,
    view_name,
)

if TYPE_CHECKING:
    from redlock_django.locking.lock import Lock
    from redlock_django.locking.transactions.transaction_lock import TransactionLock
    from redlock_django.web.options import LockOptions
    from redlock_django.web.request_state import Recorder


class Call(NamedTuple):
    """A call of a view, with the request found among its arguments.

    `state` is what the package keeps with the request. `owner` is the instance whose method the
    view is, or None. `marker` made Django skip the transactions of the request, or is None.
    `wrapped` is whether `request` is a framework's request that wraps Django's.
    """

    view: Callable[..., Any]
    options: LockOptions
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    request: Any
    state: RequestState
    owner: Any
    marker: TransactionMarker | None
    wrapped: bool

    @property
    def renders_later(self) -> bool:
        """True if the response is rendered after the view, under the lock of the request."""
        # A response that is recorded has to be rendered before that.
        is_plain = self.state.has_middleware and not self.state.recording
        return self.wrapped or (is_plain and changes_templates())

    @property
    def defers_lock(self) -> bool:
        """True if the lock is acquired by the view, which is a wrapper that records requests.

        Raises InvalidRedlock if such a wrapper is further in.
        """
        if self.state.recording:
            return False
        if is_recording_wrapper(self.view):
            return True
        if self.owner is None:  # a function was checked when it was decorated
            return False
        handler = getattr(self.owner, str(self.request.method).lower(), None)
        if records_requests(self.view) or records_requests(handler):
            raise not_adjacent_error(self.view)
        return False

    def run(self) -> Any:
        """Call a sync view under its lock, and return its response or the answer to an error."""
        view, options, request, state = self.view, self.options, self.request, self.state
        if self.defers_lock:
            state.deferred_lock = options
            return view(*self.args, **self.kwargs)
        recorder = state.take_recorder()
        locks_it = options.apply_to(request)
        if not locks_it and recorder is None:
            return call_in_transactions(self.marker, request, view, *self.args, **self.kwargs)
        begun = finished = False
        aliases: Sequence[str] = ()
        blocks = open_blocks()
        inside = bool(blocks)
        if inside and (recorder is not None or not state.has_middleware):
            raise unanswerable_error(view, blocks[0])
        try:
            held, locked = self._lock(durable=not inside) if locks_it else (None, None)
            # Acquired inside of the `try`: a signal that raises must not leave the lock.
            try:
                if held is not None:
                    options.enter(held, view)
                    if state.has_middleware and (inside or self.renders_later):
                        # Before the view, because the outer transaction ends first in any case.
                        state.keep(held)
                with transactions_of(
                    self.marker,
                    durable=not inside,
                    record=recorder.database if recorder is not None else None,
                    locked=locked,
                ) as aliases:
                    if recorder is not None:
                        recorder.begin(aliases)
                    begun = True
                    response = self._finished(view(*self.args, **self.kwargs))
                    check_response(view, response, locked)
                    if recorder is not None:
                        check_recordable(view, response)
                        recorder.finish(response)
                    # Only before COMMIT: after it, refusing the response would undo nothing.
                    if held is not None and (aliases or inside):
                        guard_commits(held, blocks)
                    finished = True
                if recorder is not None:
                    recorder.committed()
                if held is not None:
                    state.keep_for_stream(response, request, held)
            finally:
                if held is not None and held not in state.locks:
                    held.release()
            return response
        except RedlockError as error:
            if not has_problem(error):
                raise
            if isinstance(error, LockLost):
                # The blocks that others have opened contain the work of the view, too.
                for connection in blocks:
                    connection.set_rollback(True)
            undone = bool(aliases)
            if inside and not undone:
                # The block of a middleware is rolled back for a lost lock only.
                undone = isinstance(error, LockLost) or was_rolled_back_by_django(request, error)
            judge_effects(error, request, undone=not begun or (undone and not finished))
            own = options.own_answer(request, error)
            if own is None:
                reply = getattr(self.owner, "answer_lock_error", answer)
                own = reply(request, error, status=options.status_for(error))
            if not (state.has_middleware and inside):
                return own
            # Only an exception rolls back the outer block.
            state.prepare_answer(error, own)
            raise

    async def arun(self) -> Any:
        """Call an async view as `run` calls a sync one; an async view has no transaction.

        If the client leaves after the view has begun, the view is finished first, or cancelled (an
        option).
        """
        view, options, request, state = self.view, self.options, self.request, self.state
        if self.defers_lock:
            state.deferred_lock = options
            return await view(*self.args, **self.kwargs)
        check_async(view, self.marker, in_transaction=options.in_transaction is not None)
        recorder = state.take_recorder()
        locks_it = options.apply_to(request)
        if not locks_it and recorder is None:
            return await view(*self.args, **self.kwargs)
        begun = asyncio.Event()
        answered = self._answered(locks_it, recorder, begun)
        if locks_it and options.finishes_without_client:
            return await finish_without_client(answered, begun.is_set)
        return await answered

    async def _answered(
        self, locks_it: bool, recorder: Recorder | None, begun: asyncio.Event
    ) -> Any:
        """Return the response of an async view, or the answer to an error."""
        view, options, request, state = self.view, self.options, self.request, self.state
        try:
            async with AsyncExitStack() as stack:
                held = await self._aenter(stack) if locks_it else None
                if recorder is not None:
                    await recorder.abegin()
                begun.set()
                response = await view(*self.args, **self.kwargs)
                if self._renders(response):
                    response = await sync_to_async(response.render)()
                if recorder is not None:
                    check_recordable(view, response)
                    await recorder.afinish(response)
                if held is not None:
                    if state.has_middleware and self.renders_later:
                        state.keep(held)
                    state.keep_for_stream(response, request, held)
                    if held in state.locks:
                        stack.pop_all()
            return response
        except RedlockError as error:
            if not has_problem(error):
                raise
            judge_effects(error, request, undone=not begun.is_set())
            own = options.own_answer(request, error)
            if inspect.isawaitable(own):
                own = await own
            if own is None:
                own = await aanswer(request, error, status=options.status_for(error))
            return own

    def _lock(self, *, durable: bool) -> tuple[Lock, None] | tuple[None, TransactionLock]:
        """Return the lock to acquire, or the transaction that will hold it."""
        options, request = self._prepared()
        names = [template.render(request, self.kwargs) for template in options.templates]
        if options.in_transaction is not None:
            return None, options.transaction_lock(names, durable=durable)
        return options.lock(request, names), None

    async def _aenter(self, stack: AsyncExitStack) -> Lock:
        options, request = self._prepared()
        names = [await template.arender(request, self.kwargs) for template in options.templates]
        lock = options.lock(request, names)
        stack.push_async_exit(lock)  # before it is acquired, as in `run`
        await options.aenter(lock, self.view)
        return lock

    def _prepared(self) -> tuple[LockOptions, Any]:
        if not self.wrapped:
            self.options.check_user(self.view, self.owner)
            self.options.check_body(self.view, self.owner)
        self.options.check_kwargs(self.view, self.kwargs)
        read_body(self.request)
        return self.options, self.request

    def _renders(self, response: Any) -> bool:
        # A framework completes the responses of its own views after they have returned.
        return not self.renders_later and callable(getattr(response, "render", None))

    def _finished(self, response: Any) -> Any:
        """Render a sync view's response while the lock is held and the transaction is open."""
        if self._renders(response):
            return response.render()
        # A view class of such a framework may have a method that completes it earlier.
        finish = getattr(self.owner, "finish_under_lock", None)
        return response if finish is None else finish(self.request, response)


def call_of(
    view: Callable[..., Any],
    options: LockOptions,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    marker: TransactionMarker | None,
) -> Call:
    """Return the call of a view with these arguments.

    The request is found by its type: it is the first argument of a function, and the second of a
    method. Raises InvalidRedlock where there is none.
    """
    check_installed()
    for request in args[1::-1]:
        wrapped = isinstance(getattr(request, "_request", None), HttpRequest)
        if wrapped or isinstance(request, HttpRequest):
            # method_decorator() binds the method before it decorates it.
            bound = getattr(getattr(view, "func", view), "__self__", None)
            owner = bound if request is args[0] else args[0]
            in_force = marker_of_request(request, marker, owner)
            state = RequestState.of(request)
            return Call(view, options, args, kwargs, request, state, owner, in_force, wrapped)
    raise InvalidRedlock(
        f"{view_name(view)} was called without a request: it must be the first argument of a "
        "function, or the first after self of a method"
    )


logger = logging.getLogger("redlock_django")


async def finish_without_client(
    view: Coroutine[Any, Any, Any], has_begun: Callable[[], bool]
) -> Any:
    """Return the response of a view. If the client leaves, finish the view first if it has begun.

    Its response is then closed, and its error is logged.
    """
    return await finish_despite_cancellation(view, has_begun, _discard)


async def _discard(task: asyncio.Task[Any]) -> None:
    """Log the error of a view without a client, or close its response."""
    error = task.exception()
    if error is not None:
        logger.error("redlock: a view failed after its client had left", exc_info=error)
        return
    response = task.result()
    if getattr(response, "streaming", False):
        await sync_to_async(response.close)()  # releases the lock that is kept for the stream


@cache
def changes_templates() -> bool:
    """Return whether a middleware of the site has `process_template_response`.

    Django calls it after the view, so a response that was rendered in the view ignores it.
    """
    for path in settings.MIDDLEWARE:
        try:
            middleware = import_string(path)
        except (ImportError, ImproperlyConfigured):
            continue
        if hasattr(middleware, "process_template_response"):
            return True
    return False


def _settings_changed(*, setting: str, **_: Any) -> None:
    if setting == "MIDDLEWARE":
        changes_templates.cache_clear()


setting_changed.connect(_settings_changed, dispatch_uid="redlock_django.web.call")

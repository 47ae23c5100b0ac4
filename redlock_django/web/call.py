"""One call of a view under its lock, for sync and async."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from asgiref.sync import sync_to_async
from django.http import HttpRequest

from redlock_django.conf.settings import check_installed, template_middleware
from redlock_django.exceptions import (
    AlreadyHeld,
    InvalidRedlock,
    LockLost,
    NotAcquired,
    RedlockError,
)
from redlock_django.locking.transactions.open_transactions import guard_commits, open_blocks
from redlock_django.web.answers import (
    aanswer,
    answer,
    forbid_storing,
    has_problem,
    judge_effects,
    was_rolled_back_by_django,
)
from redlock_django.web.disconnects import finish_without_client
from redlock_django.web.request_state import RequestState
from redlock_django.web.request_values import read_body
from redlock_django.web.transactions import (
    TransactionMarker,
    call_in_transactions,
    check_async,
    check_recordable,
    check_template_middleware,
    locked_twice_error,
    marker_of_request,
    not_adjacent_error,
    transactions_of,
    unanswerable_error,
    view_name,
)
from redlock_django.web.view_kinds import (
    bound_to,
    is_rest_view,
    records_requests,
    view_facts,
)

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from redlock_django.locking.lock import Lock
    from redlock_django.web.options import LockOptions
    from redlock_django.web.request_state import Recorder


@dataclass
class Progress:
    """How far the call of a sync or async view has got.

    `blocks` are the connections inside atomic blocks that others have opened around the view, and
    `aliases` the databases of the transactions that were opened for it. The view has `begun`; it
    has `finished` once only COMMIT is left.
    """

    recorder: Recorder | None
    blocks: Sequence[BaseDatabaseWrapper] = ()
    aliases: Sequence[str] = ()
    begun: bool = False
    finished: bool = False

    def is_undone(self, error: RedlockError, request: Any) -> bool:
        """Return whether nothing is left of what the view did before an error."""
        if not self.begun:
            return True
        if self.finished:
            return False
        # The block of a middleware is rolled back for a lost lock only.
        return bool(self.aliases) or (
            bool(self.blocks)
            and (isinstance(error, LockLost) or was_rolled_back_by_django(request, error))
        )


class DecoratedView:
    """A view inside a decorator of this package, and what is known of it before any request.

    `marker` makes Django skip the transactions of a request to it, or is None.
    """

    __slots__ = ("bound_to", "facts", "marker", "options", "view")

    def __init__(
        self,
        view: Callable[..., Any],
        options: LockOptions,
        marker: TransactionMarker | None = None,
    ) -> None:
        self.view, self.options, self.marker = view, options, marker
        self.bound_to = bound_to(view)
        self.facts = view_facts(view)

    def call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
        """Return the call of the view with these arguments.

        The request is found by its type: it is the first argument of a function, and the second of
        a method. Raises InvalidRedlock where there is none.
        """
        check_installed()
        for request in args[1::-1]:
            wrapped = not isinstance(request, HttpRequest)
            if not wrapped or isinstance(getattr(request, "_request", None), HttpRequest):
                owner = self.bound_to if request is args[0] else args[0]
                return Call(
                    self,
                    self.options,
                    args,
                    kwargs,
                    request,
                    RequestState.of(request),
                    owner,
                    marker_of_request(request, self.marker, owner),
                    wrapped,
                )
        raise InvalidRedlock(
            f"{view_name(self.view)} was called without a request: it must be the first argument "
            "of a function, or the first after self of a method"
        )


class Call(NamedTuple):
    """A call of a decorated view, with the request found among its arguments.

    `state` is what the package keeps with the request. `owner` is the instance whose method the
    view is, or None. `marker` made Django skip the transactions of the request, or is None.
    `wrapped` is whether `request` is a framework's request that wraps Django's.
    """

    decorated: DecoratedView
    options: LockOptions
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    request: Any
    state: RequestState
    owner: Any
    marker: TransactionMarker | None
    wrapped: bool

    @property
    def view(self) -> Callable[..., Any]:
        """The view inside the decorator."""
        return self.decorated.view

    @property
    def renders_later(self) -> bool:
        """True if the response is rendered after the view, under the lock of the request."""
        # A response that is recorded has to be rendered before that.
        is_plain = self.state.has_middleware and not self.state.recording
        return self.wrapped or (is_plain and bool(template_middleware()))

    @property
    def defers_lock(self) -> bool:
        """True if the lock is acquired by the view, which is a wrapper that records requests.

        Raises InvalidRedlock if such a wrapper is further in.
        """
        if self.state.recording:
            return False
        if self.decorated.facts.is_recording:
            return True
        if self.owner is None:  # a function was checked when it was decorated
            return False
        handler = getattr(self.owner, str(self.request.method).lower(), None)
        if self.decorated.facts.records_requests or records_requests(handler):
            raise not_adjacent_error(self.view)
        return False

    def run(self) -> Any:
        """Call a sync view under its lock, and return its response or the answer to an error."""
        if self.defers_lock:
            self.state.deferred_lock = self.options
            return self.view(*self.args, **self.kwargs)
        recorder = self.state.recorder and self.state.take_recorder()
        locks_it = self.options.apply_to(self.request)
        if recorder is None and not locks_it:
            return call_in_transactions(
                self.marker, self.request, self.view, *self.args, **self.kwargs
            )
        progress = Progress(recorder, open_blocks())
        if progress.blocks and (recorder is not None or not self.state.has_middleware):
            raise unanswerable_error(self.view, progress.blocks[0])
        try:
            return self._run_under_lock(progress, locks_it)
        except RedlockError as error:
            self._raise_unanswered(error, progress)
            return self._answer_error(error, progress)

    def _run_under_lock(self, progress: Progress, locks_it: bool) -> Any:
        """Acquire the lock, run the view in its transactions, and release or keep the lock."""
        held = self._lock() if locks_it else None
        # Acquired inside of the `try`: a signal that raises must not leave the lock.
        try:
            if held is not None:
                self.options.enter(held, self.decorated.view)
                if self.state.has_middleware and (progress.blocks or self.renders_later):
                    # Before the view, because the outer transaction ends first in any case.
                    self.state.keep(held)
            response = self._run_in_transactions(progress, held)
            if held is not None:
                self.state.keep_for_stream(response, self.request, held)
        finally:
            if held is not None and held not in self.state.locks:
                held.release()
        return response

    def _run_in_transactions(self, progress: Progress, held: Lock | None) -> Any:
        """Begin the transactions, run the view and its recorder, check the lock, and commit."""
        recorder = progress.recorder
        with transactions_of(
            self.marker,
            durable=not progress.blocks,
            record=recorder.database if recorder is not None else None,
        ) as progress.aliases:
            if recorder is not None:
                recorder.begin(progress.aliases)
            progress.begun = True
            response = self._finished(self.decorated.view(*self.args, **self.kwargs))
            if recorder is not None:
                check_recordable(self.view, response)
                recorder.finish(response)
            # Only before COMMIT: after it, refusing the response would undo nothing.
            if held is not None and (progress.aliases or progress.blocks):
                guard_commits(held, progress.blocks)
            progress.finished = True
        return response

    def _raise_unanswered(self, error: RedlockError, progress: Progress) -> None:
        """Raise an error that has no answer, or whose answer would be recorded."""
        if isinstance(error, AlreadyHeld) and not progress.begun:
            raise locked_twice_error(self.view, self.request, error) from None
        # The view that is recorded has called this one, and may return its answer as its own.
        is_inside = self.state.has_recorder and progress.recorder is None
        if not has_problem(error) or (is_inside and isinstance(error, (NotAcquired, LockLost))):
            raise error

    def _answer_error(self, error: RedlockError, progress: Progress) -> Any:
        """Return the answer to a lock error, or raise it if a block around must be rolled back."""
        if isinstance(error, LockLost):
            # The blocks that others have opened contain the work of the view, too.
            for connection in progress.blocks:
                connection.set_rollback(True)
        judge_effects(error, self.request, undone=progress.is_undone(error, self.request))
        own = self.options.own_answer(self.request, error)
        if own is None:
            reply = getattr(self.owner, "answer_lock_error", answer)
            own = reply(self.request, error, status=self.options.status_for(error))
        forbid_storing(own)
        if not (self.state.has_middleware and progress.blocks):
            return own
        # Only an exception rolls back the outer block.
        self.state.prepare_answer(error, own)
        raise error

    async def arun(self) -> Any:
        """Call an async view as `run` calls a sync one; an async view has no transaction.

        If the client leaves after the view has begun, the view is finished first, or cancelled (an
        option).
        """
        if self.defers_lock:
            self.state.deferred_lock = self.options
            return await self.view(*self.args, **self.kwargs)
        check_async(self.marker)
        recorder = self.state.recorder and self.state.take_recorder()
        locks_it = self.options.apply_to(self.request)
        if recorder is None and not locks_it:
            return await self.view(*self.args, **self.kwargs)
        progress = Progress(recorder)
        answered = self._answered(progress, locks_it)
        if locks_it and self.options.finishes_without_client:
            return await finish_without_client(answered, lambda: progress.begun)
        return await answered

    async def _answered(self, progress: Progress, locks_it: bool) -> Any:
        """Return the response of an async view, or the answer to an error."""
        try:
            return await self._arun_under_lock(progress, locks_it)
        except RedlockError as error:
            self._raise_unanswered(error, progress)
            judge_effects(error, self.request, undone=progress.is_undone(error, self.request))
            own = self.options.own_answer(self.request, error)
            if inspect.isawaitable(own):
                own = await own
            if own is None:
                status = self.options.status_for(error)
                own = await aanswer(self.request, error, status=status)
            forbid_storing(own)
            return own

    async def _arun_under_lock(self, progress: Progress, locks_it: bool) -> Any:
        """Acquire the lock, run the view and its recorder, and release or keep the lock."""
        recorder = progress.recorder
        held = await self._alock() if locks_it else None
        failure: type[BaseException] | None = None
        # Acquired inside of the `try`, as in `_run_under_lock`.
        try:
            if held is not None:
                await self.options.aenter(held, self.decorated.view)
            if recorder is not None:
                recorder.begun = True  # the client may leave while the record is written
                await sync_to_async(recorder.begin)(())
            progress.begun = True
            response = await self.decorated.view(*self.args, **self.kwargs)
            if self._renders(response):
                response = await sync_to_async(response.render)()
            if recorder is not None:
                check_recordable(self.view, response)
                await sync_to_async(recorder.finish)(response)
            if held is not None:
                if self.state.has_middleware and self.renders_later:
                    self.state.keep(held)
                self.state.keep_for_stream(response, self.request, held)
        except BaseException as error:
            failure = type(error)
            raise
        finally:
            if held is not None and (failure or held not in self.state.locks):
                await held.__aexit__(failure)
        return response

    def _lock(self) -> Lock:
        """Return the lock to acquire."""
        options, request = self.options, self.request
        self._prepare()
        names = [template.render(request, self.kwargs) for template in options.templates]
        return options.lock(request, names)

    async def _alock(self) -> Lock:
        """Return the lock of an async view, to acquire."""
        options, request = self.options, self.request
        self._prepare()
        names = [await template.arender(request, self.kwargs) for template in options.templates]
        return options.lock(request, names)

    def _prepare(self) -> None:
        """Check that this view can be locked, and read the body before the lock is acquired."""
        decorated = self.decorated
        if not self.wrapped and (decorated.facts.may_authenticate or is_rest_view(self.owner)):
            self.options.check_order(decorated.view, self.owner)
        self.options.check_kwargs(decorated.view, self.kwargs)
        read_body(self.request)

    def _renders(self, response: Any) -> bool:
        """Return whether to render a response now; raise InvalidRedlock if that is too early."""
        # A framework completes the responses of its own views after they have returned.
        if not callable(getattr(response, "render", None)) or self.renders_later:
            return False
        # A view that is called without a URL, as in tests, is called without middleware, too.
        if self.request.resolver_match is not None and not getattr(response, "is_rendered", True):
            check_template_middleware(self.view, recorded=self.state.recording)
        return True

    def _finished(self, response: Any) -> Any:
        """Render a sync view's response while the lock is held and the transaction is open."""
        if self._renders(response):
            return response.render()
        if self.owner is None:
            return response
        # A view class of such a framework may have a method that completes it earlier.
        finish = getattr(self.owner, "finish_under_lock", None)
        return response if finish is None else finish(self.request, response)

"""One call of a locked view: lock, BEGIN, view, render, check of the lock, COMMIT, release.

A wrapper acquires its lock where it is, and opens the transactions that Django would have opened
there. Where Django, or a middleware, has opened one around it, `LockMiddleware` releases the lock
after its end.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.db import connections, transaction
from django.http import HttpRequest

from redlock_django.conf.settings import check_installed, template_middleware
from redlock_django.exceptions import (
    AlreadyHeld,
    InvalidRedlock,
    LockLost,
    NotAcquired,
    RedlockError,
)
from redlock_django.locking.caller import open_blocks
from redlock_django.locking.event_loops import finish_despite_cancellation
from redlock_django.locking.transactions import guard_commits
from redlock_django.web.answers import (
    aanswer,
    answer,
    forbid_storing,
    has_problem,
    judge_effects,
    was_rolled_back_by_django,
)
from redlock_django.web.misplaced_locks import (
    async_error,
    check_template_middleware,
    locked_twice_error,
    unanswerable_error,
)
from redlock_django.web.request import RequestState, acall_hook, read_body
from redlock_django.web.view_kinds import (
    TransactionMarker,
    bound_to,
    is_async_class,
    transaction_marker,
    view_name,
)

if TYPE_CHECKING:
    from redlock_django.locking.lock import Lock
    from redlock_django.web.options import LockOptions


logger = logging.getLogger("redlock_django")


def locked_view(view: Callable[..., Any], options: LockOptions) -> Any:
    """Return the view that runs `view` only while it holds the lock of these options."""
    if iscoroutinefunction(view):
        # No transaction marker: Django must still raise its error about ATOMIC_REQUESTS here.
        @functools.wraps(view)
        async def alocked(*args: Any, **kwargs: Any) -> Any:
            return await Call(view, options, args, kwargs).arun()

        return alocked

    marker = transaction_marker(view)

    @functools.wraps(view)
    def locked(*args: Any, **kwargs: Any) -> Any:
        call = Call(view, options, args, kwargs, marker)
        return call.arun() if call.is_async else call.run()

    locked._non_atomic_requests = marker  # type: ignore[attr-defined]
    return locked


class Call:
    """One call of a view, with the request found among its arguments.

    `state` is what the package keeps with the request. `owner` is the instance whose method the
    view is, or None. `marker` is `_non_atomic_requests` of the outermost callable of the request,
    None if no transactions are opened. `wrapped` is whether `request` is a framework's request that
    wraps Django's. The request is found by its type: it is the first argument of a function, and
    the second of a method. Raises InvalidRedlock where there is none.
    """

    def __init__(
        self,
        view: Callable[..., Any],
        options: LockOptions,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        marker: TransactionMarker | None = None,
    ) -> None:
        check_installed()
        self.view, self.options, self.args, self.kwargs = view, options, args, kwargs
        for request in args[1::-1]:
            self.wrapped = not isinstance(request, HttpRequest)
            if not self.wrapped or isinstance(getattr(request, "_request", None), HttpRequest):
                break
        else:
            raise InvalidRedlock(
                f"{view_name(view)} was called without a request: it must be the first argument "
                "of a function, or the first after self of a method"
            )
        self.request: Any = request
        self.owner: Any = bound_to(view) if request is args[0] else args[0]
        self.marker = self._marker_around(marker)
        self.state = RequestState.of(request)
        self._recorder = self.state.recorder
        self._blocks = open_blocks()
        self._begun = False

    @property
    def is_async(self) -> bool:
        """True if the view is the method of a class whose handlers are async."""
        return is_async_class(type(self.owner))

    def aliases(self) -> list[str]:
        """Return the databases whose transactions Django would have opened here, and has not."""
        if self.marker is None:
            return []
        excluded = {*self.marker}
        if not isinstance(self.marker, TransactionMarker):
            # Django has opened these, or a middleware has replaced the match of the request.
            excluded.update(connection.alias for connection in self._blocks)
        return [
            alias
            for alias, database in connections.settings.items()
            if database["ATOMIC_REQUESTS"] and alias not in excluded
        ]

    def _marker_around(self, own: TransactionMarker | None) -> Collection[str] | None:
        """Return `_non_atomic_requests` of the outermost callable, or None.

        `own` is that of the view. A request without a URL, as in tests, has no other callable, but
        for a method: as_view() would have copied it from dispatch.
        """
        match = self.request.resolver_match
        if match is not None:
            around: Collection[str] = getattr(match.func, "_non_atomic_requests", ())
            return around
        if self.owner is None:
            return own
        return getattr(getattr(type(self.owner), "dispatch", None), "_non_atomic_requests", None)

    @property
    def _renders_later(self) -> bool:
        """True if the response is rendered after the view, under the lock of the request."""
        # A response that is recorded has to be rendered before that.
        is_plain = self.state.has_middleware and not self.state.recording
        return self.wrapped or (is_plain and bool(template_middleware()))

    def run(self) -> Any:
        """Call a sync view under its lock, and return its response or the answer to an error."""
        self._recorder = self.state.take_recorder()
        locks_it = self.options.apply_to(self.request)
        if not locks_it and self._recorder is None:
            with self._transactions(durable=False):
                return self.view(*self.args, **self.kwargs)
        if self._blocks and (self._recorder is not None or not self.state.has_middleware):
            raise unanswerable_error(self.view, self._blocks[0])
        try:
            return self._run_under_lock() if locks_it else self._respond(None)
        except RedlockError as error:
            self._raise_unanswered(error)
            return self._answer_error(error)

    def _run_under_lock(self) -> Any:
        """Acquire the lock, run the view, and release the lock or keep it with the request."""
        self.options.check_on_locked(self.view)
        self._prepare()
        names = [one.render(self.request, self.kwargs) for one in self.options.templates]
        held = self.options.lock(self.request, names)
        is_inside, self.state.is_locked = self.state.is_locked, True
        # Acquired inside of the `try`: a signal that raises must not leave the lock.
        try:
            self.options.enter(held, self.view)
            if self.state.has_middleware and (self._blocks or self._renders_later):
                # Before the view, because the outer transaction ends first in any case.
                self.state.keep(held)
            response = self._respond(held)
            self.state.keep_for_stream(response, self.request, held)
        finally:
            self.state.is_locked = is_inside
            if held not in self.state.locks:
                held.release()
        return response

    def _respond(self, held: Lock | None) -> Any:
        """Begin the transactions, run the view and its recorder, check the lock, and commit."""
        with self._transactions(durable=not self._blocks) as aliases:
            if self._recorder is not None:
                self._recorder.begin(aliases)
            self._begun = True
            response = self._finished(self.view(*self.args, **self.kwargs))
            if self._recorder is not None:
                self._recorder.finish(response)
            # Only before COMMIT: after it, refusing the response would undo nothing.
            if held is not None and (aliases or self._blocks):
                guard_commits(held, self._blocks)
        return response

    @contextmanager
    def _transactions(self, *, durable: bool) -> Iterator[Sequence[str]]:
        """Run the block in the transactions of `aliases`, and in that of the recorder.

        A `durable` transaction raises if it is inside another one, so leaving the block is COMMIT.
        """
        aliases = self.aliases()
        if self._recorder is not None and (record := self._recorder.database) is not None:
            # A record must not be committed before the changes that it records.
            aliases = [alias for alias in aliases if alias != record] + [record]
        if not aliases:
            yield aliases
            return
        with ExitStack() as blocks:
            # Django wraps the view alias by alias, so the first is innermost and commits first.
            for alias in reversed(aliases):
                blocks.enter_context(transaction.atomic(using=alias, durable=durable))
            try:
                yield aliases
            except RedlockError as error:
                judge_effects(error, self.request, undone=True)
                raise

    def _raise_unanswered(self, error: RedlockError) -> None:
        """Raise an error that has no answer, or whose answer would be recorded."""
        if isinstance(error, AlreadyHeld) and not self._begun:
            raise locked_twice_error(self.view, self.request, error) from None
        # The view that is recorded has called this one, and may return its answer as its own.
        is_inside = self.state.has_recorder and self._recorder is None
        if not has_problem(error) or (is_inside and isinstance(error, (NotAcquired, LockLost))):
            raise error

    def _answer_error(self, error: RedlockError) -> Any:
        """Return the answer to a lock error, or raise it if a block around must be rolled back."""
        undone = not self._begun
        if isinstance(error, LockLost):
            # The blocks that others have opened contain the work of the view, too.
            for connection in self._blocks:
                connection.set_rollback(True)
                undone = True
        elif self._blocks:
            undone = undone or was_rolled_back_by_django(self.request, error)
        judge_effects(error, self.request, undone=undone)
        hook = self.options.hook_for(error)
        own = None if hook is None else hook(self.request, error)
        if own is None:
            reply = getattr(self.owner, "answer_lock_error", answer)
            own = reply(self.request, error, status=self.options.status_for(error))
        forbid_storing(own)
        if not (self.state.has_middleware and self._blocks):
            return own
        # Only an exception rolls back the outer block.
        self.state.prepare_answer(error, own)
        raise error

    async def arun(self) -> Any:
        """Call an async view as `run` calls a sync one; an async view has no transaction.

        If the client leaves after the view has begun, the view is finished first, or cancelled (an
        option).
        """
        if self.aliases():
            raise async_error()
        self._recorder = self.state.take_recorder()
        locks_it = self.options.apply_to(self.request)
        if not locks_it and self._recorder is None:
            return await self.view(*self.args, **self.kwargs)
        response = self._answered(locks_it)
        if locks_it and self.options.on_disconnect != "cancel":
            return await finish_despite_cancellation(response, lambda: self._begun, discard)
        return await response

    async def _answered(self, locks_it: bool) -> Any:
        """Return the response of an async view, or the answer to an error."""
        try:
            return await (self._arun_under_lock() if locks_it else self._arespond())
        except RedlockError as error:
            self._raise_unanswered(error)
            judge_effects(error, self.request, undone=not self._begun)
            hook = self.options.hook_for(error)
            own = None if hook is None else await acall_hook(hook, self.request, error)
            if own is None:
                status = self.options.status_for(error)
                own = await aanswer(self.request, error, status=status)
            forbid_storing(own)
            return own

    async def _arun_under_lock(self) -> Any:
        """Acquire the lock, run the view, and release the lock or keep it with the request."""
        self._prepare()
        names = [await one.arender(self.request, self.kwargs) for one in self.options.templates]
        held = self.options.lock(self.request, names)
        is_inside, self.state.is_locked = self.state.is_locked, True
        failure: type[BaseException] | None = None
        # Acquired inside of the `try`, as in `_run_under_lock`.
        try:
            await self.options.aenter(held, self.view)
            response = await self._arespond()
            if self.state.has_middleware and self._renders_later:
                self.state.keep(held)
            self.state.keep_for_stream(response, self.request, held)
        except BaseException as error:
            failure = type(error)
            raise
        finally:
            self.state.is_locked = is_inside
            if failure or held not in self.state.locks:
                await held.__aexit__(failure)
        return response

    async def _arespond(self) -> Any:
        """Run an async view and its recorder."""
        if self._recorder is not None:
            self._recorder.begun = True  # the client may leave while the record is written
            await sync_to_async(self._recorder.begin)(())
        self._begun = True
        response = await self.view(*self.args, **self.kwargs)
        if self._renders(response):
            response = await sync_to_async(response.render)()
        if self._recorder is not None:
            await sync_to_async(self._recorder.finish)(response)
        return response

    def _prepare(self) -> None:
        """Check that this view can be locked, and read the body before the lock is acquired."""
        if not self.wrapped:
            self.options.check_order(self.view, self.owner)
        self.options.check_kwargs(self.view, self.kwargs)
        read_body(self.request)

    def _renders(self, response: Any) -> bool:
        """Return whether to render a response now; raise InvalidRedlock if that is too early."""
        # A framework completes the responses of its own views after they have returned.
        if not callable(getattr(response, "render", None)) or self._renders_later:
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


# Django cancels an async view when its client leaves, which stops no thread of `asyncio.to_thread`
# and no query: the lock would be free before their work is committed, and the effects of a request
# with an idempotency key would be unknown. So the view is finished first.


async def discard(task: asyncio.Task[Any]) -> None:
    """Log the error of a view whose client has left, or close its response."""
    error = task.exception()
    if error is not None:
        logger.error("redlock: a view failed after its client had left", exc_info=error)
        return
    response = task.result()
    if getattr(response, "streaming", False):
        await sync_to_async(response.close)()  # releases the lock that is kept for the stream

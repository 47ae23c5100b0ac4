"""The steps of an `IdempotentAttempt`, and how they are performed for sync and async views."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from asgiref.sync import sync_to_async

from redlock_django.engine.run_protocol import adrive, drive
from redlock_django.exceptions import IdempotencyRefused, IncompleteBody, InvalidRedlock
from redlock_django.idempotency.settings import IdempotentOptions
from redlock_django.locking.arguments import LockArguments, has_parameters_of
from redlock_django.locking.lock import Lock
from redlock_django.web.answers import aanswer, answer
from redlock_django.web.locked_view import Call
from redlock_django.web.options import no_lock
from redlock_django.web.request_values import acall_hook, arequest_user, request_user
from redlock_django.web.transactions import two_locks_error, view_name
from redlock_django.web.view_kinds import opens_transaction

if TYPE_CHECKING:
    from redlock_django.idempotency.flow.recorders import AnyRecorder, ViewTransaction


class InThread(NamedTuple):
    """Call a function that may block on the database, the cache or a file."""

    function: Callable[[], Any]


class CallHook(NamedTuple):
    """Call a hook of the site; for an async view it may be a coroutine function."""

    hook: Callable[..., Any]


class GetUser(NamedTuple):
    """Return the user of the request, or None."""


class HoldLock(NamedTuple):
    """Acquire the in-flight lock on these resources, and hold it until the request is answered.

    `wait` is in seconds. Raises what `Lock` raises.
    """

    resources: tuple[str, ...]
    wait: float


class RunView(NamedTuple):
    """Run the view, with a recorder or a transaction that the request has without a key."""

    recorder: AnyRecorder | ViewTransaction | None


AttemptStep = InThread | CallHook | GetUser | HoldLock | RunView
Steps = Generator[AttemptStep, Any, Any]


class InFlightLock(Lock):
    """The lock that a request with a key holds while it runs, whatever `ON_UNAVAILABLE` says.

    Without this lock it is not known whether the first request is still running.
    """

    _strict = True
    keeps_response = True

    @has_parameters_of(LockArguments)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Names with a fingerprint come first: the refused one tells which request is running.
        self._parameters.keep_order()


class Runner:
    """Performs the steps of one request, and answers a refusal; `arun` is for async views.

    It takes the lock that a decorator has left to the request: see `web.request_state`.
    """

    def __init__(self, call: Call, options: IdempotentOptions) -> None:
        self._call = call
        self._options = options
        self._state = call.state
        self._deferred_lock = call.state.take_deferred_lock()
        self._recorder: AnyRecorder | ViewTransaction | None = None

    def has_begun(self) -> bool:
        """Return whether the record of an async view may have been written."""
        return self._recorder is not None and self._recorder.begun

    def run(self, steps: Steps) -> Any:
        """Return the response to a sync view's request."""
        self._state.recording = True
        try:
            with ExitStack() as stack:
                return drive(steps, partial(self._perform, stack))
        except (IdempotencyRefused, IncompleteBody) as error:
            reply = getattr(self._call.owner, "answer_lock_error", answer)
            return reply(self._call.request, error)
        finally:
            self._state.end_recording()

    async def arun(self, steps: Steps) -> Any:
        """Return the response to an async view's request."""
        self._state.recording = True
        try:
            async with AsyncExitStack() as stack:
                return await adrive(steps, partial(self._aperform, stack))
        except (IdempotencyRefused, IncompleteBody) as error:
            return await aanswer(self._call.request, error)
        finally:
            self._state.end_recording()

    def _perform(self, stack: ExitStack, step: AttemptStep) -> Any:
        match step:
            case InThread(function):
                return function()
            case CallHook(hook):
                result = hook(self._call.request, **self._call.kwargs)
                if inspect.iscoroutine(result):
                    result.close()  # a coroutine object is true, so it would count as "yes"
                    raise InvalidRedlock(
                        f"{view_name(self._call.view)} is a sync view, but {view_name(hook)}, an "
                        "argument of its @idempotent, is a coroutine function. Use a plain function"
                    )
                return result
            case GetUser():
                return request_user(self._call.request)
            case HoldLock(resources, wait):
                return self._lock(resources, wait).enter_in(stack)
            case RunView(recorder):
                return self._run_view(recorder, Call.run)

    async def _aperform(self, stack: AsyncExitStack, step: AttemptStep) -> Any:
        match step:
            case InThread(function):
                return await sync_to_async(function)()
            case CallHook(hook):
                return await acall_hook(hook, self._call.request, **self._call.kwargs)
            case GetUser():
                return await arequest_user(self._call.request)
            case HoldLock(resources, wait):
                return await self._lock(resources, wait).aenter_in(stack)
            case RunView(recorder):
                return await self._run_view(recorder, Call.arun)

    def _lock(self, resources: tuple[str, ...], wait: float) -> InFlightLock:
        holder = {"path": self._call.request.path}
        return InFlightLock(*resources, using=self._options.using, wait=wait, holder=holder)

    def _run_view(
        self,
        recorder: AnyRecorder | ViewTransaction | None,
        run: Callable[[Call], Any],
    ) -> Any:
        """Run the view with a recorder; `run` is for a view that opens no transaction itself."""
        call = self._call
        self._recorder = self._state.recorder = recorder
        if not opens_transaction(call.view):
            call.options = self._deferred_lock or no_lock(self._options.using)
            return run(call)
        if self._deferred_lock is not None:
            raise two_locks_error(call.view)
        return call.view(*call.args, **call.kwargs)

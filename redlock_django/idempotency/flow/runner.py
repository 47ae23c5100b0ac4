"""Performs the steps of an `IdempotentAttempt`, for sync and async views."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from typing import Any

from asgiref.sync import sync_to_async

from redlock_django.engine.run_protocol import adrive, drive
from redlock_django.exceptions import (
    IdempotencyRefused,
    IncompleteBody,
    InvalidRedlock,
    RedlockError,
)
from redlock_django.idempotency.flow.attempt import IdempotentAttempt
from redlock_django.idempotency.flow.recorders import AnyRecorder, UnrecordedTransaction
from redlock_django.idempotency.flow.steps import (
    AttemptStep,
    CallHook,
    GetUser,
    HoldLock,
    InFlightLock,
    InThread,
    RunView,
)
from redlock_django.idempotency.settings import IdempotentOptions
from redlock_django.locking.exit_stacks import aenter_in_stack, enter_in_stack
from redlock_django.web.answers import aanswer, answer
from redlock_django.web.call import Call, finish_without_client
from redlock_django.web.options import no_lock
from redlock_django.web.request_state import RequestState, opens_transaction
from redlock_django.web.request_values import arequest_user, request_user
from redlock_django.web.transactions import two_locks_error, view_name


class Execution:
    """One request of an idempotent view, answered by `run` or `arun`."""

    def __init__(self, call: Call, options: IdempotentOptions) -> None:
        self._call = call
        self._options = options
        self._state = RequestState.of(call.request)
        self._deferred_lock = self._state.take_deferred_lock()
        self._recorder: AnyRecorder | UnrecordedTransaction | None = None

    def run(self) -> Any:
        """Return the response of a sync view, or the one that is recorded."""
        call, state = self._call, self._state
        if state.recording:  # an idempotent view calls another one within the same request
            return call.view(*call.args, **call.kwargs)
        state.recording = True
        try:
            with ExitStack() as stack:
                steps = IdempotentAttempt(call, self._options, is_async=False).steps()
                return drive(steps, partial(self._perform, stack))
        except (IdempotencyRefused, IncompleteBody) as error:
            self._set_problem_base(error)
            return getattr(call.owner, "answer_lock_error", answer)(call.request, error)
        finally:
            state.recording = False
            state.recorder = None  # unused if a decorator in between has answered

    async def arun(self) -> Any:
        """Return the response of an async view, or the one that is recorded."""
        call, state = self._call, self._state
        if state.recording:  # an idempotent view calls another one within the same request
            return await call.view(*call.args, **call.kwargs)
        attempt = IdempotentAttempt(call, self._options, is_async=True)
        if attempt.finishes_without_client:
            return await finish_without_client(self._arun(attempt), self._has_begun)
        return await self._arun(attempt)

    async def _arun(self, attempt: IdempotentAttempt) -> Any:
        call, state = self._call, self._state
        state.recording = True
        try:
            async with AsyncExitStack() as stack:
                return await adrive(attempt.steps(), partial(self._aperform, stack))
        except (IdempotencyRefused, IncompleteBody) as error:
            self._set_problem_base(error)
            return await aanswer(call.request, error)
        finally:
            state.recording = False
            state.recorder = None  # unused if a decorator in between has answered

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
                return enter_in_stack(stack, self._lock(resources, wait))
            case RunView(recorder):
                return self._run_view(recorder, Call.run)

    async def _aperform(self, stack: AsyncExitStack, step: AttemptStep) -> Any:
        match step:
            case InThread(function):
                return await sync_to_async(function)()
            case CallHook(hook):
                result = hook(self._call.request, **self._call.kwargs)
                return await result if inspect.isawaitable(result) else result
            case GetUser():
                return await arequest_user(self._call.request)
            case HoldLock(resources, wait):
                return await aenter_in_stack(stack, self._lock(resources, wait))
            case RunView(recorder):
                return await self._run_view(recorder, Call.arun)

    def _has_begun(self) -> bool:
        return self._recorder is not None and self._recorder.begun

    def _lock(self, resources: tuple[str, ...], wait: float) -> InFlightLock:
        holder = {"path": self._call.request.path}
        return InFlightLock(*resources, using=self._options.using, wait=wait, holder=holder)

    def _run_view(
        self,
        recorder: AnyRecorder | UnrecordedTransaction | None,
        run: Callable[[Call], Any],
    ) -> Any:
        """Run the view with a recorder; `run` is for a view that opens no transaction itself."""
        call = self._call
        self._recorder = self._state.recorder = recorder
        if not opens_transaction(call.view):
            return run(call._replace(options=self._deferred_lock or no_lock(self._options.using)))
        if self._deferred_lock is not None:
            raise two_locks_error(call.view)
        return call.view(*call.args, **call.kwargs)

    def _set_problem_base(self, error: RedlockError) -> None:
        if isinstance(error, IdempotencyRefused):
            error.problem_base = self._options.settings().problem_base

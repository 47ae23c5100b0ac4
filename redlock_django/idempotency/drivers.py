"""The two drivers of an `Attempt`: in a thread, and in a running loop."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from typing import Any

from asgiref.sync import sync_to_async

from redlock_django.exceptions import InvalidRedlock
from redlock_django.idempotency.attempt import Attempt
from redlock_django.idempotency.decorator_options import IdempotentOptions
from redlock_django.idempotency.errors import IdempotencyRefused
from redlock_django.idempotency.recorders import Recording
from redlock_django.idempotency.work import Ask, InThread, RunView, TakeLock, Way, WhoAsks, Work
from redlock_django.web.call import Call
from redlock_django.web.options import no_lock
from redlock_django.web.request_state import RequestState, opens_transaction
from redlock_django.web.responses import aanswer, answer
from redlock_django.web.transactions import two_locks_error, view_name


class Driver:
    """Answers one request of an idempotent view, in whichever colour."""

    def __init__(self, call: Call, options: IdempotentOptions) -> None:
        self._call = call
        self._options = options
        self._state = RequestState.of(call.request)
        self._deferred = self._state.take_deferred_lock()

    def run(self) -> Any:
        """Answer the request, by its view or by what is recorded."""
        call = self._call
        if self._state.recording:  # a view that calls another one is one request still
            return call.view(*call.args, **call.kwargs)
        self._state.recording = True
        try:
            with ExitStack() as freeing:
                steps = _Steps(Attempt(call, self._options, is_async=False).way())
                for work in steps:
                    try:
                        steps.result = self._do(work, freeing)
                    except BaseException as error:  # noqa: BLE001 - thrown into the generator
                        steps.error = error
                return steps.answer
        except IdempotencyRefused as error:
            error.problem_base = self._options.settings().problem_base
            return getattr(call.owner, "answer_lock_error", answer)(call.request, error)
        finally:
            self._state.recording = False
            self._state.recorder = None  # a decorator in between may have answered

    def _do(self, work: Work, freeing: ExitStack) -> Any:
        match work:
            case InThread(job):
                return job()
            case Ask(site):
                said = site(self._call.request, **self._call.kwargs)
                if inspect.iscoroutine(said):
                    said.close()  # and by itself it would count as "yes"
                    raise InvalidRedlock(
                        f"{view_name(self._call.view)} is a sync view, and {view_name(site)}, "
                        "which @idempotent was given, a coroutine function"
                    )
                return said
            case WhoAsks():
                return getattr(self._call.request, "user", None)
            case TakeLock(lock):
                return freeing.enter_context(lock)
            case RunView(recorder):
                return self._call_view(recorder, Call.run)

    def _call_view(self, recorder: Recording | None, run: Callable[[Call], Any]) -> Any:
        call = self._call
        self._state.recorder = recorder
        if not opens_transaction(call.view):
            return run(call._replace(options=self._deferred or no_lock(self._options.using)))
        if self._deferred is not None:
            raise two_locks_error(call.view)
        return call.view(*call.args, **call.kwargs)

    async def arun(self) -> Any:
        """Do as `run` does with an async view."""
        call = self._call
        if self._state.recording:
            return await call.view(*call.args, **call.kwargs)
        self._state.recording = True
        try:
            async with AsyncExitStack() as freeing:
                steps = _Steps(Attempt(call, self._options, is_async=True).way())
                for work in steps:
                    try:
                        steps.result = await self._ado(work, freeing)
                    except BaseException as error:  # noqa: BLE001 - thrown into the generator
                        steps.error = error
                return steps.answer
        except IdempotencyRefused as error:
            error.problem_base = self._options.settings().problem_base
            return await aanswer(call.request, error)
        finally:
            self._state.recording = False
            self._state.recorder = None  # a decorator in between may have answered

    async def _ado(self, work: Work, freeing: AsyncExitStack) -> Any:
        match work:
            case InThread(job):
                return await sync_to_async(job)()
            case Ask(site):
                said = site(self._call.request, **self._call.kwargs)
                return await said if inspect.isawaitable(said) else said
            case WhoAsks():
                auser = getattr(self._call.request, "auser", None)
                return None if auser is None else await auser()
            case TakeLock(lock):
                return await freeing.enter_async_context(lock)
            case RunView(recorder):
                return await self._call_view(recorder, Call.arun)


class _Steps:
    """What a generator yields, one after the other; it gets the `result` or the `error` of each."""

    def __init__(self, way: Way) -> None:
        self._way = way
        self.result: Any = None
        self.error: BaseException | None = None
        self.answer: Any = None

    def __iter__(self) -> Iterator[Work]:
        while True:
            result, error, self.result, self.error = self.result, self.error, None, None
            try:
                yield self._way.send(result) if error is None else self._way.throw(error)
            except StopIteration as done:
                self.answer = done.value
                return

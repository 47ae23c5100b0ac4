"""Run a view once for all requests with the same key: one function for sync views, one for async.

`protocol` makes the decisions, and `keyed_request` has what both functions share. The record of a
sync view is in the transaction of the view. An async view has no transaction, so its record says
"running" before the view, and its outcome after it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from typing import Any

from asgiref.sync import iscoroutinefunction, sync_to_async

from redlock_django.exceptions import (
    AlreadyHeld,
    IdempotencyRefused,
    IncompleteBody,
    RedlockError,
    ResourceLocked,
    StoreUnavailable,
)
from redlock_django.idempotency.keyed_request import KeyedRequest
from redlock_django.idempotency.placement import check_permissions
from redlock_django.idempotency.protocol import Action, KeyLock, ViewOutcome
from redlock_django.idempotency.recorder import SeparateRecorder, TransactionRecorder
from redlock_django.idempotency.records import AlreadyRecorded
from redlock_django.idempotency.refusals import TOO_MANY_WAITERS
from redlock_django.idempotency.settings import IdempotentOptions
from redlock_django.locking.event_loops import finish_despite_cancellation
from redlock_django.web.answers import aanswer, answer
from redlock_django.web.locked_view import Call, discard
from redlock_django.web.options import (
    has_pools,
    no_lock,
    return_pooled_connections,
    waiting_thread,
)
from redlock_django.web.view_kinds import transaction_marker


def once(view: Callable[..., Any], options: IdempotentOptions) -> Any:
    """Return the wrapper that runs a view once for all requests with the same key."""
    if iscoroutinefunction(view):
        # No transaction marker: Django must still raise its error about ATOMIC_REQUESTS here.
        @functools.wraps(view)
        async def run_once(*args: Any, **kwargs: Any) -> Any:
            call = Call(view, no_lock(options.using), args, kwargs)
            check_permissions(call, options)
            if call.state.recording:  # an idempotent view calls another one in the same request
                return await view(*args, **kwargs)
            return await _arun_once(call, options)

        return run_once

    marker = transaction_marker(view)

    @functools.wraps(view)
    def run_sync_once(*args: Any, **kwargs: Any) -> Any:
        call = Call(view, no_lock(options.using), args, kwargs, marker)
        check_permissions(call, options)
        if call.state.recording:  # as in an async view
            return view(*args, **kwargs)
        return _arun_once(call, options) if call.is_async else _run_once(call, options)

    run_sync_once._non_atomic_requests = marker  # type: ignore[attr-defined]
    return run_sync_once


# Sync views.


def _run_once(call: Call, options: IdempotentOptions) -> Any:
    """Return the response of a sync view, the recorded one, or the answer to a refusal."""
    keyed = KeyedRequest(call, options, is_async=False)
    call.state.recording = True
    try:
        with ExitStack() as held:
            return keyed.described(_respond(keyed, held))
    except (IdempotencyRefused, IncompleteBody) as error:
        return getattr(call.owner, "answer_lock_error", answer)(call.request, error)
    finally:
        call.state.end_recording()


def _respond(keyed: KeyedRequest, held: ExitStack) -> Any:
    action = keyed.look_up()
    if action is Action.LOCK:
        state = _lock(keyed, held)
        if keyed.is_stale(state):
            keyed.find()
        action = keyed.decide(state)
    if action is None or action is Action.RUN:
        try:
            with keyed.running(TransactionRecorder(keyed.call, keyed.options)):
                return keyed.run_view()
        except AlreadyRecorded:
            keyed.find()
            action = keyed.decide(KeyLock.BUSY)
    return keyed.respond_without_view(action)


def _lock(keyed: KeyedRequest, held: ExitStack) -> KeyLock:
    """Lock the key of the request, and wait for it if the request may."""
    # The first attempt does not wait. A waiter would also wait for masters that are down, and then
    # the client should be refused at once.
    state = _acquire(keyed, held, 0)
    if state is KeyLock.BUSY and keyed.wait is not None:
        with waiting_thread(keyed.options.using) as may_wait:
            if not may_wait:
                raise keyed.refused(TOO_MANY_WAITERS)
            return_pooled_connections()
            state = _acquire(keyed, held, keyed.wait)
    return state


def _acquire(keyed: KeyedRequest, held: ExitStack, wait: float) -> KeyLock:
    try:
        keyed.lock(wait).enter_in(held)
    except (AlreadyHeld, ResourceLocked, StoreUnavailable) as error:
        return keyed.state_of(error)
    return KeyLock.HELD


# Async views. What uses the database, or calls the site, runs in a thread.


async def _arun_once(call: Call, options: IdempotentOptions) -> Any:
    """Return the response of an async view, the recorded one, or the answer to a refusal.

    If the client leaves after the record was begun, the view is finished first.
    """
    recorder = SeparateRecorder(call, options)
    keyed = KeyedRequest(call, options, is_async=True)
    response = _arespond_or_refuse(keyed, recorder)
    if keyed.may_have_key:
        return await finish_despite_cancellation(response, lambda: recorder.begun, discard)
    return await response


async def _arespond_or_refuse(keyed: KeyedRequest, recorder: SeparateRecorder) -> Any:
    call = keyed.call
    call.state.recording = True
    try:
        async with AsyncExitStack() as held:
            return keyed.described(await _arespond(keyed, recorder, held))
    except (IdempotencyRefused, IncompleteBody) as error:
        return await aanswer(call.request, error)
    finally:
        call.state.end_recording()


async def _arespond(keyed: KeyedRequest, recorder: SeparateRecorder, held: AsyncExitStack) -> Any:
    action = await _in_thread(keyed.look_up) if keyed.may_have_key else keyed.look_up()
    if action is Action.LOCK:
        state = await _alock(keyed, held)
        if keyed.is_stale(state):
            await _in_thread(keyed.find)
        action = keyed.decide(state)
    if action is None or action is Action.RUN:
        try:
            with keyed.running(recorder):
                response = await keyed.run_view()
        except AlreadyRecorded:
            await _in_thread(keyed.find)
            action = keyed.decide(KeyLock.BUSY)
        except Exception as error:
            if recorder.is_unfinished:
                await _afailed(keyed, recorder, held, error)
            raise
        else:
            if recorder.is_unfinished:  # a lock error ended the view after it had begun
                await _in_thread(recorder.record, ViewOutcome.UNCERTAIN)
            return response
    return await _in_thread(keyed.respond_without_view, action)


async def _alock(keyed: KeyedRequest, held: AsyncExitStack) -> KeyLock:
    state = await _aacquire(keyed, held, 0)
    if state is KeyLock.BUSY and keyed.wait is not None:
        # It occupies no thread while it waits, so it is not counted.
        if has_pools():
            await _in_thread(return_pooled_connections)
        state = await _aacquire(keyed, held, keyed.wait)
    return state


async def _aacquire(keyed: KeyedRequest, held: AsyncExitStack, wait: float) -> KeyLock:
    try:
        await keyed.lock(wait).aenter_in(held)
    except (AlreadyHeld, ResourceLocked, StoreUnavailable) as error:
        return keyed.state_of(error)
    return KeyLock.HELD


async def _afailed(
    keyed: KeyedRequest, recorder: SeparateRecorder, held: AsyncExitStack, error: Exception
) -> None:
    """Record what an async view has done that raised an error.

    The site, its framework or Django may answer the error, so the answer is recorded when it leaves
    LockMiddleware. Until then the key stays locked.
    """
    state = keyed.call.state
    if recorder.is_completed_by_view:
        # Its record was in its transaction; if that was rolled back, a retry may run.
        await _in_thread(recorder.record, ViewOutcome.NO_EFFECT)
    elif isinstance(error, RedlockError) or not state.has_middleware:
        await _in_thread(recorder.record, ViewOutcome.UNCERTAIN)
    else:
        state.on_answer = recorder.finish_failed
        if keyed.key_lock is not None:
            held.pop_all()
            state.keep(keyed.key_lock)


async def _in_thread(function: Callable[..., Any], *args: Any) -> Any:
    return await sync_to_async(function)(*args)

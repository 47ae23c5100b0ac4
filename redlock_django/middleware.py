"""`LockMiddleware`: applies RULES, answers lock errors, and releases locks that outlive a view."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils.functional import SimpleLazyObject

from redlock_django.conf.settings import check_installed
from redlock_django.exceptions import LockLost, ResourceLocked
from redlock_django.locking.event_loops import call_after_threads, has_sync_caller
from redlock_django.locking.services import locks
from redlock_django.web.answers import (
    aanswer,
    answer,
    has_problem,
    judge_effects,
    was_rolled_back_by_django,
)
from redlock_django.web.request import RequestState, call_on_close, forbid_caching
from redlock_django.web.rules import rules


class LockMiddleware:
    """Applies `RULES`, answers lock errors of any view, and releases handed-over locks.

    It runs outside of ATOMIC_REQUESTS, so it releases locks after COMMIT or rollback. Put it after
    AuthenticationMiddleware. Raises InvalidRedlock for invalid rules, and if INSTALLED_APPS has
    no 'redlock_django'.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        self._is_async = iscoroutinefunction(get_response)
        if self._is_async:
            markcoroutinefunction(self)
        check_installed()
        rules.apply()

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        """Return the response to a request."""
        if (urlconf := getattr(request, "urlconf", None)) not in rules.applied:
            rules.apply(urlconf)
        state = RequestState.of(request)
        state.has_middleware = True
        field = SimpleLazyObject(partial(_idempotency_field, request))
        request.idempotency_field = field  # type: ignore[attr-defined]
        if self._is_async:
            return self._acall(request, state, urlconf)
        try:
            response: HttpResponseBase = self.get_response(request)
            if getattr(request, "urlconf", None) != urlconf:
                rules.refuse_late_urlconf()
            if error := _lost_at_commit(state, response):
                response = answer(request, error)
            if state.on_answer is not None:
                state.on_answer(response)
            if _ends_now(state, request, response):
                state.release_locks()
            return response
        except BaseException:
            state.release_locks()
            raise

    async def _acall(
        self, request: HttpRequest, state: RequestState, urlconf: object
    ) -> HttpResponseBase:
        try:
            response: HttpResponseBase = await self.get_response(request)
            if getattr(request, "urlconf", None) != urlconf:
                rules.refuse_late_urlconf()
            if error := _lost_at_commit(state, response):
                response = await aanswer(request, error)
            if state.on_answer is not None:
                await sync_to_async(state.on_answer)(response)
            if _ends_now(state, request, response):
                await _release(state)
            return response
        except asyncio.CancelledError:
            # A sync view keeps running in its thread, and its transaction is still open.
            await call_after_threads(state.release_locks)
            raise
        except BaseException:
            await _release(state)
            raise

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        """Answer a lock error; Django calls this after it has rolled back ATOMIC_REQUESTS."""
        if not has_problem(error):
            return None
        judge_effects(error, request, undone=was_rolled_back_by_django(request, error))
        prepared = RequestState.of(request).prepared_answer(error)
        return prepared or answer(request, error, status=_status(error))


def _idempotency_field(request: HttpRequest) -> object:
    """Return the value of `{{ request.idempotency_field }}`, whose first use imports it."""
    from redlock_django.idempotency.key import HiddenKey

    return HiddenKey(request)


def _lost_at_commit(state: RequestState, response: HttpResponseBase) -> LockLost | None:
    """Return the error with which the transaction of another middleware was rolled back, or None.

    Django has answered it with 500, because only errors of views are passed to middleware.
    """
    if not state.locks or response.status_code != 500:
        return None
    error = next((lock.lost_at_commit for lock in state.locks if lock.lost_at_commit), None)
    if error is not None:
        vars(error).setdefault("may_have_effects", False)
    return error


def _ends_now(state: RequestState, request: HttpRequest, response: HttpResponseBase) -> bool:
    """Return whether locks of a request end with its response; those of a stream end later."""
    forbid_caching(state, response)
    if state.locks and response.streaming:
        call_on_close(response, request, state.release_locks)
        return False
    return bool(state.locks)


async def _release(state: RequestState) -> None:
    if state.locks and has_sync_caller():
        # A sync middleware may have opened a transaction in its thread.
        await sync_to_async(state.release_locks)()
    else:
        state.release_locks()


def _status(error: Exception) -> int | None:
    if isinstance(error, ResourceLocked) and "default" in list(locks):
        return locks["default"].settings.status
    return None

"""`LockMiddleware`: rules from settings, answers to lock errors, and locks that outlive a view."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from redlock_django.exceptions import ResourceLocked
from redlock_django.idempotency.forms import offer_field
from redlock_django.locking.cancellation import call_after_threads
from redlock_django.locking.handler import locks
from redlock_django.web.handover import Handover
from redlock_django.web.responses import ANSWERED, answer
from redlock_django.web.rules import rules


class LockMiddleware:
    """Puts `RULES` on, answers lock errors of any view, and frees what views handed to it.

    It stands outside of ATOMIC_REQUESTS, so what it frees is freed after COMMIT or rollback.
    Place it after AuthenticationMiddleware. Raises InvalidRedlock for rules that cannot work.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        self._is_async = iscoroutinefunction(get_response)
        if self._is_async:
            markcoroutinefunction(self)
        rules.apply()

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        """Answer a request."""
        rules.apply()  # again only after a change of settings, as tests do
        offer_field(request)
        handover = Handover(request)
        if self._is_async:
            return self._acall(request, handover)
        try:
            response: HttpResponseBase = self.get_response(request)
        except BaseException:
            handover.free()
            raise
        handover.settle(response)
        return response

    async def _acall(self, request: HttpRequest, handover: Handover) -> HttpResponseBase:
        try:
            response: HttpResponseBase = await self.get_response(request)
        except asyncio.CancelledError:
            # A sync view goes on in its thread, and its transaction is still open.
            await call_after_threads(handover.free)
            raise
        except BaseException:
            handover.free()
            raise
        handover.settle(response)
        return response

    def process_exception(self, request: HttpRequest, error: Exception) -> HttpResponse | None:
        """Answer a lock error; Django calls this when ATOMIC_REQUESTS has rolled back."""
        if not isinstance(error, ANSWERED):
            return None
        handover = Handover.of(request)
        prepared = handover.answer_to(error) if handover is not None else None
        return prepared or answer(request, error, status=_status(error))


def _status(error: Exception) -> int | None:
    if isinstance(error, ResourceLocked) and "default" in list(locks):
        return locks["default"].settings.status
    return None

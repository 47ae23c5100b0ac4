"""Kill the process at the moment that a client names in the header `X-Die`."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.utils.decorators import sync_and_async_middleware

_moment = ContextVar("moment", default="")


def die(moment: str) -> None:
    """Kill this process with SIGKILL if this is the moment."""
    if _moment.get() == moment:
        os.kill(os.getpid(), signal.SIGKILL)


def die_before_commit() -> None:
    """Kill this process after the record is completed and before COMMIT, if that is the moment."""
    if _moment.get() != "before the commit":
        return

    def watched(execute: Any, sql: str, *args: Any) -> Any:
        result = execute(sql, *args)
        if sql.startswith("UPDATE") and "idempotencyrecord" in sql:
            die("before the commit")
        return result

    connection.execute_wrappers.append(watched)  # for the rest of this process


@sync_and_async_middleware
def dying_middleware(get_response: Callable[[HttpRequest], Any]) -> Callable[..., Any]:
    """Middleware that reads the moment; the last one is before the response is sent."""
    if iscoroutinefunction(get_response):

        async def answer(request: HttpRequest) -> HttpResponse:
            _moment.set(request.headers.get("X-Die", ""))
            response: HttpResponse = await get_response(request)
            die("before the answer")
            return response

        return answer

    def sync_answer(request: HttpRequest) -> HttpResponse:
        _moment.set(request.headers.get("X-Die", ""))
        response: HttpResponse = get_response(request)
        die("before the answer")
        return response

    return sync_answer

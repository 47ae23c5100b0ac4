"""`@lock_resource`: run a view only while it holds the lock that its request identifies."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from functools import partial
from types import FrameType
from typing import Any, TypeVar, Unpack, cast

from django.http import HttpRequest

from redlock_django.backends.values import (
    LONGEST_WAIT,
    SHORTEST_TTL,
    choice,
    duration,
    http_methods,
    permits,
)
from redlock_django.conf.arguments import ArgumentCheck, checked, has_arguments, taking
from redlock_django.conf.settings import ON_DISCONNECT, STATUSES, check_installed_if_ready
from redlock_django.exceptions import InvalidRedlock
from redlock_django.web.call import DecoratedView
from redlock_django.web.name_templates import Computed, Template, template_of
from redlock_django.web.options import LockOptions, LockResourceArguments
from redlock_django.web.transactions import (
    not_adjacent_error,
    transaction_marker,
    two_locks_error,
)
from redlock_django.web.view_kinds import (
    is_async_class,
    resolve_annotations,
)

View = TypeVar("View", bound=Callable[..., Any])

_WITHOUT_TEMPLATE = (
    "@lock_resource needs parentheses and a template: write @lock_resource('order:<int:pk>')"
)
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"})


def _methods(value: Any, name: str) -> frozenset[str]:
    upper = http_methods(value, name, _METHODS)
    # A view answers HEAD with its handler for GET.
    return upper | {"HEAD"} if "GET" in upper else upper


_CHECKS: Mapping[str, ArgumentCheck] = {
    "ttl": partial(duration, least=SHORTEST_TTL),
    "wait": partial(duration, least=0, most=LONGEST_WAIT),
    "methods": _methods,
    "status": partial(choice, allowed=STATUSES),
    "on_locked": taking("request, error"),
    "on_disconnect": partial(choice, allowed=ON_DISCONNECT),
    "limit": permits,
}


@has_arguments(LockResourceArguments)
def lock_resource(
    *templates: str | Computed, using: str = "default", **arguments: Unpack[LockResourceArguments]
) -> Callable[[View], View]:
    """Return a decorator that runs a view only while it holds the lock that its templates name.

    It decorates functions, methods, and the result of `as_view()`. Under ATOMIC_REQUESTS the order
    is lock, BEGIN, view, render, check of the lock, COMMIT, release. Where the transaction is
    already open (a handler method), `LockMiddleware` releases the lock after its COMMIT.

    `ttl` and `wait` are seconds or timedeltas; None is the setting of the alias. `methods` are the
    HTTP methods to lock, None for all. `status` is the HTTP status of the answer to a held lock
    (409, 423, 429 or 503). `on_locked(request, error)` may return that answer, or None for the
    default one; caches do not store it, unless it has a `Cache-Control` of its own. If the client
    leaves, an async view runs to its end under the lock, unless `on_disconnect` is "cancel".

    With a `limit`, so many requests may hold the name at once.

    Raises InvalidRedlock at import time for invalid arguments or templates.
    """
    for template in templates:
        if inspect.isclass(template) or (callable(template) and _is_being_decorated(template)):
            raise InvalidRedlock(_WITHOUT_TEMPLATE)
    options = LockOptions(
        templates=_templates(templates),
        using=using,
        **checked("lock_resource", _CHECKS, arguments),
    )
    if options.limit is not None:
        options.check_limit()

    def decorate(view: View, *args: Any, **kwargs: Any) -> View:
        target: Any = view
        if isinstance(target, HttpRequest) or args or kwargs:
            raise InvalidRedlock(_WITHOUT_TEMPLATE)
        if inspect.isclass(target) or not callable(target):
            raise InvalidRedlock(
                f"lock_resource() needs a view function, got {view!r}. For a class, use "
                '@method_decorator(lock_resource(...), name="dispatch"), LockResourceMixin, or '
                "decorate the result of its as_view()"
            )
        decorated = DecoratedView(view, options)
        facts = decorated.facts
        if facts.has_lock:
            raise two_locks_error(view)
        if facts.records_requests and not facts.is_recording:
            raise not_adjacent_error(view)
        wrap = _async_view if facts.is_async else _sync_view
        locked = wrap(decorated)
        check_installed_if_ready()
        resolve_annotations(locked, view)
        locked.lock_options = options  # the system checks read it
        return cast("View", locked)

    decorate.needs_view = True  # type: ignore[attr-defined]  # the system checks read it
    return decorate


def _is_being_decorated(function: Any) -> bool:
    """Return whether the caller is at the decorators of a function: those of `@lock_resource`.

    A function that returns names, given in parentheses, is defined in other lines.
    """
    code = getattr(inspect.unwrap(function), "__code__", None)
    frame: FrameType | None = sys._getframe()
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("redlock_django."):
        frame = frame.f_back
    if code is None or frame is None or code.co_name == "<lambda>":
        return False
    if not any(code is part for part in frame.f_code.co_consts):
        return False
    last = max(line for *_, line in code.co_lines() if line is not None)
    return bool(code.co_firstlineno <= frame.f_lineno <= last)


def _sync_view(decorated: DecoratedView) -> Any:
    decorated.marker = marker = transaction_marker(decorated.view)

    @functools.wraps(decorated.view)
    def locked(*args: Any, **kwargs: Any) -> Any:
        call = decorated.call(args, kwargs)
        return call.arun() if is_async_class(call.owner.__class__) else call.run()

    locked._non_atomic_requests = marker  # type: ignore[attr-defined]
    return locked


def _async_view(decorated: DecoratedView) -> Any:
    # No transaction marker: Django must still raise its error about ATOMIC_REQUESTS here.
    @functools.wraps(decorated.view)
    async def locked(*args: Any, **kwargs: Any) -> Any:
        return await decorated.call(args, kwargs).arun()

    return locked


def _templates(sources: tuple[str | Computed, ...]) -> tuple[Template, ...]:
    if not sources:
        raise InvalidRedlock("lock_resource() needs a template: @lock_resource('order:<int:pk>')")
    return tuple(map(template_of, sources))

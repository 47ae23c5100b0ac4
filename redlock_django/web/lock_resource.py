"""`@lock_resource`: a view that runs only while it holds the lock its request names."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection
from datetime import timedelta
from typing import Any, TypeVar, cast

from asgiref.sync import iscoroutinefunction
from django.http import HttpRequest

from redlock_django.conf.settings import STATUSES
from redlock_django.conf.values import SHORTEST_TTL, duration
from redlock_django.exceptions import InvalidRedlock
from redlock_django.web.call import call_of
from redlock_django.web.nesting import opens_transaction
from redlock_django.web.options import LockOptions, OnLocked
from redlock_django.web.resources import Computed, Template
from redlock_django.web.transactions import take_over, two_locks

View = TypeVar("View", bound=Callable[..., Any])

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"})


def lock_resource(
    *templates: str | Computed,
    using: str = "default",
    ttl: float | timedelta | None = None,
    wait: float | timedelta | None = None,
    methods: Collection[str] | None = None,
    status: int | None = None,
    on_locked: OnLocked | None = None,
) -> Callable[[View], View]:
    """Let a view run only while it holds the lock that its templates name.

    For functions, methods, and what `as_view()` gives. Under ATOMIC_REQUESTS the order is lock,
    BEGIN, view, render, check of the lock, COMMIT, release; where the transaction is open before
    (a handler method), `LockMiddleware` releases after its COMMIT. `ttl` and `wait` are seconds
    or timedeltas; None is the alias's own. `methods` are the HTTP methods to lock, None for all;
    `status` answers a held lock (409, 423, 429 or 503). `on_locked(request, error)` may give that
    answer itself, or None. Raises InvalidRedlock when the module is imported, for arguments or
    templates that cannot work.
    """
    options = LockOptions(
        templates=_templates(templates),
        using=using,
        ttl=_checked(ttl, "ttl", SHORTEST_TTL),
        wait=_checked(wait, "wait", 0),
        methods=_methods(methods),
        status=_status(status),
        on_locked=on_locked,
    )
    if on_locked is not None and not callable(on_locked):
        raise InvalidRedlock("lock_resource(): on_locked must be a callable (request, error)")

    def decorate(view: View, *args: Any, **kwargs: Any) -> View:
        target: Any = view
        if isinstance(target, HttpRequest) or args or kwargs:
            raise InvalidRedlock(
                "@lock_resource was put on a view without its parentheses: write "
                "@lock_resource('order:<pk>')"
            )
        if inspect.isclass(target) or not callable(target):
            raise InvalidRedlock(
                f"lock_resource() needs a view function, got {view!r}; for a class, use "
                '@method_decorator(lock_resource(...), name="dispatch"), LockResourceMixin, or '
                "decorate what its as_view() gives"
            )
        if opens_transaction(view):
            raise two_locks(view)
        wrap = _async_view if iscoroutinefunction(view) else _sync_view
        locked = wrap(view, options)
        locked.lock_options = options  # for the system checks
        return cast("View", locked)

    return decorate


def _sync_view(view: Callable[..., Any], options: LockOptions) -> Any:
    marker = take_over(view)

    @functools.wraps(view)
    def locked(*args: Any, **kwargs: Any) -> Any:
        call = call_of(view, options, args, kwargs, marker)
        return call.arun() if call.is_async else call.run()

    locked._non_atomic_requests = marker  # type: ignore[attr-defined]
    return locked


def _async_view(view: Callable[..., Any], options: LockOptions) -> Any:
    # Not marked: Django's own error about ATOMIC_REQUESTS and async views must stay.
    @functools.wraps(view)
    async def locked(*args: Any, **kwargs: Any) -> Any:
        return await call_of(view, options, args, kwargs, None).arun()

    return locked


def _templates(sources: tuple[str | Computed, ...]) -> tuple[Template, ...]:
    if not sources:
        raise InvalidRedlock("lock_resource() needs a template: @lock_resource('order:<pk>')")
    return tuple(map(Template, sources))


def _checked(value: Any, name: str, least: float) -> float | None:
    if value is None:
        return None
    try:
        return duration(value, name, least=least)
    except ValueError as error:
        raise InvalidRedlock(f"lock_resource(): {error}") from None


def _status(status: int | None) -> int | None:
    if status is not None and status not in STATUSES:
        known = ", ".join(map(str, STATUSES))
        raise InvalidRedlock(f"lock_resource(): status must be one of {known}, got {status!r}")
    return status


def _methods(methods: Any) -> frozenset[str] | None:
    if methods is None:
        return None
    if isinstance(methods, str) or not isinstance(methods, Collection) or not methods:
        raise InvalidRedlock("lock_resource(): methods must be a list such as ['POST']")
    upper = frozenset(str(method).upper() for method in methods)
    if unknown := upper - _METHODS:
        raise InvalidRedlock(f"lock_resource(): unknown method {', '.join(sorted(unknown))!r}")
    # A view answers HEAD by running what it runs for GET.
    return upper | {"HEAD"} if "GET" in upper else upper

"""`@lock_resource`: run a view only while it holds the lock that its request identifies."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar, cast

from django.http import HttpRequest

from redlock_django.backends.values import (
    LONGEST_WAIT,
    SHORTEST_TTL,
    choice,
    duration,
    http_methods,
    permits,
)
from redlock_django.conf.arguments import ArgumentCheck, checked, taking
from redlock_django.conf.settings import STATUSES, check_installed_if_ready
from redlock_django.exceptions import InvalidRedlock
from redlock_django.web.locked_view import locked_view
from redlock_django.web.misplaced_locks import idempotent_below_error, two_locks_error
from redlock_django.web.name_templates import Computed, template_of
from redlock_django.web.options import LockOptions, OnLocked
from redlock_django.web.view_kinds import (
    has_lock,
    records_requests,
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
    "on_disconnect": partial(choice, allowed=("finish", "cancel")),
    "limit": permits,
}


def lock_resource(
    *templates: str | Computed,
    using: str = "default",
    ttl: float | timedelta | None = None,
    wait: float | timedelta | None = None,
    methods: Collection[str] | None = None,
    status: int | None = None,
    on_locked: OnLocked | None = None,
    on_disconnect: str | None = None,
    limit: int | None = None,
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
    arguments = checked("lock_resource", _CHECKS, locals())
    if any(map(inspect.isclass, templates)):
        raise InvalidRedlock(_WITHOUT_TEMPLATE)
    if not templates:
        raise InvalidRedlock("lock_resource() needs a template: @lock_resource('order:<int:pk>')")
    options = LockOptions(templates=tuple(map(template_of, templates)), using=using, **arguments)
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
        if has_lock(view):
            raise two_locks_error(view)
        if records_requests(view):
            raise idempotent_below_error(view)
        locked = locked_view(view, options)
        check_installed_if_ready()
        resolve_annotations(locked, view)
        locked.lock_options = options  # the system checks read it
        return cast("View", locked)

    decorate.options = options  # type: ignore[attr-defined]  # the system checks read it
    return decorate

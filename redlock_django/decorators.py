"""`@lock_resource`: a view that runs only while it holds the lock its request names."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from redlock_django import conf
from redlock_django.exceptions import InvalidRedlock, RedlockError, ResourceLocked
from redlock_django.handler import locks
from redlock_django.locking import Lock, lock
from redlock_django.resources import Computed, Template
from redlock_django.responses import ANSWERED, aanswer, answer
from redlock_django.transactions import (
    refuse_inside_a_block,
    take_over,
    transactions_of,
    view_name,
)

View = TypeVar("View", bound=Callable[..., Any])
OnLocked = Callable[[HttpRequest, ResourceLocked], Any]

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

    Under ATOMIC_REQUESTS the order is lock, BEGIN, view, render, check of the lock, COMMIT,
    release. `ttl` and `wait` are seconds or timedeltas; None is the alias's own. `methods` are
    the HTTP methods to lock, None for all; `status` answers a held lock (409, 423, 429 or 503).
    `on_locked(request, error)` may give that answer itself, or None. Raises InvalidRedlock when
    the module is imported, for arguments or templates that cannot work.
    """
    terms = _Terms(
        templates=_templates(templates),
        using=using,
        ttl=_checked(ttl, "ttl", conf.SHORTEST_TTL),
        wait=_checked(wait, "wait", 0),
        methods=_methods(methods),
        status=_status(status),
        on_locked=on_locked,
    )
    if on_locked is not None and not callable(on_locked):
        raise InvalidRedlock("lock_resource(): on_locked must be a callable (request, error)")

    def decorate(view: View) -> View:
        target: Any = view
        if inspect.isclass(target) or not callable(target):
            raise InvalidRedlock(
                f"lock_resource() needs a view function, got {view!r}; for a class, decorate "
                "what its as_view() gives"
            )
        wrap = _async_view if iscoroutinefunction(view) else _sync_view
        return cast("View", wrap(view, terms))

    return decorate


@dataclass(frozen=True, kw_only=True)
class _Terms:
    """What one `lock_resource(...)` was told, checked."""

    templates: tuple[Template, ...]
    using: str
    ttl: float | None
    wait: float | None
    methods: frozenset[str] | None
    status: int | None
    on_locked: OnLocked | None

    def apply_to(self, request: HttpRequest) -> bool:
        return self.methods is None or request.method in self.methods

    def lock(self, request: HttpRequest, names: list[str]) -> Lock:
        return lock(
            *dict.fromkeys(names),  # two templates may name one resource
            using=self.using,
            ttl=self.ttl,
            wait=self.wait,
            holder={"path": request.path},
        )

    def own_answer(self, request: HttpRequest, error: RedlockError) -> Any:
        if self.on_locked is None or not isinstance(error, ResourceLocked):
            return None
        return self.on_locked(request, error)

    def status_for(self, error: RedlockError) -> int | None:
        if not isinstance(error, ResourceLocked):
            return None
        return self.status or locks[self.using].options.status

    def check_kwargs(self, view: Callable[..., Any], kwargs: Mapping[str, Any]) -> None:
        for template in self.templates:
            for name in sorted(template.names - kwargs.keys()):
                raise InvalidRedlock(
                    f"{view_name(view)}: template {template.text!r} needs the URL kwarg {name!r}; "
                    f"the URL gives: {', '.join(map(repr, kwargs)) or 'none'}"
                )


def _sync_view(view: Callable[..., Any], terms: _Terms) -> Callable[..., Any]:
    for template in terms.templates:
        if template.is_async:
            raise InvalidRedlock(
                f"{view_name(view)} is a sync view and {template.text!r} a coroutine function"
            )
    marker = take_over(view)

    @functools.wraps(view)
    def locked(*args: Any, **kwargs: Any) -> HttpResponseBase:
        request = _request(view, args)
        if not terms.apply_to(request):
            with transactions_of(marker, durable=False):
                return cast("HttpResponseBase", view(*args, **kwargs))
        refuse_inside_a_block(view)
        terms.check_kwargs(view, kwargs)
        try:
            names = [template.render(request, kwargs) for template in terms.templates]
            locks = terms.lock(request, names)
            # Left from right to left: COMMIT, then release.
            with locks as held, transactions_of(marker, durable=True) as guarded:
                response = view(*args, **kwargs)
                if _renders(response):
                    response = response.render()
                # What is committed already cannot be taken back by refusing a finished response.
                if guarded:
                    held.ensure_held()
            return cast("HttpResponseBase", response)
        except ANSWERED as error:
            own = terms.own_answer(request, error)
            if own is None:
                own = answer(request, error, status=terms.status_for(error))
            return cast("HttpResponseBase", own)

    locked._non_atomic_requests = marker  # type: ignore[attr-defined]
    return locked


def _async_view(view: Callable[..., Any], terms: _Terms) -> Callable[..., Any]:
    # Not marked: Django's own error about ATOMIC_REQUESTS and async views must stay.
    @functools.wraps(view)
    async def locked(*args: Any, **kwargs: Any) -> HttpResponseBase:
        request = _request(view, args)
        if not terms.apply_to(request):
            return cast("HttpResponseBase", await view(*args, **kwargs))
        terms.check_kwargs(view, kwargs)
        try:
            names = [await template.arender(request, kwargs) for template in terms.templates]
            async with terms.lock(request, names):
                response = await view(*args, **kwargs)
                if _renders(response):
                    response = await sync_to_async(response.render)()
            return cast("HttpResponseBase", response)
        except ANSWERED as error:
            own = terms.own_answer(request, error)
            if inspect.isawaitable(own):
                own = await own
            if own is None:
                own = await aanswer(request, error, status=terms.status_for(error))
            return cast("HttpResponseBase", own)

    return locked


def _request(view: Callable[..., Any], args: tuple[Any, ...]) -> HttpRequest:
    if args and isinstance(args[0], HttpRequest):
        return args[0]
    raise InvalidRedlock(
        f"{view_name(view)} was called without a request as its first argument; for a method, "
        "use method_decorator(lock_resource(...))"
    )


def _renders(response: Any) -> bool:
    return callable(getattr(response, "render", None))


def _templates(sources: tuple[str | Computed, ...]) -> tuple[Template, ...]:
    if not sources:
        raise InvalidRedlock("lock_resource() needs a template: @lock_resource('order:<pk>')")
    return tuple(map(Template, sources))


def _checked(value: Any, name: str, least: float) -> float | None:
    if value is None:
        return None
    try:
        return conf.duration(value, name, least=least)
    except ValueError as error:
        raise InvalidRedlock(f"lock_resource(): {error}") from None


def _status(status: int | None) -> int | None:
    if status is not None and status not in conf.STATUSES:
        known = ", ".join(map(str, conf.STATUSES))
        raise InvalidRedlock(f"lock_resource(): status must be one of {known}, got {status!r}")
    return status


def _methods(methods: Collection[str] | None) -> frozenset[str] | None:
    if methods is None:
        return None
    if isinstance(methods, str) or not methods:
        raise InvalidRedlock("lock_resource(): methods must be a list such as ['POST']")
    upper = frozenset(str(method).upper() for method in methods)
    if unknown := upper - _METHODS:
        raise InvalidRedlock(f"lock_resource(): unknown method {', '.join(sorted(unknown))!r}")
    # A view answers HEAD by running what it runs for GET.
    return upper | {"HEAD"} if "GET" in upper else upper

"""`@idempotent`: a view whose requests may be sent again, and take effect once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterable
from datetime import timedelta
from typing import Any, TypeVar, cast, overload

from asgiref.sync import iscoroutinefunction

from redlock_django.conf.values import duration
from redlock_django.exceptions import InvalidRedlock
from redlock_django.idempotency.decorator_options import IdempotentOptions
from redlock_django.idempotency.drivers import Driver
from redlock_django.idempotency.placement import permissions_inside, replay_too_early
from redlock_django.idempotency.settings import choice, methods_of
from redlock_django.web.call import Call, call_of
from redlock_django.web.options import no_lock
from redlock_django.web.request_state import records_requests
from redlock_django.web.transactions import transaction_marker, view_name

View = TypeVar("View", bound=Callable[..., Any])
Scope = Callable[..., Any]


@overload
def idempotent(view: View, /) -> View: ...


@overload
def idempotent(
    *,
    using: str = "default",
    store: str | None = None,
    required: bool | None = None,
    methods: Collection[str] | None = None,
    in_flight: str | None = None,
    wait: float | timedelta | None = None,
    retention: float | timedelta | None = None,
    on_expired: str | None = None,
    on_5xx: str | None = None,
    anonymous_scope: Scope | None = None,
    tenant: Scope | None = None,
    replay_check: Callable[..., Any] | None = None,
    canonical_json: bool = False,
    ignore: Iterable[str] = (),
) -> Callable[[View], View]: ...


def idempotent(
    view: Any = None,
    /,
    *,
    using: str = "default",
    store: str | None = None,
    required: bool | None = None,
    methods: Collection[str] | None = None,
    in_flight: str | None = None,
    wait: float | timedelta | None = None,
    retention: float | timedelta | None = None,
    on_expired: str | None = None,
    on_5xx: str | None = None,
    anonymous_scope: Scope | None = None,
    tenant: Scope | None = None,
    replay_check: Callable[..., Any] | None = None,
    canonical_json: bool = False,
    ignore: Iterable[str] = (),
) -> Any:
    """Let a request with an `Idempotency-Key` take effect once, however often it is sent.

    The first one runs the view, in a transaction of ours that its record is part of; every other
    is given the same response. Below login and permission decorators, above or below
    `@lock_resource`: the order is dedupe, lock, transaction. What is None is as the settings say:

    `store` "database" or "cache"; `required` refuses requests without a key; `in_flight` is what
    to do while the first one runs, "conflict", "wait" (at most `wait` seconds), or "auto": wait
    for a key from a form; `retention`, seconds or a timedelta, is how long the response is
    replayed, and `on_expired` "reject" or "run" what comes then; `on_5xx` "forget" or "record".

    A key belongs to the user who is logged in. These callables get `(request, **kwargs)`:
    `anonymous_scope` names whom it belongs to otherwise, `tenant` a part of the site beside, and
    `replay_check` says whether this user may have a replay. With `canonical_json` two bodies are
    the same if their JSON is, without what the JSON pointers of `ignore` point to.

    An async view and the cache store have no transaction of ours. There the record is written
    before the view and completed after it, and what was interrupted in between is answered 409
    "uncertain" until somebody resolves it; `request.idempotency.complete(response)` closes that
    gap for an async view with a transaction of its own.

    Raises InvalidRedlock when the module is imported, for what cannot work.
    """
    if view is not None:
        return idempotent()(view)
    try:
        given = _given(store, required, methods, in_flight, wait, retention, on_expired, on_5xx)
    except ValueError as error:
        raise InvalidRedlock(f"idempotent(): {error}") from None
    for name, value in (
        ("anonymous_scope", anonymous_scope),
        ("tenant", tenant),
        ("replay_check", replay_check),
    ):
        if value is not None and not callable(value):
            raise InvalidRedlock(f"idempotent(): {name} must be a callable (request, **kwargs)")
    if tenant is not None:
        given["tenant"] = tenant
    options = IdempotentOptions(
        using=using,
        given=given,
        anonymous_scope=anonymous_scope,
        replay_check=replay_check,
        canonical_json=canonical_json or bool(ignore),
        ignore=_pointers(ignore),
    )

    def decorate(view: View) -> View:
        target: Any = view
        if inspect.isclass(target) or not callable(target):
            raise InvalidRedlock(
                f"idempotent() needs a view function, got {view!r}; for a class, use "
                '@method_decorator(idempotent, name="dispatch"), IdempotentMixin, or decorate '
                "what its as_view() gives"
            )
        if records_requests(view):
            raise InvalidRedlock(f"{view_name(view)} has two @idempotent")
        inside = None if replay_check is not None else permissions_inside(view)
        if inside is not None:
            raise replay_too_early(view, inside)
        wrap = _async_view if iscoroutinefunction(view) else _sync_view
        wrapped = wrap(view, options)
        wrapped.records_requests = True
        wrapped.idempotent_options = options  # for the system checks
        return cast("View", wrapped)

    return decorate


def _sync_view(view: Callable[..., Any], options: IdempotentOptions) -> Any:
    marker = transaction_marker(view)

    @functools.wraps(view)
    def deduped(*args: Any, **kwargs: Any) -> Any:
        call = call_of(view, no_lock(options.using), args, kwargs, marker)
        _check_permissions(call, options)
        driver = Driver(call, options)
        return driver.arun() if call.is_async else driver.run()

    deduped._non_atomic_requests = marker  # type: ignore[attr-defined]
    return deduped


def _async_view(view: Callable[..., Any], options: IdempotentOptions) -> Any:
    # Not marked: Django's own error about ATOMIC_REQUESTS and async views must stay.
    @functools.wraps(view)
    async def deduped(*args: Any, **kwargs: Any) -> Any:
        call = call_of(view, no_lock(options.using), args, kwargs, None)
        return await Driver(call, options).arun()

    return deduped


def _check_permissions(call: Call, options: IdempotentOptions) -> None:
    if call.owner is None or getattr(call.view, "__name__", "") != "dispatch":
        return
    inside = None if options.replay_check else permissions_inside(call.view, type(call.owner))
    if inside is not None:
        raise replay_too_early(type(call.owner), inside)


def _given(
    store: str | None,
    required: bool | None,
    methods: Collection[str] | None,
    in_flight: str | None,
    wait: float | timedelta | None,
    retention: float | timedelta | None,
    on_expired: str | None,
    on_5xx: str | None,
) -> dict[str, Any]:
    given: dict[str, Any] = {}
    choices = {"store": store, "in_flight": in_flight, "on_expired": on_expired, "on_5xx": on_5xx}
    for name, value in choices.items():
        if value is not None:
            given[name] = choice(value, name, name)
    for name, seconds, least in (("wait", wait, 0.0), ("retention", retention, 1.0)):
        if seconds is not None:
            given[name] = duration(seconds, name, least=least)
    if methods is not None:
        given["methods"] = methods_of(methods, "methods")
    if required is not None:
        if not isinstance(required, bool):
            raise ValueError(f"required must be True or False, got {required!r}")
        given["required"] = required
    return given


def _pointers(ignore: Iterable[str]) -> tuple[str, ...]:
    pointers = () if isinstance(ignore, str) else tuple(ignore)
    if isinstance(ignore, str) or not all(str(p).startswith("/") for p in pointers):
        raise InvalidRedlock("idempotent(): ignore must be a list of JSON pointers: ['/sent_at']")
    return pointers

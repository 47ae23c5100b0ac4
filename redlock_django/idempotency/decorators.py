"""`@idempotent` and `IdempotentMixin`: run a view once for all requests with the same key."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack, cast, overload

from asgiref.sync import iscoroutinefunction
from django.utils.decorators import classonlymethod

from redlock_django.conf.arguments import ArgumentCheck, checked, taking
from redlock_django.conf.settings import check_installed_if_ready
from redlock_django.exceptions import InvalidRedlock
from redlock_django.idempotency.once import once
from redlock_django.idempotency.placement import (
    check_lock_of_operation,
    check_not_excluded,
    inner_permission_check,
    replay_skips_check_error,
)
from redlock_django.idempotency.settings import KEYS, IdempotentOptions, KeySource
from redlock_django.web.request import SOURCES
from redlock_django.web.view_kinds import (
    bound_to,
    is_async_class,
    records_requests,
    resolve_annotations,
    transaction_marker,
    view_name,
)
from redlock_django.wire.servers.address import nearest

if TYPE_CHECKING:
    from django.views.generic import View as DjangoView
else:
    DjangoView = object

View = TypeVar("View", bound=Callable[..., Any])


class IdempotentArguments(TypedDict, total=False):
    """The arguments of `idempotent` beyond `using`."""

    key: str | Callable[..., Any] | None
    scope: str | Callable[..., Any] | None
    required: bool | None
    methods: Collection[str] | None
    wait: float | timedelta | None
    retention: float | timedelta | None
    anonymous_scope: Callable[..., Any] | None
    tenant: Callable[..., Any] | None
    replay_check: Callable[..., Any] | None
    redact: Callable[..., Any] | None


def _key(value: Any, name: str) -> KeySource | Callable[..., Any]:
    if callable(value):
        return cast("Callable[..., Any]", value)
    example = f"{name} must be a place such as 'header:webhook-id', or a callable"
    if not isinstance(value, str):
        raise ValueError(f"{example} (request, **kwargs), got {type(value).__name__}")
    source, _, place = value.partition(":")
    if source not in SOURCES:
        raise ValueError(f"{example}: unknown source {source!r}{nearest(source, SOURCES)}")
    if not place:
        raise ValueError(f"{example}: {value!r} names nothing to read")
    return KeySource(source, place)


def _scope(value: Any, name: str) -> str | Callable[..., Any]:
    if callable(value) or (isinstance(value, str) and value):
        return cast("str | Callable[..., Any]", value)
    raise ValueError(f"{name} must be a string such as 'stripe', or a callable (request, **kwargs)")


_OVERRIDES = ("required", "methods", "wait", "retention", "tenant")
"""The arguments that take precedence over the setting with the same name."""

_CHECKS: Mapping[str, ArgumentCheck] = {
    **{name: KEYS[name.upper()][1] for name in _OVERRIDES},
    "tenant": taking("request, **kwargs"),
    "anonymous_scope": taking("request, **kwargs"),
    "replay_check": taking("request, **kwargs"),
    "redact": taking("request, body"),
    "key": _key,
    "scope": _scope,
}


def _check_combination(arguments: Mapping[str, Any]) -> None:
    """Raise InvalidRedlock for an argument that would have no effect."""
    given = {name for name, value in arguments.items() if value is not None}
    if "scope" in given and "key" not in given:
        raise InvalidRedlock(
            "idempotent(): scope is for keys that a provider sends. Say where they are: "
            "key=event_id, a function of the request, or key='header:webhook-id'"
        )
    if {"scope", "anonymous_scope"} <= given:
        raise InvalidRedlock(
            "idempotent(): anonymous_scope has no effect with scope, which is the owner of all "
            "keys, whatever the user. Leave out one of them"
        )


@overload
def idempotent(view: View, /) -> View: ...


@overload
def idempotent(
    *, using: str = "default", **arguments: Unpack[IdempotentArguments]
) -> Callable[[View], View]: ...


def idempotent(
    view: Any = None,
    /,
    *,
    using: str = "default",
    key: Any = None,
    scope: Any = None,
    required: Any = None,
    methods: Any = None,
    wait: Any = None,
    retention: Any = None,
    anonymous_scope: Any = None,
    tenant: Any = None,
    replay_check: Any = None,
    redact: Any = None,
) -> Any:
    """Return a decorator: a request with an `Idempotency-Key` takes effect once.

    The first request runs the view in a transaction that also contains its record. Every later one
    gets the same response. Put it below login and permission decorators, and above
    `@lock_resource`: the order is record, lock, transaction. For an
    argument that is None, the setting applies:

    - `required` refuses requests without a key.
    - `methods` are the HTTP methods whose requests may have a key.
    - `wait` is for how many seconds a retry waits for the response of the first request, which
      still runs. Without it, a retry is answered 409; a key from a form waits for `WAIT`.
    - `retention`, seconds or a timedelta, is how long the response is replayed. After that, the
      key is refused.

    For a webhook, `key` is where its sender puts the id of an event: "header:webhook-id", "get:"
    with the name of a parameter of the query, or a callable `(request, **kwargs)`, which returns
    it or None. Then `required` is True unless it is given. `scope` is the name of the provider, or
    a callable that returns it: its ids belong neither to a user nor to a host, and are the same
    event in any body.

    Otherwise a key belongs to the user who is logged in. Three callables get `(request, **kwargs)`:
    `anonymous_scope` returns the owner of the key of an anonymous request, `tenant` returns a part
    of the site that has its own keys, and `replay_check` returns whether the user may get a replay.
    `redact` gets `(request, body)` and returns the bytes to store of a response.

    An async view has no common transaction with its record, which is written before the view and
    completed with the answer that leaves LockMiddleware. A request that was interrupted in between
    is answered 409 "uncertain" until it is resolved. A view with a transaction of its own avoids
    that with `request.idempotency.complete(response)`.

    Raises InvalidRedlock at import time for invalid arguments.
    """
    arguments = locals()
    if view is not None:
        return idempotent()(view)
    others = checked("idempotent", _CHECKS, arguments)
    _check_combination(arguments)
    given = {name: others.pop(name) for name in _OVERRIDES}
    if key is not None and required is None:
        given["required"] = True
    given = {name: value for name, value in given.items() if value is not None}
    options = IdempotentOptions(using=using, given=given, **others)

    def decorate(view: View) -> View:
        return _decorated(view, options)

    decorate.options = options  # type: ignore[attr-defined]
    return decorate


def _decorated(view: View, options: IdempotentOptions) -> View:
    """Return the idempotent wrapper of a view; raise InvalidRedlock if it cannot have one."""
    target: Any = view
    if inspect.isclass(target) or not callable(target):
        raise InvalidRedlock(
            f"idempotent() needs a view function, got {view!r}. For a class, use "
            '@method_decorator(idempotent, name="dispatch"), IdempotentMixin, or decorate '
            "the result of its as_view()"
        )
    if records_requests(view):
        raise InvalidRedlock(f"{view_name(view)} is decorated with @idempotent twice; remove one")
    check_lock_of_operation(view)
    check = None if options.replay_check is not None else inner_permission_check(view)
    if check is not None:
        raise replay_skips_check_error(view, check)
    if not (iscoroutinefunction(view) or is_async_class(type(bound_to(view)))):
        check_not_excluded(view, transaction_marker(view), options)
    wrapped = once(view, options)
    check_installed_if_ready()
    resolve_annotations(wrapped, view)
    wrapped.records_requests = True
    wrapped.idempotent_options = options  # the system checks read it
    return cast("View", wrapped)


class IdempotentMixin(DjangoView):
    """A class-based view whose requests may be sent again, and take effect once.

    `idempotent_options` are the arguments of `idempotent`. List the mixin after the mixins that
    check permissions, such as `LoginRequiredMixin`, so that they also run before a replay, and
    before `LockResourceMixin`. Raises InvalidRedlock at the first request if a mixin
    that checks permissions comes after it.
    """

    idempotent_options: Mapping[str, Any] = {}

    @classonlymethod
    def as_view(cls, **initkwargs: Any) -> Any:  # noqa: N805
        """Return the view function, for which Django opens no transaction."""
        view: Any = super().as_view(**initkwargs)
        if not iscoroutinefunction(view):
            view._non_atomic_requests = transaction_marker(view)
        view.records_requests = True
        decorate: Any = idempotent(**initkwargs.get("idempotent_options", cls.idempotent_options))
        view.idempotent_options = decorate.options
        return view

    def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """Replay the recorded response, or run the next dispatch."""
        run_once = idempotent(**self.idempotent_options)(super().dispatch)
        return run_once(request, *args, **kwargs)

    dispatch.records_requests = True  # type: ignore[attr-defined]

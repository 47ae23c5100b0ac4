"""`@idempotent` and `IdempotentMixin`: run a view once for all requests with the same key."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from asgiref.sync import iscoroutinefunction
from django.http import HttpRequest
from django.utils.decorators import classonlymethod

from redlock_django.backends.values import (
    LONGEST_RETENTION,
    LONGEST_WAIT,
    choice,
    duration,
    flag,
    http_methods,
)
from redlock_django.conf.arguments import helps_with_arguments
from redlock_django.conf.settings import check_installed_if_ready
from redlock_django.exceptions import InvalidRedlock
from redlock_django.idempotency.flow.attempt import async_view, sync_view
from redlock_django.idempotency.placement import (
    inner_permission_check,
    replay_skips_check_error,
)
from redlock_django.idempotency.settings import CHOICES, METHODS, IdempotentOptions
from redlock_django.web.frameworks import resolve_annotations
from redlock_django.web.request_state import records_requests
from redlock_django.web.transactions import transaction_marker, view_name

if TYPE_CHECKING:
    from django.views.generic import View as DjangoView
else:
    DjangoView = object

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
    store_body: bool | None = None,
    methods: Collection[str] | None = None,
    in_flight: str | None = None,
    wait: float | timedelta | None = None,
    retention: float | timedelta | None = None,
    on_expired: str | None = None,
    on_5xx: str | None = None,
    on_disconnect: str | None = None,
    on_unscoped: str | None = None,
    anonymous_scope: Scope | None = None,
    tenant: Scope | None = None,
    replay_check: Callable[..., Any] | None = None,
    redact: Callable[..., Any] | None = None,
    canonical_json: bool = False,
    ignore: Iterable[str] = (),
) -> Callable[[View], View]: ...


@helps_with_arguments
def idempotent(
    view: Any = None,
    /,
    *,
    using: str = "default",
    store: str | None = None,
    required: bool | None = None,
    store_body: bool | None = None,
    methods: Collection[str] | None = None,
    in_flight: str | None = None,
    wait: float | timedelta | None = None,
    retention: float | timedelta | None = None,
    on_expired: str | None = None,
    on_5xx: str | None = None,
    on_disconnect: str | None = None,
    on_unscoped: str | None = None,
    anonymous_scope: Scope | None = None,
    tenant: Scope | None = None,
    replay_check: Callable[..., Any] | None = None,
    redact: Callable[..., Any] | None = None,
    canonical_json: bool = False,
    ignore: Iterable[str] = (),
) -> Any:
    """Return a decorator: a request with an `Idempotency-Key` takes effect once.

    The first request runs the view in a transaction that also contains its record. Every later one
    gets the same response. Put it below login and permission decorators, and above
    `@lock_resource` or directly below it: the order is always record, lock, transaction. For an
    argument that is None, the setting applies:

    - `store` is "database" or "cache".
    - `required` refuses requests without a key.
    - `store_body` False stores no bodies: a replay has the status and the headers.
    - `in_flight` is what a retry does while the first request runs: "conflict", "wait" (at most
      `wait` seconds), or "auto", which waits for a key from a form.
    - `retention`, seconds or a timedelta, is how long the response is replayed. After that,
      `on_expired` "reject" refuses the key and "run" runs the view again.
    - `on_5xx` is "forget" or "record".
    - `on_disconnect` is "finish" (an async view runs to its end) or "cancel".
    - `on_unscoped` "reject" refuses a key that belongs to nobody; "ignore" ignores it.

    A key belongs to the user who is logged in. Three callables get `(request, **kwargs)`:
    `anonymous_scope` returns the owner of the key of an anonymous request, `tenant` returns a part
    of the site that has its own keys, and `replay_check` returns whether the user may get a replay.
    `redact` gets `(request, body)` and returns the bytes to store of a response.
    With `canonical_json`, two bodies are the same if their JSON values are, without the values at
    the JSON pointers of `ignore`.

    For an async view and for the cache store there is no common transaction. The record is then
    written before the view and completed after it, and a request that was interrupted in between
    is answered 409 "uncertain" until it is resolved. An async view with a transaction of its own
    avoids that with `request.idempotency.complete(response)`.

    Raises InvalidRedlock at import time for invalid arguments.
    """
    if view is not None:
        return idempotent()(view)
    try:
        choices = {
            "store": store,
            "in_flight": in_flight,
            "on_expired": on_expired,
            "on_5xx": on_5xx,
            "on_disconnect": on_disconnect,
            "on_unscoped": on_unscoped,
        }
        flags = {"required": required, "store_body": store_body}
        given = _given(choices, flags, methods, wait, retention)
    except ValueError as error:
        raise InvalidRedlock(f"idempotent(): {error}") from None
    for name, value, arguments in (
        ("anonymous_scope", anonymous_scope, "request, **kwargs"),
        ("tenant", tenant, "request, **kwargs"),
        ("replay_check", replay_check, "request, **kwargs"),
        ("redact", redact, "request, body"),
    ):
        if value is not None and not callable(value):
            raise InvalidRedlock(f"idempotent(): {name} must be a callable ({arguments})")
    if tenant is not None:
        given["tenant"] = tenant
    options = IdempotentOptions(
        using=using,
        given=given,
        anonymous_scope=anonymous_scope,
        replay_check=replay_check,
        redact=redact,
        canonical_json=canonical_json or bool(ignore),
        ignore=_pointers(ignore),
    )

    def decorate(view: View) -> View:
        target: Any = view
        if inspect.isclass(target) or not callable(target):
            raise InvalidRedlock(
                f"idempotent() needs a view function, got {view!r}. For a class, use "
                '@method_decorator(idempotent, name="dispatch"), IdempotentMixin, or decorate '
                "the result of its as_view()"
            )
        if records_requests(view):
            raise InvalidRedlock(
                f"{view_name(view)} is decorated with @idempotent twice; remove one"
            )
        check = None if replay_check is not None else inner_permission_check(view)
        if check is not None:
            raise replay_skips_check_error(view, check)
        wrap = async_view if iscoroutinefunction(view) else sync_view
        wrapped = wrap(view, options)
        check_installed_if_ready()
        resolve_annotations(wrapped, view)
        wrapped.records_requests = wrapped
        wrapped.idempotent_options = options  # the system checks read it
        return cast("View", wrapped)

    return decorate


def _given(
    choices: Mapping[str, str | None],
    flags: Mapping[str, bool | None],
    methods: Collection[str] | None,
    wait: float | timedelta | None,
    retention: float | timedelta | None,
) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for name, value in choices.items():
        if value is not None:
            given[name] = choice(value, name, CHOICES[name])
    if wait is not None:
        given["wait"] = duration(wait, "wait", least=0, most=LONGEST_WAIT)
    if retention is not None:
        given["retention"] = duration(retention, "retention", least=1, most=LONGEST_RETENTION)
    if methods is not None:
        given["methods"] = http_methods(methods, "methods", METHODS)
    for name, answer in flags.items():
        if answer is not None:
            given[name] = flag(flags, name)
    return given


def _pointers(ignore: Iterable[str]) -> tuple[str, ...]:
    pointers = () if isinstance(ignore, str) else tuple(ignore)
    if isinstance(ignore, str) or not all(str(p).startswith("/") for p in pointers):
        raise InvalidRedlock("idempotent(): ignore must be a list of JSON pointers: ['/sent_at']")
    return pointers


class IdempotentMixin(DjangoView):
    """A class-based view whose requests may be sent again, and take effect once.

    `idempotent_options` are the arguments of `idempotent`. List the mixin after the mixins that
    check permissions, such as `LoginRequiredMixin`, so that they also run before a replay. It may
    come before or after `LockResourceMixin`. Raises InvalidRedlock at the first request if a mixin
    that checks permissions comes after it.
    """

    idempotent_options: Mapping[str, Any] = {}

    @classonlymethod
    def as_view(cls, **initkwargs: Any) -> Any:  # noqa: N805
        """Return the view function, for which Django opens no transaction."""
        view: Any = super().as_view(**initkwargs)
        if not iscoroutinefunction(view):
            view._non_atomic_requests = transaction_marker(view)
        from django.views.generic import View as ViewClass

        # A lock around the view would not be held in `setup` and a `dispatch` in front of ours.
        is_direct = cls.dispatch is IdempotentMixin.dispatch and cls.setup is ViewClass.setup
        view.records_requests = view if is_direct else IdempotentMixin.dispatch
        given = initkwargs.get("idempotent_options", cls.idempotent_options)
        decorated: Any = idempotent(**given)(_no_view)
        view.idempotent_options = decorated.idempotent_options
        return view

    def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """Replay the recorded response, or run the next dispatch."""
        return idempotent(**self.idempotent_options)(super().dispatch)(request, *args, **kwargs)

    dispatch.records_requests = dispatch  # type: ignore[attr-defined]


def _no_view(request: HttpRequest) -> None:
    """A view to decorate where only the options of the decorator are needed."""

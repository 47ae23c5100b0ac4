"""The transactions of a locked view: ATOMIC_REQUESTS, opened after the lock is acquired.

Django opens the transaction of a request around the outermost view callable, so a decorator would
release its lock before COMMIT. A locked view therefore makes Django skip that transaction, and
opens the same one itself. Where a transaction is already open, the lock is kept until it has ended
(`locking.transactions.open_transactions`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from redlock_django.conf.settings import template_middleware
from redlock_django.exceptions import AlreadyHeld, InvalidRedlock, RedlockError
from redlock_django.locking.transactions.open_transactions import MayReadOldData, open_blocks
from redlock_django.web.answers import judge_effects
from redlock_django.web.view_kinds import operation_of


class TransactionMarker(set[str]):
    """The `_non_atomic_requests` of a view that opens its own transactions.

    As a set it claims to contain every database alias, so Django opens no transaction for the
    view. Its real content is the aliases that the user excluded with
    `@transaction.non_atomic_requests`, under the lock decorator or above it.
    """

    __slots__ = ()

    def __contains__(self, alias: object) -> bool:
        return True

    def excludes(self, alias: str) -> bool:
        """Return whether the user excluded a database alias."""
        return set.__contains__(self, alias)

    def atomic_aliases(self) -> list[str]:
        """Return the aliases that have ATOMIC_REQUESTS now and that the user did not exclude."""
        return [
            alias
            for alias, database in connections.settings.items()
            if database["ATOMIC_REQUESTS"] and not self.excludes(alias)
        ]


def transaction_marker(view: Callable[..., Any]) -> TransactionMarker:
    """Return the marker for the wrapper of a view; a view that has one shares it."""
    excluded = getattr(view, "_non_atomic_requests", ())
    return excluded if isinstance(excluded, TransactionMarker) else TransactionMarker(excluded)


def marker_of_request(
    request: HttpRequest, own: TransactionMarker | None, owner: object
) -> TransactionMarker | None:
    """Return the marker that made Django skip the transactions of this request, or None.

    `own` is the marker of a function, `owner` the instance a method belongs to, or None.
    """
    if request.resolver_match is not None:
        found = getattr(request.resolver_match.func, "_non_atomic_requests", ())
        if not isinstance(found, TransactionMarker):
            return _marker_of_unopened(found)
    elif owner is None:
        found = own
    else:
        # A request without a URL, as in tests: as_view() would have copied it from dispatch.
        found = getattr(getattr(type(owner), "dispatch", None), "_non_atomic_requests", None)
    return found if isinstance(found, TransactionMarker) else None


def _marker_of_unopened(excluded: Iterable[str]) -> TransactionMarker | None:
    """Return a marker for the transactions that Django has not opened, although it seems so.

    A middleware may have replaced `resolver_match`, and the view of the URL had a marker.
    """
    marker = TransactionMarker(excluded)
    if marker.atomic_aliases():
        marker.update(connection.alias for connection in open_blocks())
    return marker if marker.atomic_aliases() else None


def two_locks_error(view: Callable[..., Any]) -> InvalidRedlock:
    """Return the error for a view that has two lock decorators."""
    return InvalidRedlock(
        f"{view_name(view)} has two lock decorators, and each opens its own transaction. "
        "Pass all templates to one decorator: @lock_resource('order:<int:pk>', 'user:<user.pk>')"
    )


def not_adjacent_error(view: Callable[..., Any]) -> InvalidRedlock:
    """Return the error for a view with something between its lock and @idempotent below it."""
    return InvalidRedlock(
        f"{view_name(view)}: @idempotent is below the lock, but not directly, and what is between "
        "them would run without the lock and outside of the transaction. Put @idempotent directly "
        "below @lock_resource, or above it; in a class, list LockResourceMixin directly before "
        "IdempotentMixin, or decorate dispatch or the handler with both: "
        "@method_decorator([lock_resource(...), idempotent])"
    )


def place_of_lock(view: Callable[..., Any]) -> str:
    """Return where the lock around a view is written, for messages: a rule, or the view."""
    return getattr(view, "lock_rule", None) or view_name(view)


def locked_twice_error(view: Callable[..., Any], request: Any, error: AlreadyHeld) -> AlreadyHeld:
    """Return the error for a view that locks a name that code around it has locked."""
    around: Any = getattr(request.resolver_match, "func", None)
    function = around
    while function is not None and function is not view:
        function = getattr(function, "__wrapped__", None)
    by_rule = hasattr(around, "lock_rule") and around.__wrapped__ is not view
    # Of the lock around a class, the view is its `dispatch`.
    is_around = function is None and getattr(view, "__name__", "") != "dispatch"
    if (by_rule or is_around) and hasattr(around, "lock_options"):
        place = place_of_lock(around)
    else:
        place = "code around it, such as a middleware or a view that calls this one,"
    return AlreadyHeld(
        f"{view_name(view)} locks {error.resource!r}, which {place} has locked already in this "
        "request. Lock one name in one place: remove it from one of them. In code, "
        "lock(..., reentrant=True) nests in the lock of its caller",
        resource=error.resource,
    )


def view_name(view: Callable[..., Any]) -> str:
    """Return the dotted name of a view, for messages."""
    bound = getattr(getattr(view, "func", None), "__self__", None)
    if bound is not None:  # a method that method_decorator() has bound
        return f"{view_name(type(bound))}.{getattr(view, '__name__', '?')}"
    named = getattr(operation_of(view), "view_func", None) or getattr(view, "view_class", view)
    name = getattr(named, "__qualname__", type(named).__qualname__)
    if inspect.isclass(named) and not name.endswith(named.__name__):
        name = named.__name__  # @api_view names its class after the function, by __name__ only
    return f"{getattr(named, '__module__', '?')}.{name}"


def transactions_of(
    marker: TransactionMarker | None,
    *,
    durable: bool,
    record: str | None = None,
) -> AbstractContextManager[Sequence[str]]:
    """Return a block in the transactions that Django would have opened, as their aliases.

    A `durable` transaction raises if it is inside another one, so leaving this block is COMMIT.
    `record` is an alias that is opened in any case and committed last: a record must not be
    committed before the changes that it records.
    """
    aliases = marker.atomic_aliases() if marker is not None else []
    if record is not None:
        aliases = [alias for alias in aliases if alias != record] + [record]
    return _open(aliases, durable) if aliases else _NONE


_NONE: AbstractContextManager[Sequence[str]] = nullcontext(())


@contextmanager
def _open(aliases: list[str], durable: bool) -> Iterator[list[str]]:
    with ExitStack() as blocks:
        # Django wraps the view alias by alias, so the first is innermost and commits first.
        for alias in reversed(aliases):
            blocks.enter_context(transaction.atomic(using=alias, durable=durable))
        yield aliases


def call_in_transactions(
    marker: TransactionMarker | None,
    request: Any,
    view: Callable[..., Any],
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Call a view without a lock of its own in its transactions, and judge its lock errors."""
    with transactions_of(marker, durable=False) as aliases:
        try:
            return view(*args, **kwargs)
        except RedlockError as error:
            judge_effects(error, request, undone=bool(aliases))
            raise


def old_data_error(view: Callable[..., Any], error: MayReadOldData) -> InvalidRedlock:
    """Return the error for a view whose lock was refused inside an open transaction."""
    return InvalidRedlock(
        f"{view_name(view)} is called inside an open transaction of {error.alias!r}, which may "
        f"read data from before the lock. {OUTSIDE}. A middleware that opens a transaction around "
        "locked views needs PostgreSQL at READ COMMITTED; instead of RevisionMiddleware, use "
        "reversion.views.create_revision below @lock_resource"
    )


def check_async(marker: TransactionMarker | None) -> None:
    """Raise the error about an async view that would need a transaction."""
    if marker is not None and marker.atomic_aliases():
        # The marker of a method is copied to the view of its class, and hides Django's error there.
        raise RuntimeError(
            "You cannot use ATOMIC_REQUESTS with async views. Put @transaction.non_atomic_requests "
            "above @lock_resource and @idempotent (of a class: on dispatch, first in the list of "
            "@method_decorator), or set ATOMIC_REQUESTS to False."
        )


def check_recordable(view: Callable[..., Any], response: Any) -> None:
    """Raise InvalidRedlock for a result that is not a response yet: a framework makes it later."""
    if not isinstance(response, HttpResponseBase):
        raise InvalidRedlock(
            f"{view_name(view)} returned {type(response).__name__}, and @idempotent records an "
            "HttpResponse. Return a JsonResponse, for example; django-ninja passes it on"
        )


def check_template_middleware(view: Callable[..., Any], *, recorded: bool) -> None:
    """Raise InvalidRedlock if a middleware changes template responses before they are rendered.

    A response is rendered in the transaction of its view, and `recorded` ones there in any case.
    """
    if name := template_middleware():
        render = "return render(request, ...), or in a class, response.render()"
        middleware = "Add LockMiddleware to MIDDLEWARE, under which it is rendered later; or "
        raise InvalidRedlock(
            f"{view_name(view)} returned a template response, which "
            f"{name}.process_template_response would get only after it was rendered under the "
            f"lock{' and recorded by @idempotent' if recorded else ''}. "
            + (render.capitalize() if recorded else middleware + render)
        )


def unanswerable_error(view: Callable[..., Any], connection: BaseDatabaseWrapper) -> InvalidRedlock:
    """Return the error for a view whose lock errors cannot be answered after a block's rollback."""
    return InvalidRedlock(
        f"{view_name(view)} is called inside an atomic block of {connection.alias!r}, so only "
        f"LockMiddleware can answer a lock error after that is rolled back. {OUTSIDE}. "
        "Or add 'redlock_django.middleware.LockMiddleware' to MIDDLEWARE"
    )


OUTSIDE = (
    "Put @lock_resource above @transaction.atomic; for a class, lock dispatch: "
    '@method_decorator(lock_resource(...), name="dispatch") or LockResourceMixin; for REST '
    "framework, use redlock_django.contrib.drf.LockAPIMixin; for django-ninja, set ATOMIC_REQUESTS "
    "to False and put @transaction.atomic below @lock_resource. Write decorators above it with "
    "functools.wraps, and decorate a partial() or an instance itself, so that Django sees that the "
    "view opens its own transaction"
)
"""How to acquire a lock outside of the transaction; the end of several messages."""

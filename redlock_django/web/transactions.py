"""The transactions of a locked view: ATOMIC_REQUESTS, opened after the lock is acquired.

Django opens the transaction of a request around the outermost view callable, so a decorator would
release its lock before COMMIT. A locked view therefore makes Django skip that transaction, and
opens the same one itself. Where a transaction is already open, the lock is kept until it has ended
(`locking.open_transactions`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.http import HttpRequest
from django.http.response import HttpResponseBase

from redlock_django.exceptions import InvalidRedlock
from redlock_django.locking.open_transactions import MayReadOldData


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
        found = getattr(request.resolver_match.func, "_non_atomic_requests", None)
    elif owner is None:
        found = own
    else:
        # A request without a URL, as in tests: as_view() would have copied it from dispatch.
        found = getattr(getattr(type(owner), "dispatch", None), "_non_atomic_requests", None)
    return found if isinstance(found, TransactionMarker) else None


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


def view_name(view: Callable[..., Any]) -> str:
    """Return the dotted name of a view, for messages."""
    bound = getattr(getattr(view, "func", None), "__self__", None)
    if bound is not None:  # a method that method_decorator() has bound
        return f"{view_name(type(bound))}.{getattr(view, '__name__', '?')}"
    named = getattr(view, "view_class", view)
    name = getattr(named, "__qualname__", type(named).__qualname__)
    return f"{getattr(named, '__module__', '?')}.{name}"


@contextmanager
def transactions_of(
    marker: TransactionMarker | None, *, durable: bool, record: str | None = None
) -> Iterator[list[str]]:
    """Open the transactions that Django would have opened, and return their aliases.

    A `durable` transaction raises if it is inside another one, so leaving this block is COMMIT.
    `record` is an alias that is opened in any case and committed last: a record must not be
    committed before the changes that it records.
    """
    aliases = marker.atomic_aliases() if marker is not None else []
    if record is not None:
        aliases = [alias for alias in aliases if alias != record] + [record]
    with ExitStack() as blocks:
        # Django wraps the view alias by alias, so the first is innermost and commits first.
        for alias in reversed(aliases):
            blocks.enter_context(transaction.atomic(using=alias, durable=durable))
        yield aliases


def old_data_error(view: Callable[..., Any], error: MayReadOldData) -> InvalidRedlock:
    """Return the error for a view whose lock was refused inside an open transaction."""
    return InvalidRedlock(
        f"{view_name(view)} is called inside an open transaction of {error.alias!r}, which may "
        f"read data from before the lock. {OUTSIDE}. A middleware that opens a transaction around "
        "locked views needs PostgreSQL at READ COMMITTED"
    )


def check_recordable(view: Callable[..., Any], response: Any) -> None:
    """Raise InvalidRedlock if a framework would make the response of a view only later."""
    if not isinstance(response, HttpResponseBase):
        raise InvalidRedlock(
            f"{view_name(view)} returned {type(response).__name__}, and @idempotent records an "
            "HttpResponse. Return a JsonResponse, for example; django-ninja passes it on"
        )


def check_answerable(
    view: Callable[..., Any], blocks: list[BaseDatabaseWrapper], *, answerable: bool
) -> None:
    """Raise InvalidRedlock if a lock error cannot be answered after these blocks' rollback.

    `answerable` is whether LockMiddleware will answer it.
    """
    for connection in blocks:
        if not answerable:
            raise InvalidRedlock(
                f"{view_name(view)} is called inside an atomic block of {connection.alias!r}, so "
                "only LockMiddleware can answer a lock error after that is rolled back. "
                f"{OUTSIDE}. Or add 'redlock_django.middleware.LockMiddleware' to MIDDLEWARE"
            )


OUTSIDE = (
    "Put @lock_resource above @transaction.atomic; for a class, lock dispatch: "
    '@method_decorator(lock_resource(...), name="dispatch") or LockResourceMixin; for REST '
    "framework, use redlock_django.contrib.drf.LockAPIMixin; for django-ninja, set ATOMIC_REQUESTS "
    "to False and put @transaction.atomic below @lock_resource. Write decorators above it with "
    "functools.wraps, so that Django sees that the view opens its own transaction"
)
"""How to acquire a lock outside of the transaction; the end of several messages."""

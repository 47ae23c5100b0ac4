"""The transactions of a locked view: ATOMIC_REQUESTS, opened after the lock is acquired.

Django opens the transaction of a request around the outermost view callable, so a decorator would
release its lock before COMMIT. A locked view therefore makes Django skip that transaction, and
opens the same one itself. Where a transaction is already open, the lock outlives it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.http import HttpRequest

from redlock_django.exceptions import InvalidRedlock


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
        "Pass all templates to one decorator: @lock_resource('order:<pk>', 'user:<user.pk>')"
    )


def view_name(view: Callable[..., Any]) -> str:
    """Return the dotted name of a view, for messages."""
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


def open_blocks() -> list[BaseDatabaseWrapper]:
    """Return the connections inside an atomic block; the blocks around a test do not count."""
    return [
        connection
        for connection in connections.all(initialized_only=True)
        if not all(map(_of_a_test, connection.atomic_blocks))
    ]


def _of_a_test(block: Any) -> bool:
    return bool(block._from_testcase)


def sees_commits(connection: BaseDatabaseWrapper) -> bool:
    """Return whether each statement of an open transaction sees all earlier commits of others.

    True only for PostgreSQL at READ COMMITTED. Elsewhere a transaction that is already open when
    the lock is acquired may keep reading data from before the lock.
    """
    if connection.vendor != "postgresql":
        return False
    from django.db.backends.postgresql.psycopg_any import IsolationLevel

    options = connection.settings_dict["OPTIONS"]
    level = options.get("isolation_level")
    is_in_options = "isolation" in str(options.get("options", ""))
    return not is_in_options and level in (
        None,
        IsolationLevel.READ_COMMITTED,
        IsolationLevel.READ_UNCOMMITTED,
    )


def check_open_blocks(
    view: Callable[..., Any], blocks: list[BaseDatabaseWrapper], *, outlived: bool
) -> None:
    """Raise InvalidRedlock where a lock acquired inside these blocks comes too late.

    `outlived` is whether the lock is kept until the blocks have ended.
    """
    for connection in blocks:
        where = f"{view_name(view)} is called inside an atomic block of {connection.alias!r}, which"
        if not outlived:
            raise InvalidRedlock(
                f"{where} would commit only after the lock is released. {OUTSIDE}. Or add "
                "'redlock_django.middleware.LockMiddleware' to MIDDLEWARE, which releases the lock "
                "after COMMIT"
            )
        # Inside the transaction of a test, no other transaction commits.
        if not (_of_a_test(connection.atomic_blocks[0]) or sees_commits(connection)):
            raise InvalidRedlock(f"{where} may read data from before the lock. {OUTSIDE}")


OUTSIDE = (
    "Put @lock_resource above @transaction.atomic; for a class, lock dispatch: "
    '@method_decorator(lock_resource(...), name="dispatch") or LockResourceMixin; for REST '
    "framework, use redlock_django.contrib.drf.LockAPIMixin. Write decorators above it with "
    "functools.wraps, so that Django sees that the view opens its own transaction"
)
"""How to acquire a lock outside of the transaction; the end of several messages."""

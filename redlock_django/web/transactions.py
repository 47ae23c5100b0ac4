"""Lock outside, transaction inside: the ATOMIC_REQUESTS of a locked view, opened under its lock.

Django opens the transaction of a request around the outermost callable, so a lock taken by a
decorator would be free before COMMIT. A locked view therefore tells Django to leave it alone and
opens the same transactions itself. Where that is too late, the lock outlives the transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from django.db import connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.http import HttpRequest

from redlock_django.exceptions import InvalidRedlock


class TakenOver(set[str]):
    """What stands in a view's `_non_atomic_requests` so that Django opens no transaction for it.

    It claims to hold every database alias, and holds those the user really excluded with
    `@transaction.non_atomic_requests`, under the lock decorator or above it.
    """

    __slots__ = ()

    def __contains__(self, alias: object) -> bool:
        return True

    def atomic_aliases(self) -> list[str]:
        """Give the aliases with ATOMIC_REQUESTS, as set now, that the user did not exclude."""
        return [
            alias
            for alias, database in connections.settings.items()
            if database["ATOMIC_REQUESTS"] and not set.__contains__(self, alias)
        ]


def take_over(view: Callable[..., Any]) -> TakenOver:
    """Give the mark for the view's wrapper; one that is there already serves both."""
    excluded = getattr(view, "_non_atomic_requests", ())
    return excluded if isinstance(excluded, TakenOver) else TakenOver(excluded)


def two_locks(view: Callable[..., Any]) -> InvalidRedlock:
    """Give the error for a view that takes a lock already."""
    return InvalidRedlock(
        f"{view_name(view)} has two lock decorators, each with its own transaction; "
        "give all templates to one: @lock_resource('order:<pk>', 'user:<user.pk>')"
    )


def mark_seen(request: HttpRequest, own: TakenOver | None, owner: object) -> TakenOver | None:
    """Give the mark by which Django left the transactions of this request to us, if it did.

    `own` is the mark of a function, `owner` the instance a method belongs to, or None.
    """
    if request.resolver_match is not None:
        seen = getattr(request.resolver_match.func, "_non_atomic_requests", None)
    elif owner is None:
        seen = own
    else:
        # Without a URL, as in tests: what as_view() would have copied from dispatch.
        seen = getattr(getattr(type(owner), "dispatch", None), "_non_atomic_requests", None)
    return seen if isinstance(seen, TakenOver) else None


def view_name(view: Callable[..., Any]) -> str:
    """Give the dotted name of a view, for messages."""
    named = getattr(view, "view_class", view)
    name = getattr(named, "__qualname__", type(named).__qualname__)
    return f"{getattr(named, '__module__', '?')}.{name}"


@contextmanager
def transactions_of(
    marker: TakenOver | None, *, durable: bool, record: str | None = None
) -> Iterator[list[str]]:
    """Open the transactions Django would have opened, and give their aliases.

    `durable` ones refuse to be part of an outer block, so leaving this block is the COMMIT.
    `record` is an alias that is opened in any case, and committed last: what is recorded there
    must not be true before the rest is.
    """
    aliases = marker.atomic_aliases() if marker is not None else []
    if record is not None:
        aliases = [alias for alias in aliases if alias != record] + [record]
    with ExitStack() as blocks:
        # Django wraps alias after alias, so the first one is innermost and commits first.
        for alias in reversed(aliases):
            blocks.enter_context(transaction.atomic(using=alias, durable=durable))
        yield aliases


def open_blocks() -> list[BaseDatabaseWrapper]:
    """Give the connections inside an atomic block; the blocks around a test do not count."""
    return [
        connection
        for connection in connections.all(initialized_only=True)
        if not all(map(_of_a_test, connection.atomic_blocks))
    ]


def _of_a_test(block: Any) -> bool:
    return bool(block._from_testcase)


def sees_commits(connection: BaseDatabaseWrapper) -> bool:
    """Whether each statement of an open transaction sees what others have committed before it.

    True only for PostgreSQL at READ COMMITTED: elsewhere a transaction that is open when the
    lock is taken may go on reading what was true before.
    """
    if connection.vendor != "postgresql":
        return False
    from django.db.backends.postgresql.psycopg_any import IsolationLevel

    options = connection.settings_dict["OPTIONS"]
    level = options.get("isolation_level")
    named = "isolation" in str(options.get("options", ""))
    return not named and level in (
        None,
        IsolationLevel.READ_COMMITTED,
        IsolationLevel.READ_UNCOMMITTED,
    )


def check_blocks(
    view: Callable[..., Any], blocks: list[BaseDatabaseWrapper], *, kept: bool
) -> None:
    """Raise InvalidRedlock where a lock taken inside of these blocks comes too late.

    `kept` is whether somebody keeps the lock until they have ended.
    """
    for connection in blocks:
        where = f"{view_name(view)} is called inside an atomic block of {connection.alias!r}, which"
        if not kept:
            raise InvalidRedlock(
                f"{where} would commit only after the lock is free. {OUTSIDE}. Or let "
                "LockMiddleware keep the lock: add 'redlock_django.middleware.LockMiddleware' to "
                "MIDDLEWARE"
            )
        # In a test nobody else commits.
        if not (_of_a_test(connection.atomic_blocks[0]) or sees_commits(connection)):
            raise InvalidRedlock(
                f"{where} may go on reading what was true before the lock. {OUTSIDE}"
            )


OUTSIDE = (
    "Put @lock_resource above @transaction.atomic; for a class, lock dispatch: "
    '@method_decorator(lock_resource(...), name="dispatch") or LockResourceMixin; for REST '
    "framework, redlock_django.contrib.drf.LockAPIMixin; and let "
    "decorators above it use functools.wraps, so that Django sees that the view opens its own "
    "transaction"
)
"""How a lock comes outside of the transaction; the end of several messages."""

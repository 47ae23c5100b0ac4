"""Lock outside, transaction inside: the ATOMIC_REQUESTS of a locked view, opened under its lock.

Django opens the transaction of a request around the outermost callable, so a lock taken by a
decorator would be free before COMMIT. A locked view therefore tells Django to leave it alone and
opens the same transactions itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from django.db import connections, transaction

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
    """Give the mark for the view's wrapper; InvalidRedlock if the view has one already."""
    excluded = getattr(view, "_non_atomic_requests", ())
    if isinstance(excluded, TakenOver):
        raise InvalidRedlock(
            f"{view_name(view)} has two lock decorators, each with its own transaction; "
            "give all templates to one: @lock_resource('order:<pk>', 'user:<user.pk>')"
        )
    return TakenOver(excluded)


def view_name(view: Callable[..., Any]) -> str:
    """Give the dotted name of a view, for messages."""
    named = getattr(view, "view_class", view)
    name = getattr(named, "__qualname__", type(named).__qualname__)
    return f"{getattr(named, '__module__', '?')}.{name}"


@contextmanager
def transactions_of(marker: TakenOver, *, durable: bool) -> Iterator[bool]:
    """Open the transactions Django would have opened, and say whether there are any.

    `durable` ones refuse to be part of an outer block, so leaving this block is the COMMIT.
    """
    aliases = marker.atomic_aliases()
    with ExitStack() as blocks:
        # Django wraps alias after alias, so the first one is innermost and commits first.
        for alias in reversed(aliases):
            blocks.enter_context(transaction.atomic(using=alias, durable=durable))
        yield bool(aliases)


def refuse_inside_a_block(view: Callable[..., Any]) -> None:
    """Raise InvalidRedlock inside an atomic block: it would commit after the lock is free.

    The blocks that a test case wraps around each test do not count.
    """
    for connection in connections.all(initialized_only=True):
        blocks: list[Any] = connection.atomic_blocks
        if all(block._from_testcase for block in blocks):
            continue
        raise InvalidRedlock(
            f"{view_name(view)} is called inside an atomic block of database "
            f"{connection.alias!r}, which would commit only after the lock is free. Put "
            "@lock_resource above @transaction.atomic, and let decorators above it use "
            "functools.wraps, so that Django sees that the view opens its own transaction"
        )

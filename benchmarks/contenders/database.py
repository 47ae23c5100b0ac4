"""Locks of PostgreSQL: of a session, of a row, and of a transaction."""

from __future__ import annotations

import zlib
from contextlib import ExitStack
from typing import Any

from django.db import OperationalError, connection, transaction

from benchmarks.contenders import Contender, Place
from redlock_django import ResourceLocked, transaction_lock


class Advisory(Contender):
    """`pg_advisory_lock` on the connection of the thread."""

    def _ask(self, function: str, number: int) -> bool:
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT {function}(%s)", [number])
            return bool(cursor.fetchone() != (False,))

    def acquire(self, resource: str) -> Any:
        number = zlib.crc32(resource.encode())
        return number if self._ask("pg_try_advisory_lock", number) else None

    def wait(self, resource: str) -> Any:
        number = zlib.crc32(resource.encode())
        self._ask("pg_advisory_lock", number)
        return number

    def release(self, held: Any) -> None:
        self._ask("pg_advisory_unlock", held)


class Blocks(Contender):
    """A lock that ends with its transaction; `acquire` begins that, and `release` commits it."""

    def enter(self, block: ExitStack, resource: str, *, wait: bool) -> None:
        """Lock in this block. Raises OperationalError or ResourceLocked."""
        raise NotImplementedError

    def _held(self, resource: str, *, wait: bool) -> Any:
        with ExitStack() as block:
            self.enter(block, resource, wait=wait)
            return block.pop_all()

    def acquire(self, resource: str) -> Any:
        try:
            return self._held(resource, wait=False)
        except (OperationalError, ResourceLocked):
            return None

    def wait(self, resource: str) -> Any:
        return self._held(resource, wait=True)

    def release(self, held: Any) -> None:
        held.close()


class Transaction(Blocks):
    """`transaction_lock()`."""

    def enter(self, block: ExitStack, resource: str, *, wait: bool) -> None:
        block.enter_context(transaction_lock(resource, wait=60 if wait else 0))


class Row(Blocks):
    """`select_for_update()` of the row of a resource, which is made first."""

    def __init__(self, place: Place) -> None:
        self._made: set[str] = set()

    def enter(self, block: ExitStack, resource: str, *, wait: bool) -> None:
        from django.contrib.auth.models import Group

        if resource not in self._made:
            Group.objects.get_or_create(name=resource)
            self._made.add(resource)
        block.enter_context(transaction.atomic())
        Group.objects.select_for_update(nowait=not wait).get(name=resource)

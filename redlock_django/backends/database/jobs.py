"""Jobs of one process on a database: pieces of work, and the connections on which they are done."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Generic, TypeVar

from redlock_django.backends.database.direct_cursor import DirectCursor
from redlock_django.backends.protocol_backend import StoreStep

if TYPE_CHECKING:
    from django.db.backends.utils import CursorWrapper

T = TypeVar("T")


class Connection:
    """One connection of the process; `cursor` is None until it is made."""

    def __init__(self) -> None:
        self.cursor: CursorWrapper | DirectCursor | None = None

    def close(self) -> None:
        """Close the connection. It is made again when it is needed."""
        close_cursor(self.cursor)
        self.cursor = None


class Job(StoreStep, Generic[T]):
    """A piece of work on a cursor, with its result once it has ended.

    It is `repeated` if its connection broke, perhaps after the work was done. `undo` is set by a
    caller that does not want the result any more: a job that has not begun is skipped, and after
    one that is running `undo` is run. `borrowed` has the connection on which its caller does it.
    """

    def __init__(self, work: Callable[[CursorWrapper], T]) -> None:
        super().__init__()
        self.work = work
        self.undo: Callable[[CursorWrapper], object] = ignore_cursor
        self.repeated = False
        self.borrowed: deque[Connection] = deque()
        self.value: T | None = None
        self.error: BaseException | None = None

    def is_unwanted(self) -> bool:
        """Return whether `undo` is set."""
        return self.undo is not ignore_cursor

    def result(self) -> T:
        """Return what the work returned, or raise what it raised."""
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]


def ignore_cursor(cursor: CursorWrapper) -> None:
    """Undo nothing: the `undo` of a job whose result is wanted."""


def close_cursor(cursor: CursorWrapper | DirectCursor | None) -> None:
    """Close a cursor and its connection, which may be broken."""
    if cursor is not None:
        with suppress(Exception):
            cursor.close()
        with suppress(Exception):
            cursor.db.close()

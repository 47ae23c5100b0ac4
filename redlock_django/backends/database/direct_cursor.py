"""A cursor of PostgreSQL for the few statements of locks, which are sent by libpq.

psycopg sends a statement and waits for its answer in many steps. This cursor takes the few calls of
libpq that are needed, which saves a fifth of the time of a pair, and can wait for an answer with a
limit of time. Without a pooler, the server prepares each statement once.
"""

from __future__ import annotations

import select
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from typing import TYPE_CHECKING, Any, cast

from django.db import OperationalError

from redlock_django.wire.clock import clock

if TYPE_CHECKING:
    from django.db.backends.utils import CursorWrapper

_CANCELLING = 1.0  # seconds in which the server is asked to end a statement
_MOST = 100  # statements that one connection prepares; the server keeps them
_NUMBERS = {20: int, 21: int, 23: int, 701: float, 1700: float}  # by the number of the type
_BOOL = 16
_OK = (1, 2)  # ExecStatus.COMMAND_OK and TUPLES_OK of psycopg, which may not be installed


def is_direct(cursor: CursorWrapper) -> bool:
    """Return whether a connection of psycopg 3 leads to one server of PostgreSQL.

    A pooler may change the server at any time. `settings` makes this difference.
    """
    return getattr(cursor.db.connection, "prepare_threshold", None) == 0


def can_be_direct(cursor: CursorWrapper) -> bool:
    """Return whether `DirectCursor` can be used on the connection of a cursor.

    Not with psycopg2. With gevent, a call of libpq would block all greenlets.
    """
    if not hasattr(cursor.db.connection, "pgconn"):
        return False
    gevent = sys.modules.get("gevent.monkey")
    return gevent is None or not gevent.is_module_patched("select")


def cancels_in_time() -> bool:
    """Return whether `cancel_safe` limits its time.

    With a libpq before 17 it waits for a server or pooler that hangs without a limit, and in the C
    implementation of psycopg it keeps all other threads from running meanwhile.
    """
    import psycopg

    capabilities = getattr(psycopg, "capabilities", None)  # from psycopg 3.2 on
    return capabilities is not None and capabilities.has_cancel_safe()


class DirectCursor:
    """Executes statements in autocommit as the cursor of Django does, with less work for each."""

    def __init__(self, cursor: CursorWrapper) -> None:
        self.db = cursor.db
        self.deadline: float | None = None
        """The moment of `clock` until which the thread waits for answers; None without a limit."""
        self._cursor = cursor
        self._pgconn: Any = cursor.db.connection.pgconn
        self._prepared: dict[str, bytes] = {}
        self._numbers = count()  # an interrupt may skip one, and never repeats one
        self._result: Any = None

    def execute(self, statement: str, values: Sequence[object] = ()) -> None:
        """Execute a statement with a value for each `%s`; raise the errors of Django.

        Raises TimeoutError at the deadline, before the answer. After that, and after an interrupt,
        `finish` must be called before the next statement.
        """
        given = [str(value).encode() for value in values]
        pgconn = self._pgconn
        with self.db.wrap_database_errors:
            if (name := self._prepared.get(statement)) is None:
                text = _numbered(statement, len(values))
                if len(self._prepared) >= _MOST or not is_direct(cast("CursorWrapper", self)):
                    self._result = self._call(pgconn.send_query_params, text, given)
                    return
                name = b"redlock_%d" % next(self._numbers)
                self._call(pgconn.send_prepare, name, text)
                self._prepared[statement] = name
            self._result = self._call(pgconn.send_query_prepared, name, given)

    def _call(self, send: Callable[..., object], *arguments: object) -> Any:
        """Send by a call of libpq, and return the result that the server answers with."""
        send(*arguments)
        self._wait()
        result = self._pgconn.get_result()
        self.finish()
        return self._checked(result)

    @contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Limit the time of the block, if a statement can be cancelled in a limited time, too.

        After that the server is asked to end the statement, which it would otherwise keep on a
        connection that nobody uses, and OperationalError is raised. Then the connection is useless.
        """
        self.deadline = clock() + seconds if cancels_in_time() else None
        try:
            yield
        except TimeoutError:
            with suppress(Exception):  # it is not reached
                self.db.connection.cancel_safe(timeout=_CANCELLING)
            raise OperationalError(f"no answer within {seconds:g} s") from None
        finally:
            self.deadline = None

    def finish(self) -> None:
        """Wait for the end of a statement, if one is running, and ignore its answer."""
        while True:  # without a condition: see docs/contributing/interrupts.md
            self._wait()
            if self._pgconn.get_result() is None:
                break

    def _wait(self) -> None:
        """Wait until the next result has arrived; raise TimeoutError at the deadline.

        `get_result` would wait, too, and keep all other threads from running.
        """
        pgconn = self._pgconn
        while True:  # without a condition: see docs/contributing/interrupts.md
            unsent = pgconn.flush()
            if not (unsent or pgconn.is_busy()):
                break
            poll = select.poll()
            poll.register(pgconn.socket, select.POLLIN | (select.POLLOUT if unsent else 0))
            left = None if self.deadline is None else 1000 * max(0.0, self.deadline - clock())
            if not poll.poll(left):
                raise TimeoutError
            pgconn.consume_input()

    def _checked(self, result: Any) -> Any:
        if result.status in _OK:
            return result
        from psycopg import OperationalError as ConnectionLost
        from psycopg.errors import error_from_result
        from psycopg.pq import ConnStatus

        if self._pgconn.status != ConnStatus.OK:
            raise ConnectionLost(self._pgconn.get_error_message())
        raise error_from_result(result)

    @property
    def rowcount(self) -> int:
        """The number of rows that the statement returned or changed."""
        return self._result.command_tuples or 0

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Return all rows of the result."""
        result = self._result
        types = [result.ftype(column) for column in range(result.nfields)]
        return [
            tuple(_value(result.get_value(row, column), of) for column, of in enumerate(types))
            for row in range(result.ntuples)
        ]

    def fetchone(self) -> tuple[Any, ...] | None:
        """Return the first row of the result, None if it has no rows."""
        return next(iter(self.fetchall()), None)

    def close(self) -> None:
        """Close the cursor of Django."""
        self._cursor.close()


def _numbered(statement: str, values: int) -> bytes:
    """Return a statement as the server takes it, with `$1` in place of the first `%s`."""
    if not values:
        return statement.encode()
    first, *rest = statement.replace("%%", "\0").split("%s")
    numbered = "".join(f"${number}{part}" for number, part in enumerate(rest, 1))
    return f"{first}{numbered}".replace("\0", "%").encode()


def _value(value: bytes | None, of: int) -> Any:
    if value is None:
        return None
    if of == _BOOL:
        return value == b"t"
    kind = _NUMBERS.get(of)
    return value.decode() if kind is None else kind(value)

"""Wake waiters by NOTIFY of PostgreSQL: one thread and one connection of a process listen.

A waiter looks by itself, too, so a notification that is lost costs time only. `is_listening` says
how often it must: it is False until a notification of our own has come back, so also behind a
pooler that drops LISTEN.
"""

from __future__ import annotations

import os
import secrets
import selectors
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from redlock_django.backends.database_dialects import CHANNEL

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.backends.utils import CursorWrapper

_PROOF = 2.0  # seconds in which our own notification must come back
_AGAIN = 1.0  # seconds until a connection that broke is replaced
_WOKEN = 2  # waiters of this process; if the first waits for other locks, too, the next may go on


class Listener:
    """The waiters of this process, by resource, and the thread that wakes them.

    It begins with the first waiter. `post` runs a piece of work on a connection for locks.
    """

    def __init__(
        self,
        connect: Callable[[], BaseDatabaseWrapper],
        post: Callable[[Callable[[CursorWrapper], object]], object],
    ) -> None:
        self.is_listening = False
        self._connect = connect
        self._post = post
        self._waiting: dict[str, list[Callable[[], object]]] = {}
        self._mutex = threading.RLock()  # a signal handler may interrupt its own thread
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        self._ended: tuple[int, int] | None = None  # a pipe, which ends the wait

    def watch(self, resources: Sequence[str], wake: Callable[[], object]) -> None:
        """Call `wake` when one of these resources may be free and it is this waiter's turn."""
        with self._mutex:
            for resource in resources:
                self._waiting.setdefault(resource, []).append(wake)
            if self._thread is None and not self._closing.is_set():
                self._ended = os.pipe()
                thread = threading.Thread(target=self._run, name="redlock-listener", daemon=True)
                thread.start()
                self._thread = thread

    def forget(self, resources: Sequence[str], wake: Callable[[], object]) -> None:
        """Forget a waiter; does nothing if it is not known."""
        with self._mutex:
            for resource in resources:
                waiting = self._waiting.get(resource, [])
                if wake in waiting:
                    waiting.remove(wake)
                if not waiting:
                    self._waiting.pop(resource, None)

    def close(self) -> None:
        """End the thread and close its connection."""
        self._closing.set()
        thread = self._thread
        if thread is not None and self._ended is not None:
            with suppress(OSError):
                os.write(self._ended[1], b".")
            if thread is not threading.current_thread():
                thread.join(_AGAIN)

    def _run(self) -> None:
        assert self._ended is not None
        while True:
            connection: BaseDatabaseWrapper | None = None
            again = True
            with suppress(Exception):  # waiters look by themselves; failures are reported there
                connection = self._connect()
                again = self._listen(connection, self._ended[0])
            self.is_listening = False
            with suppress(Exception):
                if connection is not None:
                    connection.close()
            if not again or self._closing.wait(_AGAIN):
                break
        for end in self._ended:
            os.close(end)

    def _listen(self, connection: BaseDatabaseWrapper, ended: int) -> bool:
        """Wake waiters until the connection breaks; return False if listening is of no use."""
        driver: Any = connection.connection
        if not hasattr(driver, "pgconn"):
            return False  # psycopg2
        with connection.cursor() as cursor:
            cursor.execute(f"LISTEN {CHANNEL}")
        proof = f"proof {secrets.token_hex(8)}"
        self._post(lambda cursor: cursor.execute(f"SELECT pg_notify('{CHANNEL}', %s)", [proof]))
        with selectors.DefaultSelector() as selector:
            selector.register(driver.fileno(), selectors.EVENT_READ)
            selector.register(ended, selectors.EVENT_READ)
            while True:
                ready = selector.select(None if self.is_listening else _PROOF)
                if self._closing.is_set() or not ready:
                    return False
                driver.pgconn.consume_input()
                while True:
                    notice = driver.pgconn.notifies()
                    if notice is None:
                        break
                    payload = notice.extra.decode()
                    if payload == proof:
                        self.is_listening = True
                    else:
                        self._wake(payload)

    def _wake(self, resource: str) -> None:
        with self._mutex:
            first = self._waiting.get(resource, [])[:_WOKEN]
        for wake in first:
            wake()

"""Wake waiters by NOTIFY of PostgreSQL: one thread and one connection of a process listen.

A waiter also looks by itself, so a lost notification costs only time. It must look more often while
`is_listening` is False: until a notification that this process sent has come back.

Behind a pooler, this thread does not listen. LISTEN would stay on a connection of the server, which
the pooler gives to the next client, and that client reads no notifications.
"""

from __future__ import annotations

import secrets
import selectors
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from redlock_django.backends.database.dialects import CHANNEL
from redlock_django.backends.database.settings import is_pooled

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper
    from django.db.backends.utils import CursorWrapper

WhenCalled = Callable[[int, int], object]
"""Called with the number of waiters that were called, too, and go first, and with the slot."""

_PROOF = 2.0  # seconds after which our own notification is sent again; each time twice as many
_LONGEST = 60.0  # seconds; the most of those
_AGAIN = 1.0  # seconds until a connection that broke is replaced
_ENDING = 0.5  # seconds that closing waits for the thread; a database that hangs does not wake it


class Listener:
    """The waiters of this process, by name, and the thread that wakes them.

    It begins with the first waiter. `post` runs a piece of work on a connection for locks. Only
    the thread uses its connection: to end its wait, `close` sends a notification.
    """

    def __init__(
        self,
        connect: Callable[[], BaseDatabaseWrapper],
        post: Callable[[Callable[[CursorWrapper], object]], object],
    ) -> None:
        self.is_listening = False
        self._connect = connect
        self._post = post
        self._own = f"process {secrets.token_hex(8)}"  # the payload of our own notifications
        self._waiting: dict[str, WhenCalled] = {}
        self._mutex = threading.RLock()  # a signal handler may interrupt its own thread
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()

    def watch(self, waiter: str, call: WhenCalled) -> None:
        """Call `call` when a lock that a waiter waits for came free and it is among the first."""
        with self._mutex:
            self._waiting[waiter] = call
            if self._thread is None and not self._closing.is_set():
                thread = threading.Thread(target=self._run, name="redlock-listener", daemon=True)
                with suppress(RuntimeError):  # no thread can be started: waiters look
                    thread.start()
                    self._thread = thread

    def forget(self, waiter: str) -> None:
        """Forget a waiter; does nothing if it is not known."""
        self._waiting.pop(waiter, None)

    def close(self) -> None:
        """Make the thread end, which closes its connection. `post` must still work."""
        self._closing.set()
        if self._thread is not None and self._thread.is_alive():
            self._notify()

    def join(self) -> None:
        """Wait briefly for the end of the thread, after `close`."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_ENDING)

    def _notify(self) -> None:
        statement, own = f"SELECT pg_notify('{CHANNEL}', %s)", self._own
        self._post(lambda cursor: cursor.execute(statement, [own]))

    # In the thread.

    def _run(self) -> None:
        is_useful = True
        while is_useful and not self._closing.is_set():
            with suppress(Exception):  # waiters look by themselves; failures are reported there
                connection = self._connect()
                try:
                    is_useful = self._listen(connection)
                finally:
                    self.is_listening = False
                    connection.close()
            if is_useful:
                self._closing.wait(_AGAIN)

    def _listen(self, connection: BaseDatabaseWrapper) -> bool:
        """Wake waiters until the connection breaks; return False behind a pooler."""
        with connection.cursor() as cursor:
            if is_pooled(cursor):
                return False
            cursor.execute(f"LISTEN {CHANNEL}")
        driver: Any = connection.connection
        patience = _PROOF
        self._notify()
        # Not `driver.notifies()`, which wakes this thread ten times a second.
        with selectors.DefaultSelector() as selector:
            selector.register(driver.fileno(), selectors.EVENT_READ)
            while True:  # without a condition: see docs/contributing/interrupts.md
                if self._closing.is_set():
                    break
                self._handle(_received(driver.pgconn))
                if not selector.select(None if self.is_listening else patience):
                    patience = min(2 * patience, _LONGEST)
                    self._notify()  # the database was busy, or was not reached
        return True

    def _handle(self, payloads: Iterable[str]) -> None:
        for payload in payloads:
            if payload == self._own:
                self.is_listening = True
            else:
                self._wake(payload)

    def _wake(self, payload: str) -> None:
        waiters, _, slot = payload.partition("[")
        for number, waiter in enumerate(waiters.split()):
            if (call := self._waiting.get(waiter)) is not None:
                call(number, int(slot[:-1] or 0))


def _received(connection: Any) -> Iterator[str]:
    """Yield the payloads that have arrived on a connection of libpq; raise if it is broken."""
    connection.consume_input()
    while (notice := connection.notifies()) is not None:
        yield notice.extra.decode()

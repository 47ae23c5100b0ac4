"""The thread that sends the signals of the renewal thread, so that no receiver delays a renewal.

A receiver may be slow, block for ever or raise SystemExit; the signals of others wait in a queue.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from contextlib import suppress

from redlock_django.locking.thread_state import reset_with_threads

logger = logging.getLogger("redlock_django")

MAX_PENDING = 1000  # signals that wait for slow receivers; further ones are only logged


class SignalThread:
    """Sends signals in order, from a thread that is started with the first of them."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._pending: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._mutex = threading.RLock()  # a finalizer inside may notice another loss
        self._deferring = threading.local()

    def defer_in_this_thread(self) -> None:
        """Send the signals of the calling thread from the signal thread, from now on."""
        self._deferring.always = True

    def run(self, report: Callable[[], None]) -> None:
        """Call a function that sends signals, or queue it if the calling thread defers them."""
        if not getattr(self._deferring, "always", False):
            report()
        elif self._pending.qsize() >= MAX_PENDING:
            logger.error(
                "redlock: a signal was not sent, because %d others wait for slow receivers",
                MAX_PENDING,
            )
        else:
            self._pending.put(report)
            self.ensure_running()

    def ensure_running(self) -> bool:
        """Start the thread if signals wait and none sends them; return False if it cannot start."""
        with self._mutex:
            running = self._thread is not None and self._thread.is_alive()
            if running or self._pending.empty():
                return True
            thread = threading.Thread(target=self._run, name="redlock-signals", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the process may have no more threads now
                return False
            self._thread = thread
            return True

    def _run(self) -> None:
        while True:
            try:
                self._pending.get()()
            except BaseException:  # a receiver called sys.exit(): the others still get theirs
                with suppress(BaseException):
                    logger.exception("redlock: a receiver of a signal ended its thread")


signal_thread = SignalThread()
reset_with_threads(signal_thread._reset)

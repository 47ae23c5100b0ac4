"""The part that sync and async links share: pipelines, owed replies, breaker, restart guard.

Rules of this module:

1. Every command written is owed one reply, in order (see `link`).
2. A release is sent on the same link as its acquire, after it. If that link is gone, the release is
   kept, and is sent first after the next join, with a tombstone.
3. A late reply costs its vote, never its link (`lateness`). A master is judged only after one more
   read that does not block.
4. A push is not a reply: it removes nothing from the owed replies, except for the answer to
   SUBSCRIBE.
5. Nothing here blocks (except for `shut`) and nothing here takes a mutex: a driver admits one
   thread at a time.
"""

from __future__ import annotations

import socket
from contextlib import suppress

from redlock_django.wire.clock import clock
from redlock_django.wire.link_state import IDLE
from redlock_django.wire.receiver import Receiver
from redlock_django.wire.waiters import Waiter


class Links(Receiver):
    """The links of one process or one loop to all masters of an alias."""

    def look_at_idle_links(self) -> None:
        """Read all links before a round that follows a pause: a master may have closed one."""
        now = clock()
        if now - self._last_look > IDLE:
            self.read_all(self.masters)
            self.flush()
        self._last_look = now

    def waiter(self, resources: tuple[str, ...]) -> Waiter:
        """Return a new waiter; from the first on, every link listens to its master's calls."""
        if not self.waiters.is_used:
            for master in self.masters:
                self._listen(master)
            self.waiters.is_used = True
        return self.waiters.new(resources)

    def __del__(self) -> None:
        self.abandon()

    def shut(self) -> None:
        """Close every link; waiting callers get a failed vote.

        Blocks for at most MASTER_TIMEOUT while masters still answer: a server whose answer is
        refused reads no further, and the last releases may be among the bytes that it has not read.
        """
        self.closed.set()
        for master in self.owing():
            assert master.link is not None
            for owed in tuple(master.link.owed):
                self._undo_late(master, owed)
        self.flush()
        links = [m.link for m in self.owing() if m.link is not None]
        for link in links:
            with suppress(OSError):
                link.socket.shutdown(socket.SHUT_WR)
        until = clock() + self.master_timeout
        for link in links:
            link.drain(until)
        for master in self.masters:
            if master.losing is not None:
                self._finish_losing(master, *master.losing)
            self.lose(master, "closed")
            master.reason = "closed"

    def abandon(self) -> None:
        """Drop all links without sending a byte: after a fork, and for a loop that was closed."""
        self.closed.set()
        for master in self.masters:
            lost = None if master.losing is None else master.losing[0]
            for link in (master.link, lost):
                if link is not None:
                    with suppress(OSError):
                        link.socket.close()
                    master.link = master.losing = None
                    master.reason = "closed"

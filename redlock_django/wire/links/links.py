"""The links to all masters of an alias, which an outbox, an inbox and a dialer share.

Rules of these parts:

1. Every command written is owed one reply, in order (see `link`).
2. A release is sent on the same link as its acquire, after it. If that link is gone, the release is
   kept, and is sent first after the next join, with a tombstone.
3. A late reply costs its vote, never its link (`late_masters`). A master is judged only after one
   more read that does not block.
4. A push is not a reply: it removes nothing from the owed replies, except for the answer to
   SUBSCRIBE.
5. Nothing here blocks (except for `shut`) and nothing here takes a mutex: a driver admits one
   thread at a time.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from contextlib import suppress

from redlock_django.engine.membership import Membership
from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.wire.clock import clock
from redlock_django.wire.judging.clock_steps import StepWatch
from redlock_django.wire.judging.late_masters import Lateness, LateWatch
from redlock_django.wire.link.master import Master
from redlock_django.wire.links.dialer import IDLE, Dialer, Driver
from redlock_django.wire.links.dialing import Terms
from redlock_django.wire.links.inbox import Inbox
from redlock_django.wire.links.outbox import LinkWait, Outbox
from redlock_django.wire.links.waiter import Waiter
from redlock_django.wire.links.waiters import Waiters
from redlock_django.wire.notice import Notice, ignore
from redlock_django.wire.servers.address import Address


class Links:
    """The links of one process or one loop to all masters of an alias.

    A driver owns them. They own the masters' state and the parts that send, receive and connect,
    each of which is given what it needs of the others. `give_up` is for how many seconds the link
    of a late master may be silent, None for the default (see `Lateness`).
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        deployment: Deployment,
        membership: Membership,
        driver: Driver,
        *,
        master_timeout: float,
        connect_timeout: float,
        tolerate: frozenset[str] = frozenset(),
        notice: Notice = ignore,
        give_up: float | None = None,
    ) -> None:
        self.deployment = deployment
        self.membership = membership
        self.master_timeout = master_timeout
        self.connect_timeout = connect_timeout
        self.masters = [Master(i, address) for i, address in enumerate(addresses)]
        self.lateness = LateWatch(
            self.masters, Lateness(master_timeout, give_up), self.read, self._lose_late,
            self._late_changed,
        )  # fmt: skip
        self.steps = StepWatch(self.masters, deployment, self._check)
        self.waiters = Waiters(deployment)
        self.link_wait = LinkWait(self.masters, connect_timeout)
        self.outbox = Outbox(
            self.masters, deployment, self.membership, self.link_wait, self.lateness,
            read=self.read, redial=self.redial, lose=self.lose, watch=driver.watch,
        )  # fmt: skip
        self.dialer = Dialer(
            self.masters, deployment, self.membership, Terms(connect_timeout, tolerate, notice),
            self.outbox, self.steps, self.waiters, driver,
        )  # fmt: skip
        self.inbox = Inbox(
            deployment, self.membership, self.lateness, self.steps, self.waiters, self.outbox,
            self.dialer, driver.changed,
        )  # fmt: skip
        self.closed = self.dialer.closed  # set once the links are closed
        self._last_look = clock()  # at idle links

    # What the parts need of one another.

    def read(self, *masters: Master) -> None:
        """Read what these masters have sent, without blocking, and count it."""
        self.inbox.read_all(masters)

    def lose(self, master: Master, reason: str, *, late: bool = False, ended: bool = False) -> None:
        """Close a link that failed; see `Dialer.lose`."""
        self.dialer.lose(master, reason, late=late, ended=ended)

    def redial(self) -> bool:
        """Repeat what could not be done for a master; see `Dialer.redial`."""
        return self.dialer.redial()

    def _lose_late(self, master: Master, reason: str) -> None:
        self.dialer.lose(master, reason, late=True)

    def _late_changed(self) -> None:
        self.steps.decide()
        self.dialer.driver.changed()

    def _check(self, master: Master, mode: str) -> None:
        self.outbox.check(master, mode)

    # What a driver asks for.

    def owing(self) -> list[Master]:
        """Return the masters that owe a reply."""
        return [m for m in self.masters if m.link is not None and m.link.owed]

    def look_at_idle_links(self) -> None:
        """Read all links before a round that follows a pause: a master may have closed one."""
        now = clock()
        if now - self._last_look > IDLE:
            self.inbox.read_all(self.masters)
            self.outbox.flush()
        self._last_look = now

    def waiter(self) -> Waiter:
        """Return a new waiter; from the first on, every link listens to its master's calls."""
        if not self.waiters.is_used:
            for master in self.masters:
                self.dialer.listen(master)
            self.waiters.is_used = True
        return self.waiters.new()

    # The end.

    def shut(self) -> None:
        """Close every link; waiting callers get a failed vote.

        Blocks for at most MASTER_TIMEOUT while masters still answer: a server whose answer is
        refused reads no further, and the last releases may be among the bytes that it has not read.
        """
        self.closed.set()
        for master in self.owing():
            assert master.link is not None
            for owed in tuple(master.link.owed):
                self.outbox.undo_late(master, owed)
        self.outbox.flush()
        links = [m.link for m in self.owing() if m.link is not None]
        for link in links:
            with suppress(OSError):
                link.socket.shutdown(socket.SHUT_WR)
        until = clock() + self.master_timeout
        for link in links:
            link.drain(until)
        for master in self.masters:
            self.dialer.finish_losing(master)
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

    def forked(self) -> None:
        """Drop all links in the child of a fork."""
        # Another thread of the parent may have held the lock inside the event; in the child
        # nothing would ever release it.
        self.closed = self.dialer.closed = threading.Event()
        self.abandon()

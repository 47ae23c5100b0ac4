"""The state of the links to all masters, which connecting, sending and receiving share."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import count

from redlock_django.engine.deployment import Deployment
from redlock_django.engine.membership import Membership
from redlock_django.engine.protocol_steps import Round
from redlock_django.engine.quorum import quorum
from redlock_django.wire.address import Address
from redlock_django.wire.clock import clock
from redlock_django.wire.join import Joined, Unfit
from redlock_django.wire.late_watch import LateWatch
from redlock_django.wire.lateness import Lateness
from redlock_django.wire.master import Master, Notice, Plan, ignore
from redlock_django.wire.steps import StepWatch
from redlock_django.wire.template import Templates
from redlock_django.wire.waiters import Waiter, Waiters

IDLE = 1.0
"""The seconds without a round after which all links are read before the next one.

A link on which nothing came for so long is stale if it ends in the next round.
"""


class LinkState:
    """The masters of an alias as one process or one loop knows them, and what watches them.

    With its driver it has 29 attributes; CPython looks up those of an object with more of them
    more slowly.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        deployment: Deployment,
        *,
        master_timeout: float,
        connect_timeout: float,
        tolerate: frozenset[str] = frozenset(),
        notice: Notice = ignore,
        membership: Membership | None = None,
    ) -> None:
        self.deployment = deployment
        self.membership = membership or Membership([deployment])
        self.master_timeout = master_timeout
        self.connect_timeout = connect_timeout
        self.tolerate = tolerate
        self.notice = notice
        self.plan = Plan()
        self.masters = [Master(i, address, self.plan) for i, address in enumerate(addresses)]
        self.lateness = LateWatch(
            self.masters, Lateness(master_timeout), self.read, self._lose_late, self._late_changed
        )
        self.steps = StepWatch(self.masters, deployment, self._check)
        self.closed = threading.Event()
        self.waiters = Waiters(deployment, resume=self.resume)
        self._numbers = count(1)
        self._dirty: set[int] = set()
        self._templates = Templates()
        self._last_look = clock()  # at the links, by a poll or before a round
        self.membership.readers.add(self)  # from here on, any thread may call `look_again`

    # Methods that a driver supplies.

    def _watch(self, master: Master) -> None:
        """Watch a link until it is readable, or writable if it is `blocked`."""
        raise NotImplementedError

    def _unwatch(self, master: Master) -> None:
        raise NotImplementedError

    def _changed(self) -> None:
        """Wake the callers that wait for a quorum of links: a master came or went."""
        raise NotImplementedError

    def deliver(self, index: int, result: Joined | Unfit) -> bool:
        """Take the result of a connecting thread, in that thread; False ends the thread.

        A connection that is not taken is closed here, because the thread cannot know.
        """
        raise NotImplementedError

    def look_again(self) -> None:
        """Read the marker of every master that has a link again, soon. Any thread may call this."""
        raise NotImplementedError

    # Methods of the classes that connect, send and receive.

    def redial(self) -> bool:
        """Repeat what could not be done for a master; see `Dialer.redial`."""
        raise NotImplementedError

    def lose(self, master: Master, reason: str, *, late: bool = False, ended: bool = False) -> None:
        """Close a link that failed; see `Dialer.lose`."""
        raise NotImplementedError

    def read(self, *masters: Master) -> None:
        """Read what masters have sent; see `Receiver.read`."""
        raise NotImplementedError

    def resume(self, waiter: Waiter) -> None:
        """End the pause of a waiter; see `Sender.resume`."""
        raise NotImplementedError

    def _check(self, master: Master, mode: str) -> None:
        """Ask again whether a master is trusted; see `Sender._check`."""
        raise NotImplementedError

    # Questions.

    def usable(self) -> int:
        """Return how many masters may vote now."""
        now = clock()
        return sum(1 for master in self.masters if not master.fault(now))

    def may_reach_quorum(self) -> bool:
        """Return whether connections under way may still make up for a missing quorum."""
        connecting = sum(1 for m in self.masters if m.connecting)
        if not connecting:
            return False
        usable, need = self.usable(), quorum(self.deployment.masters)
        return usable < need <= usable + connecting

    def may_gain_quorum(self, asked: Round) -> bool:
        """Return whether a round may win only if it waits for connections under way."""
        return self.may_reach_quorum() and any(c is not None and c.trusted for c in asked.commands)

    def _conflict(self) -> str:
        """Return why no master may be asked for a lock, "" if each may."""
        if other := self.membership.conflict:
            return f"not asked, because {other} belongs to another deployment"
        return ""

    def owing(self) -> list[Master]:
        """Return the masters that owe a reply."""
        return [m for m in self.masters if m.link is not None and m.link.owed]

    def _lose_late(self, master: Master, reason: str) -> None:
        """Close the link of a master that has been silent for long."""
        self.lose(master, reason, late=True)

    def _late_changed(self) -> None:
        """Note that a master has become late, or is not late any more."""
        self.steps.decide()
        self._changed()

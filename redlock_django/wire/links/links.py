"""The links to all masters of an alias, without sockets: bytes in, bytes and verdicts out.

Nothing here blocks, starts a thread, takes a mutex or calls a driver, and time is what the `clock`
that it is given shows. A driver admits one thread at a time. It

- begins a round by `Links.begin`,
- sends `Link.out` of every master in `dirty`, and does what else these masters need (`Sockets`),
- adds what it receives to `Link.received` and calls `Replies.feed`,
- reports connections that come and go to `LinkChanges`,
- and, when its poll was over, calls `Links.judge`, after one more read of the `overdue` masters.

Rules:

1. Every command written is owed one reply, in order (see `link`).
2. A release is sent on the same link as its acquire, after it. If that link is gone, the release is
   kept, and is sent first after the next join, with a tombstone.
3. A late reply costs its vote, never its link (`late_masters`).
4. A push is not a reply: it removes nothing from the owed replies, except for the answer to
   SUBSCRIBE.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count

from redlock_django.engine.membership import Membership
from redlock_django.engine.protocol.commands import Acquire, Command, Release
from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.engine.protocol.votes import NOT_ASKED, failed
from redlock_django.wire.links.clock_steps import StepWatch
from redlock_django.wire.links.late_masters import LateWatch, RunningTime
from redlock_django.wire.links.link import Exchange, Kind, Owed
from redlock_django.wire.links.link_changes import LinkChanges, LinkWait
from redlock_django.wire.links.master import Master
from redlock_django.wire.links.replies import Replies
from redlock_django.wire.links.resp import pack
from redlock_django.wire.links.sender import Sender
from redlock_django.wire.links.waiters import Waiters
from redlock_django.wire.servers.address import Address

LOOK_AGAIN = 0.5
"""Seconds after which the marker of a master that is not counted is read again, if it is needed.

An operator may have declared it trusted."""


class Links:
    """The links of one process or one loop to all masters of an alias.

    `dirty` has the masters for which the driver has something to do. `give_up` is for how many
    seconds the link of a late master may be silent, None for the default (see `LateWatch`).
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        deployment: Deployment,
        membership: Membership,
        clock: Callable[[], float],
        *,
        master_timeout: float,
        connect_timeout: float,
        tolerate: frozenset[str] = frozenset(),
        give_up: float | None = None,
    ) -> None:
        self.deployment = deployment
        self.membership = membership
        self.clock = clock
        self.master_timeout = master_timeout
        self.connect_timeout = connect_timeout
        self.tolerate = tolerate
        self.masters = masters = [Master(i, address) for i, address in enumerate(addresses)]
        # Each part is given those that it uses, and knows no other.
        self._running = RunningTime(clock())
        self.lateness = LateWatch(masters, self._running, master_timeout, give_up)
        self.sender = Sender(masters, deployment, membership, self._running, clock)
        self.steps = StepWatch(masters, deployment, self.sender.check, clock)
        self.waiters = Waiters(deployment, clock)
        self.changes = LinkChanges(masters, tolerate, self.sender, self.steps, self.waiters, clock)
        self.replies = Replies(
            deployment, membership, self.sender, self.changes, self.lateness, self.steps,
            self.waiters, clock,
        )  # fmt: skip
        self.link_wait = LinkWait(masters, self.changes.connecting, connect_timeout, clock)
        self.dirty = self.sender.dirty
        self._numbers = count(1)

    # Rounds.

    def begin(self, exchange: Exchange) -> None:
        """Queue a round's commands on the links.

        Read late masters before: they may have answered. The votes of masters that may not be asked
        are counted at once.
        """
        # After an interrupt a round may begin twice: the replies to both have the same number.
        exchange.number = exchange.number or next(self._numbers)
        now, commands = self.clock(), exchange.asked.commands
        doubtful = [m for m in self.masters if not m.usable or now >= m.inspect_at]
        if doubtful or self.membership.conflict:
            commands = self._fit(exchange, doubtful, now)
        owed, data, trusted, early = None, b"", False, False
        for master, command in zip(self.masters, commands, strict=True):
            if command is None or (link := master.link) is None:
                exchange.cast(master.index, NOT_ASKED)  # unless `_fit` has counted its vote
                continue
            if owed is None or owed.command is not command:
                owed = Owed(Kind.COMMAND, now, exchange, command, self._running.passed)
                data = self.sender.templates.pack(command, exchange.number)
                trusted, early = command.trusted, command.early
            # In one step with `owed.append`: see `Link.write`.
            if not trusted:
                link.out += data
            else:
                link.out += data + (link.early_tail if early else link.tail)
            link.owed.append(owed)
            self.dirty.add(master)

    def _fit(
        self, exchange: Exchange, doubtful: Sequence[Master], now: float
    ) -> tuple[Command | None, ...]:
        """Return the commands of a round for the masters that may be asked; None for all others.

        Only masters that are `doubtful` are looked at. The votes of those that may not be asked are
        counted.
        """
        commands = [*exchange.asked.commands]
        for master in self.masters if self.membership.conflict else doubtful:
            if (command := commands[master.index]) is None:
                continue
            if fault := self._look(master, command, exchange, now):
                if isinstance(command, Release):
                    master.keep_release(command)
                exchange.cast(master.index, failed(fault, sent=False))
                commands[master.index] = None
            elif isinstance(command, Release) and command.token in master.unanswered:
                del master.unanswered[command.token]
                commands[master.index] = replace(command, bury=True)
        if exchange.decided and exchange.tally.unreachable:
            # A majority is known to be down, so nothing that needs a quorum is sent.
            for index, command in enumerate(commands):
                if command is not None and command.trusted:
                    exchange.cast(index, NOT_ASKED)
                    commands[index] = None
        for master in doubtful:
            if master.late and commands[master.index] is not None:
                self.lateness.fail_late(exchange, master.index, master.late, now)
        return tuple(commands)

    def _look(self, master: Master, command: Command, exchange: Exchange, now: float) -> str:
        """Look whether a master may be asked now; return why not, "" if it may.

        A release is sent to any master that has a link.
        """
        if master.unfinished or master.suspect:
            self.changes.retry()
        fault = master.fault(now)
        master.usable = not (fault or master.unfinished or master.unanswered)
        if fault and master.link is not None:
            fault = self._fault_for(master, command, exchange, now)
        if isinstance(command, Acquire):
            fault = fault or self.conflict()
        if not fault and now >= master.inspect_at:
            # Its reply comes before that of the command, whose vote it may cost.
            master.inspected(now)
            self.sender.write(master, Owed(Kind.INFO, now), pack("INFO"))
        return fault

    def _fault_for(self, master: Master, command: Command, exchange: Exchange, now: float) -> str:
        """Return why a master with a fault must not be asked this; "" if it may nevertheless."""
        if not command.trusted:
            return ""
        # Without the late masters there is no quorum, and a waiter has nothing better to do.
        patient = (
            bool(master.late)
            and exchange.asked.waits_on(now)
            and self.link_wait.usable() < self.link_wait.quorum
        )
        fault = master.fault(now, late=not patient, early=command.early)
        if fault and master.waits(now) and now - master.looked > LOOK_AGAIN:
            master.looked = now
            self.sender.check(master, "join")
        return fault

    def conflict(self) -> str:
        """Return why no master may be asked for a lock, "" if each may."""
        if other := self.membership.conflict:
            return f"not asked, because {other} belongs to another deployment"
        return ""

    # Late replies.

    def owing(self) -> list[Master]:
        """Return the masters that owe a reply."""
        return [m for m in self.masters if m.link is not None and m.link.owed]

    def judge(self, now: float) -> None:
        """Judge which replies are late; read the masters that are `overdue` before."""
        for master, reason in self.lateness.judge(now):
            self.changes.lose(master, reason, late=True)
        for master in self.masters:
            if master.late and master not in self.changes.late:
                self.steps.decide()
                self.changes.note(master)

    # The end.

    def finish(self) -> None:
        """Queue the releases of what silent masters may still grant; then `close`."""
        for master in self.owing():
            assert master.link is not None
            for owed in tuple(master.link.owed):
                self.sender.undo_late(master, owed)

    def close(self) -> None:
        """Drop every link; waiting callers get a failed vote."""
        for master in self.masters:
            self.changes.finish_losing(master)
            if master.link is not None:
                master.reason = "closed"
                master.fail_owed(master.link, ended=False)
                self.waiters.lose(master.index)
            self.changes.note(master)
        self.abandon()

    def abandon(self) -> None:
        """Drop all links, and what is queued on them: nothing more is sent."""
        for master in self.masters:
            master.usable = False
            master.lost = master.link or master.lost
            master.link = master.losing = master.undialed = None
            master.reason = "closed"

"""The outbox: commands are queued on the links of the masters that may be asked, and sent.

A round is begun in one way: each master that is usable gets its command, any other one is looked
at first (`Outbox._fit`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count

from redlock_django.engine.membership import Membership
from redlock_django.engine.protocol.commands import Acquire, Command, Release
from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.engine.protocol.votes import NOT_ASKED, failed
from redlock_django.engine.quorum import quorum
from redlock_django.engine.steps import Round
from redlock_django.wire.clock import clock
from redlock_django.wire.judging.late_masters import LateWatch
from redlock_django.wire.link.link import (
    Exchange,
    Kind,
    Link,
    Owed,
    ProtocolDesync,
    broken,
)
from redlock_django.wire.link.master import Master
from redlock_django.wire.link.resp import Templates, pack, pack_parts
from redlock_django.wire.servers.handshake import join_arguments

JOINING = 0.02
"""Seconds, at least, for which the first rounds wait for the links that a quorum does not need.

A link that is under way comes a few ms after the quorum. Otherwise the first lock of a process
would be set on a bare majority, and be lost with any of these masters."""

LOOK_AGAIN = 0.5
"""Seconds after which the marker of a master that is not counted is read again, if it is needed.

An operator may have declared it trusted."""


class LinkWait:
    """How long a round waits for connections under way."""

    def __init__(self, masters: Sequence[Master], connect_timeout: float) -> None:
        self._masters = masters
        self.quorum = quorum(len(masters))
        self._connect_timeout = connect_timeout
        self._joining_until: float | None = None  # None: there has been no quorum yet

    def usable(self) -> int:
        """Return how many masters may vote now."""
        now = clock()
        return sum(1 for master in self._masters if not master.fault(now))

    def seconds(self, began: float) -> float:
        """Return for how many seconds a round that began then waits.

        It waits as long as a quorum depends on connections under way. Once in the life of these
        links, rounds wait for the others, too, for as long again as the quorum took, and JOINING at
        least: a master that hangs costs no more than that.
        """
        connecting = sum(1 for m in self._masters if m.connecting)
        usable = self.usable() if connecting else 0
        if not connecting or usable + connecting < self.quorum:
            return 0.0
        now = clock()
        if usable < self.quorum:
            return began + self._connect_timeout - now
        if self._joining_until is None:
            self._joining_until = now + max(now - began, JOINING)
        return self._joining_until - now

    def is_needed(self, asked: Round) -> bool:
        """Return whether a round waits for connections under way; see `seconds`."""
        for master in self._masters:
            if master.connecting:
                break
        else:
            return False  # as nearly always
        trusted = any(c is not None and c.trusted for c in asked.commands)
        return trusted and self.seconds(clock()) > 0


class Outbox:
    """The commands that are queued for the masters and sent.

    `read(master)` reads what a master has sent, without blocking. `redial()` repeats what could not
    be done for a master. `lose(master, reason, ended=…)` closes a link that failed. `watch(master)`
    makes the driver watch a link until it takes more bytes.
    """

    def __init__(
        self,
        masters: Sequence[Master],
        deployment: Deployment,
        membership: Membership,
        link_wait: LinkWait,
        lateness: LateWatch,
        *,
        read: Callable[[Master], None],
        redial: Callable[[], object],
        lose: Callable[..., None],
        watch: Callable[[Master], None],
    ) -> None:
        self.dirty: set[Master] = set()  # those for which bytes are queued
        self._masters = masters
        self._deployment = deployment
        self._membership = membership
        self._link_wait = link_wait
        self._lateness = lateness
        self._read = read
        self._redial = redial
        self._lose = lose
        self._watch = watch
        self._numbers = count(1)
        self._templates = Templates()

    # Rounds.

    def exchange(self, asked: Round, wake: Callable[[], object]) -> Exchange:
        """Return a new exchange for a round."""
        return Exchange(asked, next(self._numbers), wake)

    def begin(self, exchange: Exchange) -> None:
        """Queue a round's commands on the links; `flush` sends them.

        The votes of masters that may not be asked are counted at once.
        """
        now, commands = clock(), exchange.asked.commands
        doubtful = [m for m in self._masters if not m.usable or now >= m.inspect_at]
        if doubtful or self._membership.conflict:
            commands = self._fit(exchange, doubtful, now)
        if None in exchange.asked.commands:
            for index, command in enumerate(exchange.asked.commands):
                if command is None:
                    exchange.cast(index, NOT_ASKED)
        owed, data, early = None, b"", False
        for master, command in zip(self._masters, commands, strict=True):
            if command is None or (link := master.link) is None:
                continue
            if owed is None or owed.command is not command:
                owed = Owed(Kind.COMMAND, now, exchange, command, self._lateness.running.passed)
                data, early = self._templates.pack(command, exchange.number), command.early
            if command.trusted:
                # In one step with `owed.append`: see `Link.write`.
                link.out += data + (_early_tail(master, link) if early else link.tail)
            else:
                link.out += data
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
        for master in self._masters if self._membership.conflict else doubtful:
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
                self._lateness.fail_late(exchange, master.index, master.late, now)
        return tuple(commands)

    def _look(self, master: Master, command: Command, exchange: Exchange, now: float) -> str:
        """Look whether a master may be asked now; return why not, "" if it may.

        A release is sent to any master that has a link.
        """
        if master.unfinished or master.suspect:
            self._redial()
        if master.late:
            self._read(master)  # it may have answered by now
        fault = master.fault(now)
        master.usable = not (fault or master.unfinished or master.unanswered)
        if fault and master.link is not None:
            fault = self._fault_for(master, command, exchange, now)
        if isinstance(command, Acquire):
            fault = fault or self.conflict()
        if not fault and now >= master.inspect_at:
            # Its reply comes before that of the command, whose vote it may cost.
            master.inspected(now)
            self.write(master, Owed(Kind.INFO, now), pack("INFO"))
        return fault

    def _fault_for(self, master: Master, command: Command, exchange: Exchange, now: float) -> str:
        """Return why a master with a fault must not be asked this; "" if it may nevertheless."""
        if not command.trusted:
            return ""
        # Without the late masters there is no quorum, and a waiter has nothing better to do.
        patient = (
            bool(master.late)
            and exchange.asked.waits_on(now)
            and self._link_wait.usable() < self._link_wait.quorum
        )
        fault = master.fault(now, late=not patient, early=command.early)
        if fault and master.waits(now) and now - master.looked > LOOK_AGAIN:
            master.looked = now
            self.check(master, "join")
        return fault

    def conflict(self) -> str:
        """Return why no master may be asked for a lock, "" if each may."""
        if other := self._membership.conflict:
            return f"not asked, because {other} belongs to another deployment"
        return ""

    # Single commands.

    def write(self, master: Master, owed: Owed, data: bytes) -> None:
        """Queue a command for a master that has a link."""
        link = master.link
        assert link is not None
        if (command := owed.command) is not None and command.trusted:
            data += _early_tail(master, link) if command.early else link.tail
        owed.ran = self._lateness.running.passed
        link.write(owed, data)
        self.dirty.add(master)

    def write_release(self, master: Master, release: Release) -> None:
        """Queue a release that belongs to no round."""
        data = self._templates.pack(release, 0)
        self.write(master, Owed(Kind.COMMAND, clock(), None, release), data)

    def undo_late(self, master: Master, owed: Owed) -> None:
        """Release what a master has granted, or may grant, to a client that was refused already."""
        if (release := owed.late_undo) is not None:
            self.write_release(master, release)

    def check(self, master: Master, mode: str) -> None:
        """Ask again, on the live link, whether the master is trusted."""
        if mode == "join" and master.check_mode != "join":
            return  # it is being marked untrusted: on this link, or first on the next
        master.check_mode = mode
        if master.link is None or (master.checking and mode == "join"):
            return
        asked = join_arguments(self._deployment, master.run_id, mode, 0, self._membership)
        self.write(master, Owed(Kind.CHECK, clock(), mode=mode), pack("EVALSHA", *asked))
        master.checking = True  # last: after an interrupt it may be asked twice, but not never

    def check_all(self) -> None:
        """Read the marker of every master that has a link again."""
        for master in self._masters:
            self.check(master, "join")

    def flush(self) -> None:
        """Send the queued bytes, in one send for each master."""
        dirty = self.dirty
        while dirty:
            master = dirty.pop()
            if (link := master.link) is None:
                continue
            try:
                blocked = link.send()
            except (OSError, ProtocolDesync) as error:
                self._lose(master, broken(error), ended=isinstance(error, OSError))
                continue
            if blocked is not link.blocked:
                link.blocked = blocked
                self._watch(master)


def _early_tail(master: Master, link: Link) -> bytes:
    """Return the end of a trusted command that is sent before its master is ready."""
    return link.tail if master.trust is None else pack_parts(master.trust.marker, 0)

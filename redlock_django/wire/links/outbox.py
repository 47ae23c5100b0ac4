"""The outbox: commands are queued on the links of the masters that may be asked, and sent.

A plan says which masters make a quorum that can be asked without a closer look. On the fast path,
all of these are sent the same bytes; otherwise each master is looked at, and gets what it may get.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count

from redlock_django.engine.membership import Membership
from redlock_django.engine.protocol.commands import Acquire, Command, Release
from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.engine.protocol.votes import NOT_ASKED, Vote, failed
from redlock_django.engine.quorum import Switch, quorum
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
from redlock_django.wire.link.master import Master, Plan
from redlock_django.wire.link.resp import Templates, pack, pack_parts, plain_replies
from redlock_django.wire.servers.handshake import join_arguments

INSPECTED = 2.0
"""Seconds after which a command is preceded by INFO: the server may have changed on a live link."""

# REDLOCK_FAST_PATH=0 takes no round on the fast path: for tests, and to find the cause of an error.
Switch.on = os.environ.get("REDLOCK_FAST_PATH") != "0"

JOINING = 0.02
"""Seconds, at least, for which the first rounds wait for the links that a quorum does not need.

A link that is under way comes a few ms after the quorum. Otherwise the first lock of a process
would be set on a bare majority, and be lost with any of these masters."""

LOOK_AGAIN = 0.5
"""Seconds after which the marker of a master that is not counted is read again, if it is needed.

An operator may have declared it trusted."""


class Planner:
    """The owner of the `plan`, which answers whether masters may be asked, and why not.

    While the plan is valid, a round is sent to its masters without a look at any of them.
    """

    def __init__(
        self,
        masters: Sequence[Master],
        plan: Plan,
        deployment: Deployment,
        membership: Membership,
        lateness: LateWatch,
        connect_timeout: float,
    ) -> None:
        self.plan = plan
        self._masters = masters
        self.quorum = quorum(deployment.masters)
        self._membership = membership
        self._lateness = lateness
        self._connect_timeout = connect_timeout
        self._joining_until: float | None = None  # None: there has been no quorum yet

    def usable(self) -> int:
        """Return how many masters may vote now."""
        now = clock()
        return sum(1 for master in self._masters if not master.fault(now))

    def link_wait(self, began: float) -> float:
        """Return for how many seconds a round that began then waits for connections under way.

        It waits as long as a quorum depends on them. Once in the life of these links, rounds wait
        for the others, too, for as long again as the quorum took, and JOINING at least: a master
        that hangs costs no more than that.
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

    def waits_for_links(self, asked: Round) -> bool:
        """Return whether a round waits for connections under way; see `link_wait`."""
        trusted = any(c is not None and c.trusted for c in asked.commands)
        return trusted and self.link_wait(clock()) > 0

    def conflict(self) -> str:
        """Return why no master may be asked for a lock, "" if each may."""
        if other := self._membership.conflict:
            return f"not asked, because {other} belongs to another deployment"
        return ""

    def ensure_plan(self, now: float) -> bool:
        """Make a new plan if the last one is over; return whether a quorum can be asked by it."""
        if not Switch.on or self._membership.conflict:
            return False
        return now < self.plan.until or self._make_plan(now)

    def _make_plan(self, now: float) -> bool:
        """Plan to ask a quorum without a closer look; return False if none can be asked so.

        All others must be late or without a link, and nothing be left to do for them.
        """
        links: dict[Master, Link] = {}
        left_out: dict[int, Vote] = {}
        for master in self._masters:
            if (link := master.link) and self._is_sound(master, now):
                links[master] = link
            elif (master.late or not link) and not master.unfinished:
                left_out[master.index] = failed(master.fault(now), sent=False)
            else:
                return False
        if len(links) < self.quorum:
            return False
        plan = self.plan
        plan.asked, plan.links, plan.left_out = tuple(links), tuple(links.values()), left_out
        plan.until = min(master.sound_until for master in links)
        return True

    def _is_sound(self, master: Master, now: float) -> bool:
        """Return whether a master needs no closer look, and note until when this is known."""
        link = master.link
        if (
            link is None
            or master.fault(now)
            or master.failures
            or master.unfinished
            or master.unanswered
            or now - link.inspected > INSPECTED
        ):
            return False
        master.sound_until = link.inspected + INSPECTED
        return True

    def count_left_out(self, exchange: Exchange, command: Command) -> bool:
        """Count the votes of the masters that the plan leaves out, if it covers the whole round.

        Otherwise return False, without having counted any.
        """
        left_out, commands = self.plan.left_out, exchange.asked.commands
        alike = commands.count(command)
        for index in left_out:
            if (other := commands[index]) is None:
                alike += 1
            elif not other.trusted:
                return False  # a release
        if alike != len(commands):
            return False
        for index, vote in left_out.items():
            exchange.cast(index, NOT_ASKED if commands[index] is None else vote)
        return True


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
        planner: Planner,
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
        self._planner = planner
        self._plan = planner.plan
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
        """Queue a round's commands on the links; `flush` sends them."""
        now = clock()
        if not self._begin_plainly(exchange, now):
            self._begin_each(exchange, now)

    def _begin_plainly(self, exchange: Exchange, now: float) -> bool:
        """Begin a round that asks all masters of the plan the same, without a look at any of them.

        Returns False without having begun if one of them needs a closer look.
        """
        planner = self._planner
        if not planner.ensure_plan(now):
            return False
        plan, commands = self._plan, exchange.asked.commands
        command = commands[plan.asked[0].index]
        if command is None or not command.votes:
            return False
        is_whole = not plan.left_out and commands.count(command) == len(commands)
        if not (is_whole or planner.count_left_out(exchange, command)):
            return False
        data = self._templates.pack(command, exchange.number)
        exchange.sent, exchange.ran = now, self._lateness.running.passed
        exchange.command = command
        exchange.grant, exchange.refusal = plain_replies(command, exchange.number)
        trusted = command.trusted
        for link in plan.links:
            link.out += data + link.tail if trusted else data
            link.owed.append(exchange)  # in one step with the bytes: see `Link.write`
        self.dirty.update(plan.asked)
        return True

    def _begin_each(self, exchange: Exchange, now: float) -> None:
        """Begin a round with a look at each master; see `begin`."""
        self._redial()
        asked = self._fit_for(exchange, now)
        # If a majority is known to be down, nothing that needs a quorum is sent.
        hopeless = exchange.decided and exchange.tally.account.unreachable
        packed: dict[int, bytes] = {}
        for master, command in asked:
            if hopeless and not isinstance(command, Release):
                exchange.cast(master.index, NOT_ASKED)
                continue
            if isinstance(command, Release) and command.token in master.unanswered:
                del master.unanswered[command.token]
                command = replace(command, bury=True)
            data = packed.get(id(command))
            if data is None:
                data = packed[id(command)] = self._templates.pack(command, exchange.number)
            if master.link is not None and now - master.link.inspected > INSPECTED:
                # Its reply comes before that of the command, whose vote it may cost.
                master.link.inspected = now
                self.write(master, Owed(Kind.INFO, now), pack("INFO"))
            self.write(master, Owed(Kind.COMMAND, now, exchange, command), data)
            if master.late:
                self._lateness.fail_late(exchange, master.index, master.late, now)

    def _fit_for(self, exchange: Exchange, now: float) -> list[tuple[Master, Command]]:
        """Return the masters that may be asked, with their commands; count the others' votes."""
        # Without the late masters there is no quorum, and a waiter has nothing better to do.
        patient = exchange.asked.waits_on(now) and self._planner.usable() < self._planner.quorum
        asked: list[tuple[Master, Command]] = []
        for master, command in zip(self._masters, exchange.asked.commands, strict=True):
            if command is None:
                exchange.cast(master.index, NOT_ASKED)
                continue
            if master.late:
                self._read(master)  # it may have answered by now
            fault = ""
            if command.trusted or master.link is None:
                fault = master.fault(now, late=not patient, early=command.early)
            if isinstance(command, Acquire):
                fault = fault or self._planner.conflict()
            if not fault:
                asked.append((master, command))
                continue
            if isinstance(command, Release):
                master.keep_release(command)
            elif master.waits(now) and now - master.looked > LOOK_AGAIN:
                master.looked = now
                self.check(master, "join")
            exchange.cast(master.index, failed(fault, sent=False))
        return asked

    # Single commands.

    def write(self, master: Master, owed: Owed, data: bytes) -> None:
        """Queue a command for a master that has a link."""
        link = master.link
        assert link is not None
        if (command := owed.command) is not None and command.trusted:
            trust = master.trust if command.early else None
            data += link.tail if trust is None else pack_parts(trust.marker, 0)
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

"""Sending: the commands of a round, to the masters that may be asked, in one send for each.

On the fast path, all masters of a plan are sent the same bytes after a glance at each; otherwise
each master is looked at, and gets what it may get.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import replace

from redlock_django.engine.commands import Acquire, Command, Release
from redlock_django.engine.fast_path import Switch
from redlock_django.engine.protocol_steps import Round
from redlock_django.engine.quorum import NOT_ASKED, Vote, failed, quorum
from redlock_django.wire.clock import clock
from redlock_django.wire.exchange import Exchange, Owed
from redlock_django.wire.join import join_arguments
from redlock_django.wire.late_watch import BEHIND
from redlock_django.wire.lateness import MOST_BEHIND, SHORTEST
from redlock_django.wire.link import Link, ProtocolDesync, broken, pack
from redlock_django.wire.link_state import LinkState
from redlock_django.wire.master import Master
from redlock_django.wire.plain_grants import plain_grant
from redlock_django.wire.waiters import Waiter

logger = logging.getLogger("redlock_django")

# REDLOCK_FAST_PATH=0 takes no round on the fast path: for tests, and to find the cause of an error.
Switch.on = os.environ.get("REDLOCK_FAST_PATH") != "0"

LOOK_AGAIN = 0.5
"""Seconds after which the marker of a master that is not counted is read again, if it is needed.

An operator may have declared it trusted."""

INSPECTED = 2.0
"""Seconds after which a command is preceded by INFO: the server may have changed on a live link."""


class Sender(LinkState):
    """Queue commands on the links of the masters that may be asked, and send them."""

    def exchange(self, asked: Round, wake: Callable[[], object]) -> Exchange:
        """Return a new exchange for a round."""
        return Exchange(asked, next(self._numbers), wake)

    def begin(self, exchange: Exchange) -> None:
        """Queue a round's commands on the links; `flush` sends them."""
        now = clock()
        if not exchange.number % MOST_BEHIND:
            self.lateness.look(now)
        frees = exchange.asked.frees
        waiters = self.waiters.queues.next_waiters(frees) if frees else ()
        following = waiters if len(waiters) == len(frees) else ()
        if not self._begin_plainly(exchange, now, following):
            self._begin_each(exchange, now)
        for waiter in waiters:
            self.resume(waiter)  # now that the release is queued: the next round leaves with it

    def resume(self, waiter: Waiter) -> None:
        """Send the next round of a waiter while it sleeps on, or wake it if it must do that itself.

        To wake its thread first, which then asks, takes about as long as a round trip.
        """
        if waiter.sent is not None:
            return
        pause, now = waiter.pause, clock()
        if pause is None or pause.begin is None or not self._asks_plainly(now):
            waiter.ask_now()
            return
        # After an interrupt here, the release is sent again, and masters call the waiter. It then
        # sends this round itself, perhaps for the second time, which is harmless.
        exchange = self.exchange(pause.begin(now), waiter.answered)
        self.begin(exchange)
        waiter.send(exchange)

    def _begin_each(self, exchange: Exchange, now: float) -> None:
        """Begin a round with a look at each master; see `begin`."""
        self.redial()
        # Without the late masters there is no quorum, and a waiter has nothing better to do.
        patient = exchange.asked.waits_on(now) and self.usable() < quorum(len(self.masters))
        behind = self.lateness.behind(now) if exchange.asked.spares else ()
        asked: list[tuple[Master, Command]] = []
        for master, command in zip(self.masters, exchange.asked.commands, strict=True):
            if command is None:
                exchange.cast(master.index, NOT_ASKED)
                continue
            if master.late:
                self.read(master)  # it may have answered by now
            fault = ""
            if command.trusted or master.link is None:
                fault = master.fault(now, late=not patient) or (BEHIND if master in behind else "")
            if isinstance(command, Acquire):
                fault = fault or self._conflict()
            if fault:
                if isinstance(command, Release):
                    master.keep_release(command)
                elif master.waits(now) and now - master.looked > LOOK_AGAIN:
                    master.looked = now
                    self._check(master, "join")
                exchange.cast(master.index, failed(fault, sent=False, stale=fault == BEHIND))
            else:
                asked.append((master, command))
        # If a majority is known to be down, nothing that needs a quorum is sent.
        hopeless = exchange.decided and exchange.tally.unreachable
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
                self._write(master, Owed(None, None, now, inspects=True), pack("INFO"))
            self._write(master, Owed(exchange, command, now), data)
            if master.late:
                self.lateness.fail_late(exchange, master.index, master.late, now)

    def _begin_plainly(
        self, exchange: Exchange, now: float, following: Sequence[Waiter] = ()
    ) -> bool:
        """Begin a round that asks all masters of the plan the same, without a look at any of them.

        Returns False without having begun if one of them needs a closer look. A release calls no
        waiter if the next one of each lock is `following`: it asks in the same send, and takes the
        lock, or calls another waiter whose turn it is.
        """
        if not self._asks_plainly(now):
            return False
        plan, commands = self.plan, exchange.asked.commands
        command = commands[plan.asked[0]]
        if command is None or not command.votes:
            return False
        is_whole = not plan.left_out and commands.count(command) == len(commands)
        if not (is_whole or self._leave_out(exchange, command)):
            return False
        packed = command
        # What was read while the plan was made may have called one of them: it has asked already.
        if following and isinstance(command, Release) and not any(w.sent for w in following):
            packed = replace(command, calls=False)
        data = self._templates.pack(packed, exchange.number)
        exchange.sent, exchange.ran = now, self.lateness.running.passed
        exchange.command = command  # if this is sent again, nothing follows it: then it calls
        exchange.grant, exchange.granted = plain_grant(command, exchange.number)
        trusted = command.trusted
        for link in plan.links:
            link.owed.append(exchange)  # first: see `Link.write`
            link.out += data + link.tail if trusted else data
        self._dirty.update(plan.asked)
        return True

    def _leave_out(self, exchange: Exchange, command: Command) -> bool:
        """Count the votes of the masters that the plan leaves out, if it has all that are asked.

        Otherwise return False, without having counted any.
        """
        plan, commands = self.plan, exchange.asked.commands
        alike = commands.count(command)
        for index in plan.left_out:
            if (other := commands[index]) is None:
                alike += 1
            elif not other.trusted or (plan.left_out[index].stale and not exchange.asked.spares):
                return False  # a release, or a round that needs the masters that are behind
        if alike != len(commands):
            return False
        for index, vote in plan.left_out.items():
            exchange.cast(index, NOT_ASKED if commands[index] is None else vote)
        return True

    def _asks_plainly(self, now: float) -> bool:
        """Return whether a quorum can be asked without a closer look at any master."""
        if not Switch.on or self.membership.conflict:
            return False
        return now < self.plan.until or self._may_plan(now)

    def _may_plan(self, now: float) -> bool:
        """Return whether a quorum can be asked without a closer look, and plan to ask it.

        All others must be late, behind or without a link, and nothing be left to do for them.
        """
        links: dict[int, Link] = {}
        left_out: dict[int, Vote] = {}
        behind = self.lateness.behind(now)
        for master in self.masters:
            if (link := master.link) and self.sound(master, now) and master not in behind:
                links[master.index] = link
            elif (master.late or master in behind or not link) and not master.unfinished:
                why = master.fault(now) or BEHIND
                left_out[master.index] = failed(why, sent=False, stale=why == BEHIND)
            else:
                return False
        if len(links) < quorum(len(self.masters)):
            return False
        plan = self.plan
        plan.asked, plan.links, plan.left_out = tuple(links), tuple(links.values()), left_out
        # Masters that are behind may answer at any time.
        plan.until = now + SHORTEST if behind else min(self.masters[i].sound_until for i in links)
        return True

    def sound(self, master: Master, now: float) -> bool:
        """Return whether nothing speaks against a master, and note until when this is known."""
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

    def _undo_late(self, master: Master, owed: Owed) -> None:
        """Release what a master has granted, or may grant, to a client that was refused already."""
        if (release := owed.late_undo) is not None:
            self._write(master, Owed(None, release, clock()), self._templates.pack(release, 0))

    def _write(self, master: Master, owed: Owed, data: bytes) -> None:
        link = master.link
        assert link is not None
        if owed.command is not None and owed.command.trusted:
            data += link.tail
        owed.ran = self.lateness.running.passed
        link.write(owed, data)
        self._dirty.add(master.index)

    def _check(self, master: Master, mode: str) -> None:
        """Ask again, on the live link, whether the master is trusted."""
        if mode == "join" and master.check_mode != "join":
            return  # it is being marked untrusted: on this link, or first on the next
        master.check_mode = mode
        if master.link is None or (master.checking and mode == "join"):
            return
        asked = join_arguments(self.deployment, master.run_id, mode, 0, self.membership)
        data = pack("EVALSHA", *asked)
        self._write(master, Owed(None, None, clock(), mode=mode), data)
        master.checking = True  # last: after an interrupt it may be asked twice, but not never

    def _check_all(self) -> None:
        """Read the marker of every master that has a link again."""
        for master in self.masters:
            self._check(master, "join")

    def _log_polling(self, master: Master, why: str) -> None:
        """Log that a master cannot call waiters, so that they poll it."""
        if not master.polling_logged:
            logger.warning(
                "redlock master %s %s: it cannot call waiters, which poll it instead",
                master.address.name,
                why,
                extra={"master": master.address.name},
            )
        master.polling_logged = True

    def flush(self) -> None:
        """Send the queued bytes, in one send for each master."""
        masters, dirty = self.masters, self._dirty
        while dirty:
            master = masters[dirty.pop()]
            if (link := master.link) is None:
                continue
            try:
                blocked = link.send()
            except (OSError, ProtocolDesync) as error:
                self.lose(master, broken(error), ended=isinstance(error, OSError))
                continue
            if blocked is not link.blocked:
                link.blocked = blocked
                self._watch(master)

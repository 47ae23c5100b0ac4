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

import logging
import os
import socket
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import Any

import hiredis

from redlock_django.engine.commands import Acquire, Command, Release, script
from redlock_django.engine.deployment import Deployment
from redlock_django.engine.fast_path import Switch
from redlock_django.engine.membership import Membership
from redlock_django.engine.quorum import NOT_ASKED, Verdict, failed, quorum
from redlock_django.engine.rounds import Round
from redlock_django.engine.statuses import GRANTED, NOT_READY
from redlock_django.wire.address import Address
from redlock_django.wire.clock import clock
from redlock_django.wire.exchange import Exchange, Owed
from redlock_django.wire.join import (
    Joined,
    Trust,
    Unfit,
    Unmarked,
    check,
    first_word,
    join_arguments,
    read_trust,
)
from redlock_django.wire.late_watch import LateWatch
from redlock_django.wire.lateness import Lateness
from redlock_django.wire.link import Link, ProtocolDesync, pack, pack_command, pack_parts
from redlock_django.wire.master import Master, Notice, dial, discard, ignore
from redlock_django.wire.server_info import read_info, run_of
from redlock_django.wire.steps import StepWatch
from redlock_django.wire.template import Templates
from redlock_django.wire.waiters import Waiter, Waiters

logger = logging.getLogger("redlock_django")

# REDLOCK_FAST_PATH=0 takes no round on the fast path: for tests, and to find the cause of an error.
Switch.on = os.environ.get("REDLOCK_FAST_PATH") != "0"

IDLE = 1.0
"""The seconds without a round after which all links are read before the next one.

A link on which nothing came for so long is stale if it ends in the next round.
"""


LOOK_AGAIN = 0.5
"""Seconds after which the marker of a master that is not counted is read again, if it is needed.

An operator may have declared it trusted."""

INSPECTED = 2.0
"""Seconds after which a command is preceded by INFO: the server may have changed on a live link."""


class Links:
    """The links of one process or one loop to all masters of an alias."""

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
        self.membership.readers.add(self)
        self.master_timeout = master_timeout
        self.connect_timeout = connect_timeout
        self.tolerate = tolerate
        self.notice = notice
        self.masters = [Master(index, address) for index, address in enumerate(addresses)]
        self.lateness = LateWatch(
            self.masters, Lateness(master_timeout), self.read, self._lose_late, self._late_changed
        )
        self.steps = StepWatch(self.masters, deployment, self._check)
        self.closed = threading.Event()
        self.waiters = Waiters(deployment)
        self._listening = False
        self._numbers = count(1)
        self._dirty: set[int] = set()
        self._templates = Templates()
        self._last_round = clock()

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

    # Connecting.

    def connect(self) -> None:
        """Begin to connect to every master that no thread connects to yet."""
        for master in self.masters:
            if master.link is None and master.reason == "not connected yet":
                self._dial(master, "connecting", 0.0)

    def redial(self) -> bool:
        """Start dialing threads that could not be started, and repeat releases that were refused.

        Returns whether nothing is left to repeat. Every round calls this, and the driver does from
        time to time.
        """
        for master in self.masters:
            if master.undialed is not None and not self.closed.is_set():
                self._dial(master, *master.undialed)
            if master.refused_releases and master.link is not None:
                for release in master.due_releases(clock()):
                    self._write(master, Owed(None, release, clock()), pack_command(release, 0))
        return not any(master.unfinished for master in self.masters)

    def _dial(self, master: Master, reason: str, delay: float) -> None:
        master.reason = reason
        master.connecting = delay == 0.0
        receiver = _DialReceiver(self, master)
        dialer = threading.Thread(
            target=dial,
            args=(master, self.closed, receiver.deliver, receiver.notice),
            kwargs={
                "deployment": self.deployment,
                "membership": self.membership,
                "delay": delay,
                "lost": reason if delay else "",
                "tolerate": self.tolerate,
                "timeout": self.connect_timeout,
            },
            name=f"redlock-dial-{master.address.name}",
            daemon=True,
        )
        first, master.undialed = master.undialed is None, (reason, delay)
        try:
            dialer.start()
        except RuntimeError as error:  # the process may have no more threads now
            master.connecting = False
            master.reason = f"no thread could be started to connect to it: {error}"
            if first:
                logger.error(
                    "redlock master %s: %s",
                    master.address.name,
                    master.reason,
                    extra={"master": master.address.name},
                )
            return
        # Not earlier: if an interrupt strikes above, another thread is started. If both connect,
        # the driver takes the first connection only.
        master.undialed = None

    def arrived(self, index: int, result: Joined | Unfit) -> bool:
        """Handle the end of an attempt to connect; return whether another attempt must follow."""
        master = self.masters[index]
        if isinstance(result, Unmarked) and result.early:
            master.reason = str(result)
            return True
        if isinstance(result, Unfit):
            if master.connecting or master.reason != str(result):
                logger.warning(
                    "redlock master %s is not counted: %s",
                    master.address.name,
                    result,
                    extra={"master": master.address.name},
                )
            master.connecting = False
            master.reason = str(result)
            master.failures += 1
            self._changed()
            return True
        for text in result.warnings:
            logger.warning("redlock master %s %s", master.address.name, text)
        if master.run_id != result.run_id:
            master.offset = None  # another server process, perhaps on another machine
        master.run_id = result.run_id
        result.socket.setblocking(False)
        master.link = Link(result.socket, pushes=result.pushes)
        master.link.inspected = result.inspected
        master.connecting = False
        master.reason = ""
        self._find_twins()
        self._watch(master)
        self._trusted(master, result.trust)
        for release in master.pending_releases.values():
            self._write(master, Owed(None, release, clock()), pack_command(release, 0))
            master.unanswered.pop(release.token, None)
        master.pending_releases.clear()
        if master.check_mode != "join":
            self._check(master, master.check_mode)
        if self._listening:
            self._listen(master)
        self._changed()
        return False

    def _find_twins(self) -> None:
        first: dict[str, Master] = {}
        for master in self.masters:
            master.twin = ""
            if master.link is None:
                continue
            other = first.setdefault(master.run_id, master)
            if other is not master:
                # Neither master is counted: one server must never vote twice, and the error must be
                # visible to the author of the settings.
                master.twin, other.twin = other.address.name, master.address.name
                logger.error(
                    "redlock masters %s and %s are the same server: neither is counted",
                    other.address.name,
                    master.address.name,
                )

    def _trusted(self, master: Master, trust: Trust) -> None:
        left = trust.ready - clock()
        if master.trust is not None and master.trust.marker == trust.marker:
            # A master names the reason only in the reply that writes its marker.
            trust = replace(trust, doubt=master.trust.doubt)
        elif left > 0:
            logger.warning(
                "redlock master %s %s: trusted in %.1f s",
                master.address.name,
                trust.doubt,
                left,
                extra={"master": master.address.name},
            )
        master.trust = trust
        if master.link is not None:
            master.link.tail = pack_parts(trust.marker, trust.ready_at)
        self.steps.note(master, *trust.offset)

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

    # Waiting.

    def _waiter(self) -> Waiter:
        """Return a new waiter; from the first on, every link listens to its master's calls."""
        if not self._listening:
            for master in self.masters:
                self._listen(master)
            self._listening = True
        return self.waiters.new()

    def _listen(self, master: Master) -> None:
        link = master.link
        if link is None:
            return
        if not link.pushes:
            self._log_polling(master, "does not support RESP3")
            return
        data = pack("SUBSCRIBE", self.waiters.channel)
        self._write(master, Owed(None, None, clock(), subscribes=True), data)

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

    # Sending.

    def begin(self, exchange: Exchange) -> None:
        """Queue a round's commands on the links; `flush` sends them."""
        now = clock()
        if self._begin_plainly(exchange, now):
            return
        self.redial()
        asked: list[tuple[Master, Command]] = []
        for master, command in zip(self.masters, exchange.commands, strict=True):
            if command is None:
                exchange.cast(master.index, NOT_ASKED)
                continue
            if master.late:
                self.read(master)  # it may have answered by now
            fault = master.fault(now) if command.trusted or master.link is None else ""
            if isinstance(command, Acquire):
                fault = fault or self._conflict()
            if fault:
                if isinstance(command, Release):
                    master.keep_release(command)
                elif master.waits(now) and now - master.looked > LOOK_AGAIN:
                    master.looked = now
                    self._check(master, "join")
                exchange.cast(master.index, failed(fault, sent=False))
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
                exchange.cast(master.index, failed(master.late))

    def _begin_plainly(self, exchange: Exchange, now: float) -> bool:
        """Begin a round that asks all masters the same, and nothing speaks against any of them.

        Returns False without having begun otherwise.
        """
        commands = exchange.commands
        command = commands[0]
        if (
            command is None
            or not Switch.on
            or self.membership.conflict
            or commands.count(command) != len(self.masters)
        ):
            return False
        for master in self.masters:
            if now >= master.sound_until and not self.sound(master, now):
                return False
        data = self._templates.pack(command, exchange.number)
        owed = Owed(exchange, command, now)
        owed.ran = self.lateness.running.passed
        for master in self.masters:
            link = master.link
            assert link is not None
            link.write(owed, data + link.tail if command.trusted else data)
        self._dirty.update(range(len(self.masters)))
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

    def _conflict(self) -> str:
        """Return why no master may be asked for a lock, "" if each may."""
        if other := self.membership.conflict:
            return f"not asked, because {other} belongs to another deployment"
        return ""

    def look_at_idle_links(self) -> None:
        """Read all links before a round that follows a pause: a master may have closed one."""
        now = clock()
        if now - self._last_round > IDLE:
            for master in self.masters:
                self.read(master)
            self.flush()
        self._last_round = now

    def exchange(self, asked: Round, wake: Callable[[], object]) -> Exchange:
        """Return a new exchange for a round."""
        return Exchange(asked, next(self._numbers), wake)

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
        master.checking = True
        asked = join_arguments(self.deployment, master.run_id, mode, 0, self.membership)
        data = pack("EVALSHA", *asked)
        self._write(master, Owed(None, None, clock()), data)

    def _check_all(self) -> None:
        """Read the marker of every master that has a link again."""
        for master in self.masters:
            self._check(master, "join")

    def flush(self) -> None:
        """Send the queued bytes, in one send for each master."""
        while self._dirty:
            master = self.masters[self._dirty.pop()]
            link = master.link
            if link is None:
                continue
            try:
                link.send()
            except (OSError, ProtocolDesync) as error:
                self.lose(master, _broken(error), ended=isinstance(error, OSError))
                continue
            if link.blocked is not bool(link.out):
                link.blocked = bool(link.out)
                self._watch(master)

    # Receiving.

    def read(self, master: Master) -> None:
        """Read what a master has sent, without blocking, and count it."""
        link = master.link
        if link is None:
            return
        ended: Exception | None = None
        try:
            link.receive()
        except (OSError, EOFError) as error:
            ended = error  # the replies before the end still count
        heard, gets = clock(), link.parser.gets
        try:
            while True:  # without a condition: see docs/explanation/interrupts.md
                if (reply := gets()) is False:
                    break
                if self._grants(master, link, reply, heard):
                    continue
                self._answer(master, link, reply)
                if master.link is not link:
                    break
        except (hiredis.ProtocolError, ProtocolDesync) as error:
            logger.error(
                "redlock master %s: %s",
                master.address.name,
                error,
                extra={"master": master.address.name},
            )
            ended = error
        if ended is not None and master.link is link:
            self.lose(master, _broken(ended), ended=isinstance(ended, OSError | EOFError))
        if master.late and not link.owed:
            self.lateness.in_time(master)

    def _grants(self, master: Master, link: Link, reply: Any, heard: float) -> bool:
        """Count a reply if it plainly grants what is owed; otherwise return False.

        It came at `heard`, at the latest.
        """
        if type(reply) is not list or not link.owed or heard >= master.sound_until or link.expired:
            return False
        owed = link.owed[0]
        exchange = owed.exchange
        if (
            exchange is None
            or len(reply) != owed.granted
            or reply[0] != exchange.number
            or reply[1] != GRANTED
        ):
            return False
        time, fences = reply[2], reply[3:]
        if type(time) is not int:
            return False
        for fence in fences:
            if type(fence) is not int:
                return False
        seconds = time / 1_000_000
        low, high = seconds - heard, seconds - owed.sent
        if not self.steps.confirms(master, low, high, heard):
            self.steps.note(master, low, high)
            if heard >= master.sound_until:
                return False  # a clock has stepped
        link.owed.popleft()
        link.ran, link.heard = self.lateness.running.passed, heard
        verdict = exchange.tally.grant(master.index, time, fences)
        if verdict is not Verdict.PENDING and not exchange.decided:
            exchange.decide()
        return True

    def _answer(self, master: Master, link: Link, reply: Any) -> None:
        plain = type(reply) is list  # as nearly every reply is
        if not plain and isinstance(reply, hiredis.PushNotification):
            self._handle_push(master, link, reply)
            return
        if not link.owed:
            raise ProtocolDesync("a reply without a command")
        # Removed only once its reply has proved to be valid: otherwise the waiting caller would not
        # be notified that the link is lost.
        owed = link.owed[0]
        exchange, command = owed.exchange, owed.command
        if not plain and isinstance(reply, hiredis.ReplyError):
            self._pop_owed(link)
            self._handle_error(master, owed, first_word(reply))
            return
        if owed.loads or owed.subscribes:
            if owed.subscribes or not isinstance(reply, bytes):
                raise ProtocolDesync("a reply of another round")
            self._pop_owed(link)
            return
        if owed.inspects:
            if not isinstance(reply, bytes) or b"run_id:" not in reply:
                raise ProtocolDesync("a reply of another round")
            self._pop_owed(link)
            self._inspected(master, read_info(reply))
            return
        number = exchange.number if exchange is not None else 0
        if not plain or len(reply) < 3 or reply[0] != number:
            raise ProtocolDesync("a reply of another round")
        try:
            if command is None:
                trust = read_trust(
                    self.membership,
                    master.address.name,
                    master.run_id,
                    reply,
                    owed.sent,
                    clock(),
                )
            else:
                vote = command.vote(reply[1:])
        except Unfit as error:
            self.lose(master, str(error))
            return
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise ProtocolDesync("a reply of another shape") from error
        read = self._pop_owed(link)
        if master.failures:
            master.failures = 0
        if master.refused_releases and isinstance(command, Release):
            master.refused_releases.pop(command.token, None)
        if command is None:
            self._checked(master, trust)
            return
        time = reply[2] / 1_000_000
        self.steps.note(master, time - read, time - owed.sent)
        if reply[1] == NOT_READY:
            self._check(master, master.check_mode)
        if exchange is not None:
            # After the reply that revealed a clock step come replies of rounds that were sent
            # before.
            doubt = master.doubt(read) if command.trusted else ""
            exchange.cast(master.index, failed(doubt) if doubt else vote)

    def _inspected(self, master: Master, info: dict[str, str]) -> None:
        """Lose the link of a master that may not be counted any more, by its INFO."""
        try:
            check(info, self.tolerate)
        except Unfit as error:
            self.lose(master, str(error))
            return
        if run_of(info) != master.run_id:
            self.lose(master, "has evicted keys, or taken other data by replication")

    def _handle_push(self, master: Master, link: Link, push: list[Any]) -> None:
        """Handle a push: the answer to SUBSCRIBE, a call for a waiter, or another to ignore."""
        kind = push[0] if push else None
        if kind == b"subscribe":
            if not link.owed or not link.owed[0].subscribes:
                raise ProtocolDesync("a subscription without a SUBSCRIBE")
            self._pop_owed(link)
            self.waiters.listen(master.index)
        elif kind == b"message" and len(push) == 3:
            self.waiters.call(push[2], master.index)

    def _pop_owed(self, link: Link) -> float:
        """Remove the oldest owed reply, which has come; return the current time."""
        link.owed.popleft()
        if link.expired:
            link.expired -= 1
        link.ran = self.lateness.running.passed
        link.heard = clock()
        return link.heard

    def _handle_error(self, master: Master, owed: Owed, word: str) -> None:
        """Handle an error reply."""
        if owed.loads:
            return
        if owed.subscribes:
            self._log_polling(master, f"answered {word} to SUBSCRIBE")
            return
        if word == "NOSCRIPT" and self._retry(master, owed.exchange, owed.command):
            return
        if owed.exchange is not None:
            owed.exchange.cast(master.index, failed(f"answered {word}"))
        # A check that failed must be made again, or the master would be suspected for ever.
        if owed.command is None or word in ("READONLY", "NOAUTH", "LOADING", "MASTERDOWN", "BUSY"):
            if isinstance(owed.command, Release):
                master.keep_release(owed.command)
            self.lose(master, f"answered {word}")  # the next join finds the reason
        elif isinstance(owed.command, Release):  # MISCONF, NOREPLICAS, OOM: for writes alone
            master.refuse_release(owed.command, clock() + self.deployment.max_ttl)

    def _retry(self, master: Master, exchange: Exchange | None, command: Command | None) -> bool:
        """Answer NOSCRIPT by EVAL, unless the round is over: then its undo is already sent."""
        if command is None:
            asked = join_arguments(
                self.deployment, master.run_id, master.check_mode, 0, self.membership, text=True
            )
            data = pack("EVAL", *asked)
        elif isinstance(command, Release) or (exchange is not None and not exchange.decided):
            number = exchange.number if exchange is not None else 0
            data = pack_command(command, number, text=True)
        else:
            # Otherwise a master that is always the last to answer would never learn the script.
            data = pack("SCRIPT", "LOAD", script(command.name)[0])
            self._write(master, Owed(None, None, clock(), loads=True), data)
            return False
        self._write(master, Owed(exchange, command, clock()), data)
        return True

    def _checked(self, master: Master, trust: Trust) -> None:
        master.checking = False
        master.check_mode = "join"
        self._trusted(master, trust)
        self.steps.checked(master)
        self._changed()

    # Losing.

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

    def lose(self, master: Master, reason: str, *, late: bool = False, ended: bool = False) -> None:
        """Close a link that failed, notify every caller that waits for it, and connect again.

        If the connection `ended`, a vote on a link that was idle before fails as stale.
        """
        link = master.link
        if link is None:
            return
        self._unwatch(master)
        master.link = None
        master.checking = False
        master.late = ""
        # A link that is closed on purpose still delivers its releases.
        link.close(cut=not self.closed.is_set())
        for owed in link.owed:
            command = owed.command
            if isinstance(command, Release):
                master.keep_release(command)
            elif command is not None and command.sets:
                master.remember_unanswered(command.token)
            if owed.exchange is not None:
                stale = ended and owed.sent - link.heard > IDLE
                owed.exchange.cast(master.index, failed(reason, stale=stale))
        # A connection that ended without a fault (an idle time-out, a restart) may come back at
        # once. A master that was late, or fails again, is left alone for a while.
        calm = not late and master.failures == 0
        delay = 0.0 if calm else master.backoff()
        master.failures += 1
        if not self.closed.is_set():
            logger.log(
                logging.INFO if calm else logging.WARNING,
                "redlock master %s: %s",
                master.address.name,
                reason,
                extra={"master": master.address.name},
            )
            self._dial(master, reason, delay)
        self.waiters.lose(master.index)
        self.steps.decide()
        self._changed()

    def __del__(self) -> None:
        self.abandon()

    def shut(self) -> None:
        """Close every link; waiting callers get a failed vote.

        Blocks for at most MASTER_TIMEOUT while masters still answer: a server whose answer is
        refused reads no further, and the last releases may be among the bytes that it has not read.
        """
        self.closed.set()
        self.flush()
        links = [m.link for m in self.owing() if m.link is not None]
        for link in links:
            with suppress(OSError):
                link.socket.shutdown(socket.SHUT_WR)
        until = clock() + self.master_timeout
        for link in links:
            link.drain(until)
        for master in self.masters:
            self.lose(master, "closed")
            master.reason = "closed"

    def abandon(self) -> None:
        """Drop everything that was inherited over a fork, without sending a byte to any master."""
        self.closed.set()
        for master in self.masters:
            if master.link is not None:
                with suppress(OSError):
                    master.link.socket.close()
                master.link = None
                master.reason = "closed"


class _DialReceiver:
    """The receiver of a connecting thread's results, for links that may be gone by then."""

    def __init__(self, links: Links, master: Master) -> None:
        self.links = weakref.ref(links)
        self.index, self.name = master.index, master.address.name

    def deliver(self, result: Joined | Unfit) -> bool:
        links = self.links()
        if links is None:
            discard(result)
            return False
        return links.deliver(self.index, result)

    def notice(self, result: Joined | Unfit) -> None:
        links = self.links()
        if links is None or links.closed.is_set():
            return
        notice = links.notice
        del links  # the callback may take long and must not keep the links alive
        try:
            if isinstance(result, Unfit):
                notice(self.name, False, str(result))
            else:
                left = result.trust.ready - clock()
                why = f"{result.trust.doubt}: trusted in {max(left, 1):.0f} s" if left > 0 else ""
                notice(self.name, True, why)
        except BaseException:  # or the thread would end, and no other connects to this master
            logger.exception("redlock master %s: the notice callback failed", self.name)


def _broken(error: Exception) -> str:
    if isinstance(error, EOFError):
        return "closed the connection"
    if isinstance(error, OSError):
        return f"the connection broke: {error.strerror or type(error).__name__}"
    return f"the replies are out of step: {error}"

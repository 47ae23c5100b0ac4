"""Receiving: each reply is matched to the command that it answers, and counted."""

from __future__ import annotations

import logging
import struct
from collections.abc import Sequence
from typing import Any

import hiredis

from redlock_django.engine.commands import Acquire, Release, as_array, script, unpack_grant
from redlock_django.engine.quorum import LOST, PENDING, Ballot, failed
from redlock_django.engine.statuses import GRANTED, NOT_READY
from redlock_django.wire.clock import clock
from redlock_django.wire.dialer import Dialer
from redlock_django.wire.exchange import Owed
from redlock_django.wire.join import Trust, Unfit, first_word, join_arguments, read_trust
from redlock_django.wire.link import (
    BACKLOG,
    CHUNK,
    WOULD_BLOCK,
    Link,
    ProtocolDesync,
    broken,
    pack,
    pack_command,
)
from redlock_django.wire.master import Master
from redlock_django.wire.server_info import read_info

logger = logging.getLogger("redlock_django")

NO_FENCES: tuple[int, ...] = ()


class Receiver(Dialer):
    """Read the replies of the masters."""

    def read(self, *masters: Master) -> None:
        """Read what masters have sent, without blocking, and count it."""
        for master in masters:
            link = master.link
            if link is None:
                continue
            try:
                data = link.recv(BACKLOG if link.expired else CHUNK)
            except WOULD_BLOCK:
                continue
            except OSError as error:
                self.lose(master, broken(error), ended=True)
                continue
            if data:
                link.parser.feed(data)
            else:
                self.lose(master, "closed the connection", ended=True)
        # One look at the clock for all, after the last byte was received.
        self._count(masters, clock(), self.lateness.running.passed)

    def _count(self, masters: Sequence[Master], heard: float, ran: float) -> None:
        """Count the replies that came from masters until `heard`.

        `ran` is for how long the driver had been running then.

        A reply that plainly grants what is owed, as nearly every reply does, is counted here.
        `_answer` handles all others. A master that was hung sends hundreds of grants to rounds that
        are decided, whose votes need no trust in it.
        """
        self.steps.saw(heard)
        for master in masters:
            link = master.link
            if link is None:
                continue
            owed, parser = link.owed, link.parser
            plain = heard < master.sound_until and not link.expired
            try:
                while True:  # without a condition: see docs/explanation/interrupts.md
                    reply = parser.gets()
                    if reply is False:
                        break
                    time = None  # the master's clock, if it plainly grants; 0 without a clock
                    if owed and (plain or (link.expired and not owed[0].undecided)):
                        asked: Any = owed[0]  # an Exchange, if it has a reply that grants
                        length = asked.granted
                        if length == 3 and reply == asked.number:  # a plain release
                            time, fences = 0, NO_FENCES
                        elif length == 4 and type(reply) is bytes:
                            number, status, its_time, fence = unpack_grant(reply)
                            if number == asked.number and status == GRANTED:
                                time, fences = its_time, (fence,)
                        elif (
                            type(reply) is list
                            and len(reply) == length
                            and reply[:2] == [asked.number, GRANTED]
                            and {*map(type, reply[2:])} == {int}
                        ):
                            time, fences = reply[2], tuple(reply[3:])
                        if time:
                            shown, (least, most, until) = time / 1e6, master.steady
                            if not (
                                heard < until
                                and heard >= asked.sent
                                and asked.sent + least <= shown <= heard + most
                            ) and not self.steps.note(master, shown - heard, shown - asked.sent):
                                time = None  # a clock has stepped
                    if time is None:
                        self._answer(master, link, reply)
                        if master.link is not link:
                            break
                        plain = heard < master.sound_until and not link.expired
                        continue
                    verdict = asked.tally.grant(master.index, time, fences)
                    if verdict is not PENDING:
                        if not asked.decided:
                            asked.decide()
                        elif verdict is LOST:
                            self._undo_late(master, asked)
                    owed.popleft()  # last, as in `_answer`
                    if not plain and link.expired:
                        link.expired -= 1
                    link.ran = ran
                    link.heard = heard
                    link.took = heard - asked.sent
                    if not parser.has_data():
                        break
            except (hiredis.ProtocolError, ProtocolDesync, ValueError, struct.error) as error:
                logger.error(
                    "redlock master %s: %s",
                    master.address.name,
                    error,
                    extra={"master": master.address.name},
                )
                self.lose(master, broken(error))
            if master.late and not owed:
                self.lateness.in_time(master)

    def _answer(self, master: Master, link: Link, reply: Any) -> None:
        reply = as_array(reply)
        plain = type(reply) is list  # as nearly every reply is
        if not plain and isinstance(reply, hiredis.PushNotification):
            self._handle_push(master, link, reply)
            return
        if not link.owed:
            raise ProtocolDesync("a reply without a command")
        # Removed only once its reply has proved to be valid and is handled: otherwise the waiting
        # caller would get no verdict if the link is lost, or an interrupt strikes meanwhile.
        owed = link.owed[0]
        exchange, command = owed.exchange, owed.command
        if not plain and isinstance(reply, hiredis.ReplyError):
            self._handle_error(master, owed, first_word(reply))
            self._pop_owed(link)
            return
        if owed.loads or owed.subscribes:
            if owed.subscribes or not isinstance(reply, bytes):
                raise ProtocolDesync("a reply of another round")
            self._pop_owed(link)
            return
        if owed.inspects:
            if not isinstance(reply, bytes) or b"run_id:" not in reply:
                raise ProtocolDesync("a reply of another round")
            self._inspected(master, read_info(reply))
            self._pop_owed(link)
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
        read = clock()
        if master.failures:
            master.failures = 0
        if master.refused_releases and isinstance(command, Release):
            master.refused_releases.pop(command.token, None)
        if command is None:
            self._checked(master, trust)
            self._pop_owed(link)
            return
        if reply[2] != 0:  # the script has read the master's clock
            time = reply[2] / 1_000_000
            self.steps.note(master, time - read, time - owed.sent)
        if reply[1] == NOT_READY:
            self._check(master, master.check_mode)
        if exchange is not None:
            # After the reply that revealed a clock step come replies of rounds that were sent
            # before.
            doubt = master.doubt(read) if command.trusted else ""
            exchange.cast(master.index, failed(doubt) if doubt else vote)
            if vote.ballot is Ballot.GRANTED:
                self._undo_late(master, owed)
        self._pop_owed(link)

    def _handle_push(self, master: Master, link: Link, push: list[Any]) -> None:
        """Handle a push: the answer to SUBSCRIBE, a call for a waiter, or another to ignore."""
        kind = push[0] if push else None
        if kind == b"subscribe":
            if not link.owed or not link.owed[0].subscribes:
                raise ProtocolDesync("a subscription without a SUBSCRIBE")
            self.waiters.listen(master.index)
            self._pop_owed(link)
        elif kind == b"message" and len(push) == 3:
            self.waiters.call(push[2], master.index)

    def _pop_owed(self, link: Link) -> None:
        """Remove the oldest owed reply, which has come and is handled."""
        owed = link.owed.popleft()
        if link.expired:
            link.expired -= 1
        link.ran = self.lateness.running.passed
        link.heard = clock()
        link.took = link.heard - owed.sent

    def _handle_error(self, master: Master, owed: Owed, word: str) -> None:
        """Handle an error reply."""
        if owed.loads:
            return
        if owed.subscribes:
            self._log_polling(master, f"answered {word} to SUBSCRIBE")
            return
        if word == "NOSCRIPT" and self._retry(master, owed):
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

    def _retry(self, master: Master, owed: Owed) -> bool:
        """Answer NOSCRIPT by EVAL, unless the round is over: then its undo is already sent."""
        command = owed.command
        if isinstance(command, Acquire):
            # If its undo had to be sent again by EVAL, it would arrive after the next acquire.
            self._load(master, "release")
        if command is None:
            asked = join_arguments(
                self.deployment, master.run_id, master.check_mode, 0, self.membership, text=True
            )
            data = pack("EVAL", *asked)
        elif isinstance(command, Release) or owed.undecided is not None:
            data = pack_command(command, owed.number, text=True)
        else:
            # Otherwise a master that is always the last to answer would never learn the script.
            self._load(master, command.name)
            return False
        self._write(master, Owed(owed.exchange, command, clock()), data)
        return True

    def _load(self, master: Master, name: str) -> None:
        data = pack("SCRIPT", "LOAD", script(name)[0])
        self._write(master, Owed(None, None, clock(), loads=True), data)

    def _checked(self, master: Master, trust: Trust) -> None:
        master.checking = False
        master.check_mode = "join"
        self._trusted(master, trust)
        self.steps.checked(master)
        self._changed()

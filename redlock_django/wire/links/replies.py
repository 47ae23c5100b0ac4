"""The replies: each is matched to the command that it answers, and counted.

A plain reply, as nearly every reply is, is a short string that grants or refuses what is owed. It
is not parsed. All other replies (long ones, other statuses, errors, pushes, checks) are parsed and
handled one by one.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import hiredis

from redlock_django.engine.membership import Membership
from redlock_django.engine.protocol.commands import Acquire, Release, Reply, Take, decode, script
from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.engine.protocol.statuses import Status
from redlock_django.engine.protocol.votes import Ballot, failed
from redlock_django.engine.quorum import LOST, PENDING
from redlock_django.wire.links.clock_steps import StepWatch
from redlock_django.wire.links.late_masters import LateWatch
from redlock_django.wire.links.link import Kind, Link, Owed, ProtocolDesync, broken
from redlock_django.wire.links.link_changes import LinkChanges
from redlock_django.wire.links.master import Master
from redlock_django.wire.links.resp import (
    PLAIN,
    START,
    is_cut,
    pack,
    pack_command,
)
from redlock_django.wire.links.sender import Sender
from redlock_django.wire.links.waiters import Waiters
from redlock_django.wire.servers.error_replies import code_of, explain
from redlock_django.wire.servers.info import read_info
from redlock_django.wire.servers.trust import Unfit, read_trust

logger = logging.getLogger("redlock_django")

_GRANTED = Ballot.GRANTED  # a member of an enum takes long to look up


@dataclass(eq=False)
class Replies:
    """Count what masters have sent."""

    _deployment: Deployment
    _membership: Membership
    _sender: Sender
    _changes: LinkChanges
    _lateness: LateWatch
    _steps: StepWatch
    _waiters: Waiters
    _clock: Callable[[], float]

    def feed(self, master: Master, link: Link, heard: float) -> None:
        """Count the replies in what a link has received until `heard`.

        From the first reply on that is not plain, all are parsed.
        """
        try:
            self._count_plain(master, link, heard)
            if link.received or link.parsing:
                self._parse(master, link)
        except (ProtocolDesync, hiredis.ProtocolError) as error:
            self._drop(master, error)
        except (ValueError, LookupError, struct.error):
            self._drop(master, ProtocolDesync("a reply of another shape"))
        if master.late and not link.owed:
            self._lateness.in_time(master)
            self._changes.note(master)

    def _count_plain(self, master: Master, link: Link, heard: float) -> None:
        """Count replies until one is not plain, or is cut."""
        data, owed, ran = link.received, link.owed, self._lateness.running.passed
        while data and owed and not link.parsing:
            oldest = owed[0]
            exchange, command = oldest.exchange, oldest.command
            if exchange is None or command is None:
                break
            # A master that was hung sends hundreds of replies to rounds that are decided, whose
            # votes need no trust in it.
            if not master.usable and not (exchange.decided and link.expired):
                break
            plain = PLAIN.get(bytes(data[:START]))
            if plain is None or len(data) < plain.size:
                break
            number, status, time, rest = plain.unpack_from(data)
            if number != oldest.number or status < 0:
                break
            # A release that did not read the clock answers 0.
            if time and not self._believes(master, time, oldest.sent, heard):
                break
            vote = command.vote(status, time, rest)
            verdict = exchange.tally.cast(master.index, vote)
            if verdict is not PENDING:
                if verdict is LOST and exchange.decided and vote.ballot is _GRANTED:
                    self._sender.undo_late(master, oldest)
                if not exchange.notified:
                    exchange.decide()
            # Last, as in `_answer`. No signal is handled in between: nothing is called.
            if link.expired:
                link.expired -= 1
            del data[: plain.size]
            owed.popleft()
            link.ran, link.heard, link.took = ran, heard, heard - oldest.sent
            if master.failures:
                master.failures = 0

    def _drop(self, master: Master, error: Exception) -> None:
        """Drop the link of a master whose replies cannot be matched to commands."""
        logger.error(
            "redlock master %s: %s",
            master.address.name,
            error,
            extra={"master": master.address.name},
        )
        self._changes.lose(master, broken(error))

    def _believes(self, master: Master, time: int, sent: float, heard: float) -> bool:
        """Return whether a reply shows no step of a clock; note the clock that it shows."""
        shown, (least, most, until) = time / 1e6, master.steady
        if heard < until and heard >= sent and sent + least <= shown <= heard + most:
            return True
        return self._steps.note(master, shown - heard, shown - sent)

    # All other replies.

    def _parse(self, master: Master, link: Link) -> None:
        """Parse what was received, and handle each reply in it."""
        if not link.parsing and is_cut(link.received):
            return  # it may be plain once the rest has come
        link.parsing = True
        [_] = map(link.parser.feed, (bytes(link.received),))  # in one step, as in `Link.send`
        del link.received[:]
        self._answer_all(master, link)

    def _answer_all(self, master: Master, link: Link) -> None:
        """Handle each reply that the parser has."""
        parser = link.parser
        while True:
            if link.reply is False:  # otherwise an interrupt has left it
                [link.reply] = map(parser.gets, (True,))  # in one step, as in `Link.send`
            if link.reply is False:
                break
            self._answer(master, link, link.reply)
            if master.link is not link:
                break
            if not parser.has_data():
                link.parsing = False
                break

    def _answer(self, master: Master, link: Link, reply: Any) -> None:
        """Handle a reply that is not counted plainly."""
        if isinstance(reply, hiredis.PushNotification):
            self._handle_push(master, link, reply)
            return
        if not link.owed:
            raise ProtocolDesync("a reply without a command")
        # Removed, with its reply, only once that has proved to be valid and is handled: otherwise
        # the waiting caller would get no verdict if the link is lost. After an interrupt, nearly
        # every reply is handled again.
        owed = link.owed[0]
        if isinstance(reply, hiredis.ReplyError):
            self._handle_error(master, owed, str(reply))
        elif owed.kind is Kind.COMMAND:
            self._handle_vote(master, owed, _of_round(owed.number, reply))
        elif owed.kind is Kind.CHECK:
            link.reply = False  # it settles a check once: after an interrupt the link is dropped
            self._handle_check(master, owed, _of_round(0, reply))
        elif not isinstance(reply, bytes) or owed.kind is Kind.SUBSCRIBE:
            raise ProtocolDesync("a reply of another round")
        elif owed.kind is Kind.INFO:
            if b"run_id:" not in reply:
                raise ProtocolDesync("a reply of another round")
            self._changes.inspected(master, read_info(reply))
        self._pop_owed(link)

    def _handle_vote(self, master: Master, owed: Owed, reply: Reply) -> None:
        """Count the vote of a command's reply."""
        exchange, command = owed.exchange, owed.command
        assert command is not None
        vote = command.vote(reply.status, reply.time, reply.rest)
        read = self._clock()
        if master.failures:
            master.failures = 0
        if master.refused_releases and isinstance(command, Release):
            master.refused_releases.pop(command.token, None)
        if reply.time != 0:  # the script has read the master's clock
            time = reply.time / 1_000_000
            self._steps.note(master, time - read, time - owed.sent)
        if reply.status == Status.NOT_READY:
            self._sender.check(master, master.check_mode)
            if self._deployment.failover and master.link is not None:
                master.inspect_at = 0.0  # it may be another server: ask for INFO
        if exchange is not None:
            # After the reply that revealed a clock step come replies of rounds that were sent
            # before.
            doubt = master.doubt(read) if command.trusted else ""
            exchange.cast(master.index, failed(doubt) if doubt else vote)
            if vote.ballot is Ballot.GRANTED and exchange.tally.verdict is LOST:
                self._sender.undo_late(master, owed)

    def _handle_check(self, master: Master, owed: Owed, reply: Reply) -> None:
        """Note what a master's marker says of its trust."""
        name, run_id = master.address.name, master.run_id
        try:
            trust = read_trust(self._membership, name, run_id, reply, owed.sent, self._clock())
        except Unfit as error:
            self._changes.lose(master, str(error))
            return
        if master.failures:
            master.failures = 0
        settled = owed.mode == master.check_mode
        if settled:  # otherwise a mark was asked for since then, and is still owed
            master.checking = False
            master.check_mode = "join"
        self._changes.trust(master, trust)
        if settled:
            self._steps.checked(master)
        self._changes.note(master)

    def _handle_push(self, master: Master, link: Link, push: list[Any]) -> None:
        """Handle a push: the answer to SUBSCRIBE, a call for a waiter, or another to ignore."""
        kind = push[0] if push else None
        if kind == b"subscribe":
            if not link.owed or link.owed[0].kind is not Kind.SUBSCRIBE:
                raise ProtocolDesync("a subscription without a SUBSCRIBE")
            self._waiters.listen(master.index)
            self._pop_owed(link)
            return
        if kind == b"message" and len(push) == 3:
            self._waiters.call(push[2], master.index)
        link.reply = False  # last: after an interrupt, the call is passed on again

    def _pop_owed(self, link: Link) -> None:
        """Remove the oldest owed reply, which has come and is handled."""
        # No signal is handled before the end of `popleft`, because nothing is called until then.
        link.reply = False
        if link.expired:
            link.expired -= 1
        owed = link.owed.popleft()
        link.ran = self._lateness.running.passed
        link.heard = self._clock()
        link.took = link.heard - owed.sent

    # Errors.

    def _handle_error(self, master: Master, owed: Owed, reply: str) -> None:
        """Handle an error reply."""
        command, code = owed.command, code_of(reply)
        if owed.kind is Kind.LOAD:
            return
        if owed.kind is Kind.SUBSCRIBE:
            self._changes.log_polling(master, explain(reply))
            return
        if code == "NOSCRIPT" and self._retry(master, owed):
            return
        if owed.exchange is not None:
            owed.exchange.cast(master.index, failed(explain(reply)))
        # A check that failed must be made again, or the master would be suspected for ever.
        if command is None or code in ("READONLY", "NOAUTH", "LOADING", "MASTERDOWN", "BUSY"):
            # The next connection finds the reason. A release is kept until then.
            self._changes.lose(master, explain(reply))
        elif isinstance(command, Release):  # MISCONF, NOREPLICAS, OOM: for writes alone
            master.refuse_release(command, self._clock() + self._deployment.max_ttl)

    def _retry(self, master: Master, owed: Owed) -> bool:
        """Answer NOSCRIPT by EVAL, unless the round is over: then its undo is already sent."""
        command = owed.command
        if isinstance(command, Acquire):
            # If its undo had to be sent again by EVAL, it would arrive after the next acquire.
            self._load(master, "release")
        if isinstance(command, Take):
            self._load(master, "restore")
        if command is None:
            data = pack(*self._sender.join(master, owed.mode).call(text=True))
        elif isinstance(command, Release) or owed.undecided is not None:
            data = pack_command(command, owed.number, text=True)
        else:
            # Otherwise a master that is always the last to answer would never learn the script.
            self._load(master, command.name)
            return False
        again = Owed(owed.kind, self._clock(), owed.exchange, command, mode=owed.mode)
        self._sender.write(master, again, data)
        return True

    def _load(self, master: Master, name: str) -> None:
        data = pack("SCRIPT", "LOAD", script(name, self._deployment)[0])
        self._sender.write(master, Owed(Kind.LOAD, self._clock()), data)


def _of_round(number: int, reply: object) -> Reply:
    """Return the reply of a script that answers that round. Raises ProtocolDesync, ValueError."""
    decoded = decode(reply)
    if decoded.number != number:
        raise ProtocolDesync("a reply of another round")
    return decoded

"""Receiving: each reply is matched to the command that it answers, and counted."""

from __future__ import annotations

import logging
import struct
from collections.abc import Iterable
from typing import Any

import hiredis

from redlock_django.engine.commands import unpack_grant
from redlock_django.engine.quorum import LOST, PENDING
from redlock_django.engine.statuses import GRANTED
from redlock_django.wire.answers import Answers
from redlock_django.wire.clock import clock
from redlock_django.wire.link import BACKLOG, CHUNK, WOULD_BLOCK, Link, ProtocolDesync, broken
from redlock_django.wire.master import Master
from redlock_django.wire.plain_grants import GRANT_SIZE, parsed_grant, read_grant

logger = logging.getLogger("redlock_django")

NO_FENCES: tuple[int, ...] = ()


class Receiver(Answers):
    """Read the replies of the masters."""

    def read(self, *masters: Master) -> None:
        """Read these masters; see `read_all`."""
        self.read_all(masters)

    def read_all(self, masters: Iterable[Master]) -> None:
        """Read what masters have sent, without blocking, and count it."""
        heard, ran = 0.0, self.lateness.running.passed
        for master in masters:
            link = master.link
            if link is None:
                continue
            receive = link.recv  # CPython looks methods up faster than attributes
            try:
                data = receive(BACKLOG if link.expired else CHUNK)
            except WOULD_BLOCK:
                if link.parsing:  # an interrupt may have left replies there
                    self._count(master, link, b"", clock(), ran)
                continue
            except OSError as error:
                self.lose(master, broken(error), ended=True)
                continue
            if not data:
                self.lose(master, "closed the connection", ended=True)
                continue
            now = clock()
            if now < heard:
                self.steps.saw(heard)  # before our clock went back
            heard = now
            self._count(master, link, data, heard, ran)
        self.steps.saw(heard)

    def _count(self, master: Master, link: Link, data: bytes, heard: float, ran: float) -> None:
        """Count the replies in what was received from a master until `heard`.

        `ran` is for how long the driver had been running then.

        A reply that plainly grants what is owed, as nearly every reply does, is counted here, and
        not even parsed if nothing else was received. `_answer` handles all others. A master that
        was hung sends hundreds of grants to rounds that are decided, whose votes need no trust in
        it.
        """
        owed, parser = link.owed, link.parser
        plain = heard < master.sound_until and not link.expired
        time = None  # the master's clock, if a reply plainly grants; 0 without a clock
        try:
            if plain and owed and not link.parsing:
                asked: Any = owed[0]  # an Exchange, if it has a reply that grants
                if data == asked.grant:
                    if asked.granted == 3:  # a plain release, and not a part of a grant
                        time, fences = 0, NO_FENCES
                elif len(data) == GRANT_SIZE:
                    beginning, its_time, fence = read_grant(data)
                    if beginning == asked.grant:
                        time, fences = its_time, (fence,)
            if time is None:
                link.parsing = True
                parser.feed(data)
            while True:  # without a condition: see docs/explanation/interrupts.md
                if link.parsing:
                    reply, time = parser.gets(), None
                    if reply is False:
                        break
                    if owed and (plain or (link.expired and not owed[0].undecided)):
                        asked = owed[0]
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
                        if not link.parsing:
                            reply = parsed_grant(data)
                if time is None:
                    self._answer(master, link, reply)
                    if master.link is not link:
                        break
                    plain = heard < master.sound_until and not link.expired
                else:
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
                if not link.parsing:
                    break
                if not parser.has_data():
                    link.parsing = False
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

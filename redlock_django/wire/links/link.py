"""One connection as a pipeline: the bytes still to be sent, and the replies still owed.

A link is a FIFO. Every command written is owed one reply. A reply that no round waits for any more
is read and dropped, never mistaken for the answer to another command.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any

import hiredis

from redlock_django.engine.protocol.commands import Acquire, Command, Release
from redlock_django.engine.protocol.votes import Vote
from redlock_django.engine.quorum import PENDING
from redlock_django.engine.steps import Round
from redlock_django.engine.undo import leaves_late_grants, undo_of_late_grant


class ProtocolDesync(Exception):
    """A reply does not belong to the command that it should answer: the link cannot be used."""


class Kind(Enum):
    """The kind of a reply that a master owes: what it answers."""

    COMMAND = "a command of the engine: of a round, or a release that belongs to none"
    CHECK = "a check of its trust (join.lua)"
    LOAD = "a script that is only loaded"
    INFO = "INFO"
    SUBSCRIBE = "SUBSCRIBE, which a push answers"


class Owed:
    """A command that was sent to one master or to several at once, which owe a reply to it.

    `number` is that of the round, 0 if there is none. `command` is set for `Kind.COMMAND` alone,
    `mode` ("join" or "distrust") for `Kind.CHECK`.
    `sent` is when the command was written, and `ran` how long the driver had been running then.
    """

    __slots__ = ("command", "exchange", "kind", "mode", "number", "ran", "sent")

    def __init__(
        self,
        kind: Kind,
        sent: float,
        exchange: Exchange | None = None,
        command: Command | None = None,
        ran: float = 0.0,
        *,
        mode: str = "",
    ) -> None:
        self.kind = kind
        self.mode = mode
        self.sent = sent
        self.exchange = exchange  # the round that the reply belongs to, if there is one
        self.command = command
        self.ran = ran
        self.number = 0 if exchange is None else exchange.number

    @property
    def undecided(self) -> Exchange | None:
        """The round that the reply belongs to, if it is not decided yet."""
        exchange = self.exchange
        return None if exchange is None or exchange.decided else exchange

    @property
    def late_undo(self) -> Release | None:
        """The release that must follow a grant that comes so late; None if none is needed."""
        if self.exchange is None or not leaves_late_grants(self.command, self.exchange.tally):
            return None
        assert isinstance(self.command, Acquire)
        return undo_of_late_grant(self.command)


class Exchange:
    """One round that was sent, or is being sent."""

    __slots__ = ("asked", "decided", "notified", "number", "tally", "wake")
    until = math.inf  # it waits for its verdict, however long that takes

    def __init__(self, asked: Round, wake: Callable[[], object]) -> None:
        self.asked = asked
        self.tally = asked.tally
        self.number = 0  # until it begins
        self.wake = wake
        self.decided = self.notified = False

    def cast(self, master: int, vote: Vote) -> None:
        """Count a vote, and wake the waiting caller once there is a verdict."""
        verdict = self.tally.cast(master, vote)
        if verdict is not PENDING and not self.notified:
            self.decide()

    def decide(self) -> None:
        """Note the verdict, and wake the waiting caller."""
        # First, because a thread about to sleep sets `wake` first and looks at this then. A reply
        # may be owed for long; the callback that wakes the caller (a loop's future) need not live
        # as long.
        self.decided = True
        self.wake()
        # Last: after an interrupt, the reply is counted again, or `Combiner.wake_decided` calls it.
        self.notified, self.wake = True, wake_none

    def abandon(self) -> None:
        """Note that callers do not wait any more: do not send a retry of this round."""
        self.decided = self.notified = True
        self.wake = wake_none


class Link:
    """One live connection to a master, without its socket: bytes to send, and replies still owed.

    `now` is when it was made, `took` how long the last reply took until then, in seconds. With
    `pushes` it uses RESP3: a push cannot be mistaken for a reply. `connection` is what its driver
    keeps for it. A trusted command ends with `tail`, or with `early_tail` if it counts before its
    master is ready.
    """

    __slots__ = (
        "connection", "early_tail", "expired", "heard", "out", "owed", "parser", "parsing",
        "pushes", "ran", "received", "reply", "tail", "took",
    )  # fmt: skip

    def __init__(
        self, now: float, *, took: float = 0.0, pushes: bool = False, connection: Any = None
    ) -> None:
        self.connection = connection
        self.pushes = pushes
        self.received = bytearray()  # what is neither handled nor given to the parser yet
        self.parser = hiredis.Reader()
        self.parsing = False  # the parser, or `reply`, has what is not handled yet
        self.reply: Any = False  # of the parser; False, as it returns, if there is none
        self.owed: deque[Owed] = deque()
        self.expired = 0  # how many of these replies are so old that they cost their votes
        self.out = bytearray()
        self.tail = self.early_tail = b""
        self.heard = now  # when the last reply came
        self.took = took
        self.ran = 0.0  # how long the driver had been running when the last reply came

    def write(self, owed: Owed, data: bytes) -> None:
        """Queue a command, whose reply is owed from now on."""
        # No signal is handled between these two lines, because the first one calls nothing.
        self.out += data
        self.owed.append(owed)


def broken(error: Exception) -> str:
    """Return why a link broke, for operators."""
    if isinstance(error, EOFError):
        return "closed the connection"
    if isinstance(error, OSError):
        return f"the connection broke: {error.strerror or type(error).__name__}"
    return f"the replies are out of step: {error}"


def wake_none() -> None:
    """Do nothing: no caller waits for the answers of this round."""

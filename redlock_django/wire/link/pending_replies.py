"""A round on its way: its exchange, and the replies that masters owe to it."""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import Enum

from redlock_django.engine.attempt import leaves_late_grants, undo_of
from redlock_django.engine.protocol.commands import Acquire, Command, Release
from redlock_django.engine.protocol.votes import Vote
from redlock_django.engine.quorum import PENDING
from redlock_django.engine.steps import Round


class Kind(Enum):
    """The kind of a reply that a master owes: what it answers."""

    COMMAND = "a command of the engine: of a round, or a release that belongs to none"
    CHECK = "a check of its trust (join.lua)"
    LOAD = "a script that is only loaded"
    INFO = "INFO"
    SUBSCRIBE = "SUBSCRIBE, which a push answers"


class Owed:
    """A reply that a master owes, or several masters to which the same was sent together.

    `number` is that of the round, 0 if there is none. `command` is set for `Kind.COMMAND` alone,
    `mode` ("join" or "distrust") for `Kind.CHECK`.
    `sent` is when the command was written, and `ran` how long the driver had been running then.
    `grant` and `granted` are the prefix and the array length of the reply that grants (see
    `grant_bytes`). They are set only where several masters were sent the same command together.
    """

    __slots__ = ("_exchange", "command", "kind", "mode", "number", "ran", "sent")
    granted = 0
    grant: bytes | None = None

    def __init__(
        self,
        kind: Kind,
        sent: float,
        exchange: Exchange | None = None,
        command: Command | None = None,
        *,
        mode: str = "",
    ) -> None:
        self.kind = kind
        self.mode = mode
        self.sent = sent
        self._exchange = exchange
        self.command = command
        self.number: int = 0 if exchange is None else exchange.number
        self.ran = 0.0

    @property
    def exchange(self) -> Exchange | None:
        """The round that the reply belongs to, if there is one."""
        return self._exchange

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
        return undo_of(self.command, leave=True)


class Exchange(Owed):
    """One round that was sent, or is being sent.

    It is also the reply that every master owes to it, if all of them were sent the same command
    together.
    """

    __slots__ = ("asked", "decided", "grant", "granted", "tally", "wake")
    until = math.inf  # it waits for its verdict, however long that takes
    kind = Kind.COMMAND
    mode = ""

    def __init__(self, asked: Round, number: int, wake: Callable[[], object]) -> None:
        self.asked = asked
        self.tally = asked.tally
        self.number = number
        self.wake = wake
        self.granted = 0
        self.decided = False

    @property
    def exchange(self) -> Exchange:
        """This round."""
        return self

    def cast(self, master: int, vote: Vote) -> None:
        """Count a vote, and wake the waiting caller once there is a verdict."""
        if self.tally.cast(master, vote) is not PENDING and not self.decided:
            self.decide()

    def decide(self) -> None:
        """Note the verdict, and wake the waiting caller."""
        # First, because a thread about to sleep sets `wake` first and looks at this then. A reply
        # may be owed for long; the callback that wakes the caller (a loop's future) need not live
        # as long.
        self.decided = True
        wake, self.wake = self.wake, wake_none
        wake()

    def abandon(self) -> None:
        """Note that callers do not wait any more: do not send a retry of this round."""
        self.decided, self.wake = True, wake_none


class Batch:
    """Several rounds that one thread waits for together: `decided` once all of them are.

    `wake` is called then. Each round calls `count` when it is decided.
    """

    __slots__ = ("pending", "wake")
    until = math.inf

    def __init__(self, rounds: int) -> None:
        self.pending = rounds
        self.wake: Callable[[], object] = wake_none

    @property
    def decided(self) -> bool:
        """True once all rounds are decided."""
        return self.pending <= 0

    def count(self) -> None:
        """Note that one more round is decided. The driver admits one thread at a time."""
        self.pending -= 1
        if self.decided:
            self.wake()


def wake_none() -> None:
    """Do nothing: no caller waits for the answers of this round."""

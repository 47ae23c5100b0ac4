"""One connection as a pipeline: what is still to be sent, and what is still owed.

A link is a FIFO. Every command written is owed one reply; a reply nobody waits for any more
is read and dropped, never taken for an answer to something else.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections import deque
from collections.abc import Callable
from contextlib import suppress

import hiredis

from redlock_django.engine.commands import Command, script
from redlock_django.engine.quorum import Verdict, Vote
from redlock_django.engine.rounds import Round
from redlock_django.wire.clock import clock

CHUNK = 65536
WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class ProtocolDesync(Exception):
    """A reply does not belong to the command it should answer: the link is worthless."""


class Exchange:
    """One round on its way."""

    __slots__ = ("commands", "decided", "number", "tally", "wake")

    def __init__(self, asked: Round, number: int, wake: Callable[[], object]) -> None:
        self.commands = asked.commands
        self.tally = asked.tally
        self.number = number
        self.wake = wake
        self.decided = False

    def cast(self, master: int, vote: Vote) -> None:
        """Count a vote, and wake whoever waits once the verdict is there."""
        if self.tally.cast(master, vote) is not Verdict.PENDING and not self.decided:
            # A reply may be owed for long; what woke its waiter (a loop's future) need not live
            # as long.
            wake = self.wake
            self.abandon()
            wake()

    def abandon(self) -> None:
        """Nobody waits any more: no retry of this round may be sent from here on."""
        self.decided, self.wake = True, nobody


class Owed:
    """A reply that a master owes.

    A check of its trust has no command; neither has a script that is only loaded (`loads`), nor
    the wish to hear a channel (`hears`), whose answer is a push.
    """

    __slots__ = ("command", "exchange", "hears", "loads", "sent")

    def __init__(
        self,
        exchange: Exchange | None,
        command: Command | None,
        sent: float,
        *,
        loads: bool = False,
        hears: bool = False,
    ) -> None:
        self.exchange = exchange
        self.command = command
        self.sent = sent
        self.loads = loads
        self.hears = hears


class Link:
    """One live connection: what is still to be sent, and what is still owed."""

    __slots__ = (
        "blocked",
        "out",
        "owed",
        "parser",
        "pushes",
        "sending",
        "sent",
        "since",
        "socket",
        "tail",
        "waited",
    )

    def __init__(self, connected: socket.socket, *, pushes: bool = False) -> None:
        self.socket = connected
        self.pushes = pushes  # it speaks RESP3: a push cannot be mistaken for a reply
        self.parser = hiredis.Reader()
        self.owed: deque[Owed] = deque()
        self.out = bytearray()
        self.tail = b""
        self.waited = 0.0  # seconds somebody has polled in vain for the oldest reply
        self.since = 0.0  # when that silence began
        self.sending = False
        self.sent: list[int] = []
        self.blocked = False

    def send(self) -> None:
        """Send as much as the socket takes. Raises OSError, or ProtocolDesync."""
        while self.out:
            if self.sending and not self.sent:
                # An interrupt struck within the send: nobody knows which bytes the master has.
                raise ProtocolDesync("a send was interrupted")
            try:
                if not self.sending:
                    sending = map(self.socket.send, (self.out,))
                    self.sending = True
                    # Sent and noted down in one call of C, which lets no signal in between. A
                    # process that ends by Ctrl-C has no time to come back on another link.
                    self.sent.extend(sending)
            except WOULD_BLOCK:
                self.sending = False
                return
            # Statements that call nothing: no signal gets in between these either.
            del self.out[: self.sent[0]]
            del self.sent[:]
            self.sending = False

    def receive(self) -> None:
        """Feed the parser all that has arrived. Raises OSError, or EOFError at the end."""
        while True:
            try:
                data = self.socket.recv(CHUNK)
            except WOULD_BLOCK:
                return
            if not data:
                raise EOFError
            self.parser.feed(data)
            if len(data) < CHUNK and not isinstance(self.socket, ssl.SSLSocket):
                return

    def drain(self, until: float) -> None:
        """Read and drop what comes, until the master has closed or it is `until`."""
        with suppress(OSError):
            self._drain(until)

    def _drain(self, until: float) -> None:
        while (left := until - clock()) > 0:
            self.socket.settimeout(left)
            if not self.socket.recv(CHUNK):
                return

    def close(self, *, cut: bool) -> None:
        """Close; with `cut`, what the kernel has not delivered yet is never delivered."""
        if cut:
            with suppress(OSError):
                at_once = struct.pack("ii", 1, 0)
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
        with suppress(OSError):
            self.socket.close()


def nobody() -> None:
    """Wakes nobody: for a round that is put on its way and left alone."""


def spell(*parts: str | bytes | int) -> bytes:
    """A whole command as RESP."""
    return b"*%d\r\n%s" % (len(parts), bulks(*parts))


def bulks(*parts: str | bytes | int) -> bytes:
    """Parts of a command as RESP."""
    # Not hiredis.pack_command: interrupted by a signal, it brings the whole process down.
    packed = []
    for part in parts:
        raw = part if isinstance(part, bytes) else str(part).encode()
        packed.append(b"$%d\r\n%s\r\n" % (len(raw), raw))
    return b"".join(packed)


def spell_command(command: Command, number: int, *, text: bool = False) -> bytes:
    """A command of the engine as RESP, short of the marker that a trusted one ends with.

    With `text` the script itself is sent (EVAL), else its hash (EVALSHA).
    """
    how, code = ("EVAL" if text else "EVALSHA"), script(command.name)[0 if text else 1]
    keys = command.keys()
    parts: tuple[str | int, ...] = (how, code, len(keys), *keys, number, *command.arguments())
    return b"*%d\r\n%s" % (len(parts) + (2 if command.trusted else 0), bulks(*parts))

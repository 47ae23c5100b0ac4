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
from typing import Any

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
        "recv",
        "send_some",
        "sending",
        "sent",
        "since",
        "socket",
        "tail",
        "waited",
    )

    def __init__(self, connected: socket.socket, *, pushes: bool = False) -> None:
        self.socket = connected
        self.recv: Callable[[int], bytes] = connected.recv
        self.send_some: Callable[[bytearray], int] = connected.send
        if isinstance(connected, ssl.SSLSocket):
            self.recv, self.send_some = _asked_twice(self.recv), _asked_twice(self.send_some)
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
                    sending = map(self.send_some, (self.out,))
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
                data = self.recv(CHUNK)
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
            if not self.recv(CHUNK):
                return

    def close(self, *, cut: bool) -> None:
        """Close; with `cut`, what the kernel has not delivered yet is never delivered."""
        if cut:
            with suppress(OSError):
                at_once = struct.pack("ii", 1, 0)
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
        with suppress(OSError):
            self.socket.close()


def _asked_twice(operation: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """An operation of a TLS socket whose error is believed only when it comes again.

    OpenSSL keeps errors in a queue, one for all connections of a thread, and takes what lies
    there for an error of the operation it is asked about. Python does not empty it before an
    operation, nor after each error (python/cpython#148594). So where one master's connection
    is reset, those to all others seem to be; and so does one where the application had an
    error that has nothing to do with us.
    """

    def ask(argument: Any) -> Any:
        try:
            return operation(argument)
        except (*WOULD_BLOCK, TimeoutError):
            raise
        except OSError as error:
            _forget_errors()
            try:
                if answer := operation(argument):
                    return answer
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise
            except OSError:
                _forget_errors()  # nor shall others of this thread take it for theirs
            raise error from None

    return ask


def _forget_errors() -> None:
    """Empty OpenSSL's queue of errors of this thread, as every handshake does when it begins."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    begun = context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_side=True)
    with suppress(ssl.SSLWantReadError):
        begun.do_handshake()


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

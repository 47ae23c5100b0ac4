"""One connection as a pipeline: the bytes still to be sent, and the replies still owed.

A link is a FIFO. Every command written is owed one reply. A reply that no round waits for any more
is read and dropped, never mistaken for the answer to another command.
"""

from __future__ import annotations

import math
import socket
import ssl
import struct
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from types import BuiltinMethodType
from typing import Any

import hiredis

from redlock_django.engine.protocol.commands import Acquire, Command, Release
from redlock_django.engine.protocol.votes import Vote
from redlock_django.engine.quorum import PENDING
from redlock_django.engine.steps import Round
from redlock_django.engine.undo import leaves_late_grants, undo_of_late_grant
from redlock_django.wire.clock import clock
from redlock_django.wire.link.resp import plain_replies

CHUNK = 65536
BACKLOG = 2048
"""How many bytes of late replies are received at once: about forty replies.

A master that was hung sends hundreds of them together. The thread that reads them for all would not
get to its own round for tens of milliseconds.
"""
WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
NOT_BROKEN = (*WOULD_BLOCK, TimeoutError)


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
    `grant` and `refusal` are its plain replies: see `plain_replies`.
    """

    __slots__ = ("command", "exchange", "grant", "kind", "mode", "number", "ran", "refusal", "sent")
    grant: bytes | None

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
        self.number, self.grant, self.refusal = 0, None, b""
        if exchange is not None and command is not None:
            self.number = exchange.number
            if command.votes:
                self.grant, self.refusal = plain_replies(command, self.number)

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

    def __init__(self, asked: Round, number: int, wake: Callable[[], object]) -> None:
        self.asked = asked
        self.tally = asked.tally
        self.number = number
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
    """One live connection: the bytes still to be sent, and the replies still owed."""

    __slots__ = (
        "blocked",
        "expired",
        "heard",
        "out",
        "owed",
        "parser",
        "parsing",
        "pushes",
        "ran",
        "received",
        "recv",
        "reply",
        "send_some",
        "socket",
        "tail",
        "took",
    )

    def __init__(self, connected: socket.socket, *, pushes: bool = False) -> None:
        self.socket = connected
        self.recv: Callable[[int], bytes] = connected.recv
        self.send_some: Callable[[bytearray], int] = connected.send
        if isinstance(connected, ssl.SSLSocket):
            self.recv = _all_of(_asked_twice(self.recv))
            self.send_some = _asked_twice(self.send_some)
        if not isinstance(self.recv, BuiltinMethodType):
            self.recv = _in_order(self.recv, "receive")
        if not isinstance(self.send_some, BuiltinMethodType):
            self.send_some = _in_order(self.send_some, "send")
        self.pushes = pushes  # the link uses RESP3: a push cannot be mistaken for a reply
        self.received = bytearray()  # what is neither handled nor given to the parser yet
        self.parser = hiredis.Reader()
        self.parsing = False  # the parser, or `reply`, has what is not handled yet
        self.reply: Any = False  # of the parser; False, as it returns, if there is none
        self.owed: deque[Owed] = deque()
        self.expired = 0  # how many of these replies are so old that they cost their votes
        self.out = bytearray()
        self.tail = b""
        self.heard = clock()  # when the last reply came
        self.took = 0.0  # how long the last reply took, in seconds
        self.ran = 0.0  # how long the driver had been running when the last reply came
        self.blocked = False

    def write(self, owed: Owed, data: bytes) -> None:
        """Queue a command, whose reply is owed from now on; `send` sends it."""
        # No signal is handled between these two lines, because the first one calls nothing.
        self.out += data
        self.owed.append(owed)

    def send(self) -> bool:
        """Send bytes, and return whether some are left because the socket accepts no more now.

        Raises OSError, or ProtocolDesync.
        """
        out = self.out
        while out:
            try:
                # The bytes are sent and counted in one step of Python, during and after which no
                # signal is handled before the next line is done: see
                # docs/explanation/interrupts.md. A process that ends by Ctrl-C has no time to
                # connect again.
                [sent] = map(self.send_some, (out,))
            except WOULD_BLOCK:
                return True
            del out[:sent]
        return False

    def drain(self, until: float) -> None:
        """Read and drop bytes until the master has closed the connection or it is `until`."""
        with suppress(OSError):
            self._drain(until)

    def _drain(self, until: float) -> None:
        receive = _asked_twice(self.socket.recv)  # of TLS, `recv` would wait for more
        while (left := until - clock()) > 0:
            self.socket.settimeout(left)
            if not receive(CHUNK):
                return

    def close(self, *, cut: bool) -> None:
        """Close the link; with `cut`, bytes that the kernel has not delivered yet are dropped."""
        if cut:
            with suppress(OSError):
                at_once = struct.pack("ii", 1, 0)
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
        with suppress(OSError):
            self.socket.close()


def _in_order(operation: Callable[[Any], Any], name: str) -> Callable[[Any], Any]:
    """Wrap an operation that is Python code so that it fails once it was interrupted."""
    is_running = False

    def run_in_order(argument: Any) -> Any:
        nonlocal is_running
        if is_running:  # it is unknown which bytes the master, or the interrupted caller, has
            raise ProtocolDesync(f"a {name} was interrupted")
        is_running = True
        try:
            result = operation(argument)
        except OSError:
            is_running = False
            raise
        is_running = False
        return result

    return run_in_order


def _all_of(receive: Callable[[int], bytes]) -> Callable[[int], bytes]:
    """Wrap the recv of a TLS socket so that no bytes stay in a buffer that a poll does not see.

    An error or the end of the connection, after some bytes, shows again at the next call.
    """

    def receive_all(most: int) -> bytes:
        parts = [receive(most)]
        with suppress(OSError):
            while True:  # without a condition: see docs/explanation/interrupts.md
                if not parts[-1]:
                    break
                parts.append(receive(most))
        return b"".join(parts)

    return receive_all


def _asked_twice(operation: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Wrap an operation of a TLS socket so that it fails only if it fails twice.

    OpenSSL keeps errors in a queue, one for all connections of a thread, and takes an error in that
    queue for an error of the current operation. Python does not empty the queue before an
    operation, nor after each error (python/cpython#148594). So if the connection to one master is
    reset, those to all others seem to be reset; and so does a connection if the application had an
    unrelated error.
    """

    def ask(argument: Any) -> Any:
        try:
            return operation(argument)
        except NOT_BROKEN:
            raise
        except OSError as error:
            _forget_errors()
            try:
                if answer := operation(argument):
                    return answer
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise
            except OSError:
                _forget_errors()  # or other connections of this thread would fail with it
            raise error from None

    return ask


def _forget_errors() -> None:
    """Empty OpenSSL's queue of errors of this thread, as each handshake does when it begins."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    begun = context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_side=True)
    with suppress(ssl.SSLWantReadError):
        begun.do_handshake()


def broken(error: Exception) -> str:
    """Return why a link broke, for operators."""
    if isinstance(error, EOFError):
        return "closed the connection"
    if isinstance(error, OSError):
        return f"the connection broke: {error.strerror or type(error).__name__}"
    return f"the replies are out of step: {error}"


def wake_none() -> None:
    """Do nothing: no caller waits for the answers of this round."""

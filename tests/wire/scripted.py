"""A scripted master: it records every command, and replies as the test says."""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import hiredis

from redlock_django.engine.protocol.commands import COMMANDS, script
from redlock_django.engine.protocol.deployment import Deployment
from redlock_django.engine.protocol.statuses import Status
from redlock_django.wire.clock import clock
from redlock_django.wire.servers.trust import Joined, Trust
from tests.replies import packed

if TYPE_CHECKING:
    from collections.abc import Callable

NAMES = {  # of the scripts of all deployments in tests of links
    script(name, Deployment(names=(), max_ttl=max_ttl))[1].encode(): name
    for name in ("join", *(command.name for command in COMMANDS))
    for max_ttl in (10.0, 60.0)
}
MARKER = b"0123 456 scripted"
INFO = b"redis_version:7.2.0\r\nrun_id:%s\r\nrole:master\r\n"


@dataclass(frozen=True)
class Received:
    """One EVALSHA as the master receives it; `arguments` without the round's number.

    The key of a SUBSCRIBE is its channel.
    """

    name: str
    number: int
    keys: list[bytes]
    arguments: list[bytes]

    @property
    def resources(self) -> int:
        """Return how many resources the command is about."""
        return {"acquire": (len(self.keys) - 3) // 3, "heal": (len(self.keys) - 3) // 2}.get(
            self.name, 0
        )


def resp(value: object) -> bytes:
    """Encode a value as a master would send it."""
    if isinstance(value, int):
        return b":%d\r\n" % value
    if isinstance(value, bytes):
        return b"$%d\r\n%s\r\n" % (len(value), value)
    assert isinstance(value, list)
    return b"*%d\r\n%s" % (len(value), b"".join(resp(part) for part in value))


def push(*parts: bytes | int) -> bytes:
    """Encode a push message."""
    return b">" + resp(list(parts))[1:]


def honest(said: Received) -> bytes:
    """Return the reply of a master that grants everything; each fence is the round's number."""
    if said.name == "subscribe":
        return push(b"subscribe", said.keys[0], 1)
    now = time.time_ns() // 1000
    if said.name == "join":
        marker = b"%s %d %s" % (said.arguments[0], now, said.arguments[1])
        return resp(packed([said.number, Status.KNOWN, now, marker]))
    if said.name == "release" and len(said.arguments) == 1:
        now = 0
    return resp(packed([said.number, Status.GRANTED, now, *[said.number] * said.resources]))


class ScriptedMaster:
    """The master's end of a link. `answer` returns the bytes to send back, or None for no reply.

    It runs in a thread until the link is closed, which sets `ended`.
    """

    def __init__(
        self, answer: Callable[[Received], bytes | None] = honest, *, pushes: bool = True
    ) -> None:
        self.answer = answer
        self.pushes = pushes
        self.heard: list[Received] = []
        self.ended = threading.Event()
        self.slices = False
        self.run_id = ""
        self._commands = 0  # how many were read, without INFO and SUBSCRIBE
        self._replies = 0  # how many of them were answered
        self._infos: deque[int] = deque()
        """INFO that is not answered yet: after how many replies its turn comes."""
        self._sent = hiredis.Reader()
        self._turns = threading.RLock()
        self.ours, self._theirs = socket.socketpair()
        self._thread = threading.Thread(target=self._serve, name="scripted-master", daemon=True)
        self._thread.start()

    def joined(self, run_id: str = "0123") -> Joined:
        """Return what a dial thread would deliver for this master."""
        offset = time.time() - clock()
        self.run_id = run_id
        trust = Trust(MARKER, 0, clock(), "waits to be trusted", (offset - 0.1, offset + 0.1))
        return Joined(self._theirs, run_id, trust, (), clock(), self.pushes)

    def send(self, data: bytes) -> None:
        """Send at once, as a reply or unasked; and answer INFO if its turn has come."""
        with self._turns:
            self._write(data)
            self._replies += self._count_replies(data)
            self._answer_infos()

    def hang_up(self) -> None:
        """Close the master's end; the link's end stays open."""
        with suppress(OSError):
            self.ours.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self.ours.close()

    def close(self) -> None:
        """Close both ends."""
        self.hang_up()
        self._theirs.close()

    def _write(self, data: bytes) -> None:
        with suppress(OSError):
            for piece in [data[i : i + 1] for i in range(len(data))] if self.slices else [data]:
                self.ours.sendall(piece)

    def _count_replies(self, data: bytes) -> int:
        """Return how many replies end with these bytes; 0 where a test sends what is not RESP."""
        replies = 0
        with suppress(hiredis.HiredisError):
            self._sent.feed(data)
            while (reply := self._sent.gets()) is not False:
                replies += not isinstance(reply, hiredis.PushNotification)
        return replies

    def _answer_infos(self) -> None:
        """Answer each INFO whose earlier commands are answered, as a real master does."""
        while self._infos and self._infos[0] <= self._replies:
            self._infos.popleft()
            self._write(resp(INFO % self.run_id.encode()))

    def _serve(self) -> None:
        reader = hiredis.Reader()
        with suppress(OSError):
            while data := self.ours.recv(65536):
                reader.feed(data)
                while (command := reader.gets()) is not False:
                    if command == [b"INFO"]:  # before a command, on a link not used for long
                        with self._turns:
                            self._infos.append(self._commands)
                            self._answer_infos()
                        continue
                    said = _read(command)
                    self._commands += said.name != "subscribe"
                    self.heard.append(said)
                    if (answer := self.answer(said)) is not None:
                        self.send(answer)
        with suppress(OSError):
            self.ours.shutdown(socket.SHUT_RDWR)
        self.ended.set()


def _read(command: list[bytes]) -> Received:
    if command[0] == b"SUBSCRIBE":
        return Received("subscribe", 0, command[1:], [])
    verb, sha, keys = command[0], command[1], int(command[2])
    assert verb == b"EVALSHA"
    number = int(command[3 + keys])
    return Received(NAMES[sha], number, command[3 : 3 + keys], command[4 + keys :])

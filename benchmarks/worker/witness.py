"""Checks that the measured locks exclude.

A benchmark of a lock with two holders at once would be worthless, so every job checks while it
measures: an `Intruder` tries to acquire held locks, a `Turnstile` detects two holders.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

LOOK_EVERY = 256
"""The number of pairs between two checks, so that checks cost less than 1 %."""


class Intruder:
    """A minimal Redlock client: SET NX PX on every master, then a count.

    `looks` is how often it tried, `overlaps` how often a majority granted the lock.
    """

    def __init__(self, masters: Sequence[Any], contender: Any) -> None:
        self._masters, self._contender = masters, contender
        self._places = [tuple(place) for place in masters[: contender.masters_used]]
        self._sockets: dict[int, socket.socket] = {}
        self.looks = 0
        self.overlaps = 0
        self.down = 0
        """How many of the first masters hang or are dead: these it does not ask."""

    def another(self) -> Intruder:
        """Return another intruder with separate connections, for another thread."""
        other = Intruder(self._masters, self._contender)
        other.down = self.down
        return other

    def take(self, other: Intruder) -> None:
        """Add the counts of another intruder."""
        self.looks += other.looks
        self.overlaps += other.overlaps

    def __enter__(self) -> Intruder:  # noqa: PYI034 - Self needs Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        for connected in self._sockets.values():
            connected.close()

    def forget(self) -> None:
        """Count from zero again."""
        self.looks = self.overlaps = 0

    def look(self, name: str) -> None:
        """Try to acquire a held lock by its key.

        Locks that are not on masters are not looked at: refusals and hand-offs check those.
        """
        span, key = range(len(self._places)), name.encode()
        if not span:
            return
        self.looks += 1
        granted = []
        for place in span[self.down :]:
            said = self._ask(place, b"SET", key, b"intruder", b"NX", b"PX", b"2000")
            if said.startswith(b"+OK"):
                granted.append(place)
        for place in granted:
            self._ask(place, b"DEL", key)
        self.overlaps += len(granted) > len(span) // 2

    def _ask(self, place: int, *words: bytes) -> bytes:
        with suppress(OSError):
            if place not in self._sockets:
                made = socket.create_connection(self._places[place], 0.5)
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._sockets[place] = made
            connected = self._sockets[place]
            packed = b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
            connected.sendall(b"*%d\r\n%s" % (len(words), packed))
            if said := connected.recv(256):
                return said
        if place in self._sockets:
            self._sockets.pop(place).close()
        return b""


class Turnstile:
    """Detects two holders, across threads and processes, with a file that only one can create."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.overlaps = 0

    def __enter__(self) -> None:
        try:
            os.close(os.open(self._path, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            self.overlaps += 1

    def __exit__(self, *_: object) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self._path)

"""Raw blocking sockets with prepared bytes: N sends, then N reads, and nothing else.

No timeout, no error handling, no early return at a majority. Each thread has its own connections.
"""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Sequence
from typing import Any

from benchmarks.contenders import Contender, Place
from benchmarks.contenders.floor_commands import TRUST, pair, plain_pair


def connect(masters: Sequence[Any]) -> list[socket.socket]:
    """Return connections to all masters."""
    made = [socket.create_connection(tuple(place)) for place in masters]
    for connected in made:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def trust(masters: Sequence[Any]) -> None:
    """Store what the commands need on emptied masters."""
    for connected in connect(masters):
        with connected:
            for command in TRUST:
                connected.sendall(command)
                connected.recv(4096)


class SameBytes(Contender):
    """Sends the bytes of redlock_django to every master and reads the answers."""

    prefix = "redlock:lock:"
    packed = staticmethod(pair)
    # A release is granted by 24 bytes, an acquire by 32; a refusal has more.
    yes = (b"$24\r\n", b"$32\r\n")

    def __init__(self, place: Place) -> None:
        self._masters = place.masters
        self._mine = threading.local()
        trust(place.masters)

    def _ready(self, resource: str) -> Any:
        mine = self._mine
        if not hasattr(mine, "sockets"):
            mine.sockets, mine.packed = connect(self._masters), {}
            mine.token = secrets.token_hex(16)
        if resource not in mine.packed:
            mine.packed[resource] = self.packed(resource, mine.token)
        return mine

    def _said(self, sockets: list[socket.socket], command: bytes) -> bool:
        """Return whether all masters say yes."""
        for connected in sockets:
            connected.send(command)
        granted = 0
        for connected in sockets:
            granted += connected.recv(4096).startswith(self.yes)
        return granted == len(sockets)

    def acquire(self, resource: str) -> Any:
        mine = self._ready(resource)
        acquire, release = mine.packed[resource]
        return release if self._said(mine.sockets, acquire) else None

    def wait(self, resource: str) -> Any:
        return self.acquire(resource)

    def release(self, held: Any) -> None:
        if not self._said(self._mine.sockets, held):
            raise RuntimeError("the floor did not free what it held")


class PlainSet(SameBytes):
    """SET NX PX and compare-and-delete: no fence, no index, no holder, no trust."""

    prefix = ""
    packed = staticmethod(plain_pair)
    yes = (b"+OK\r\n", b":1\r\n")

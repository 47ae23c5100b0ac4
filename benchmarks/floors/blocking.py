"""Raw blocking sockets with prepared bytes: N sends, then N reads, and nothing else.

No timeout, no error handling, no early return at a majority. Each thread has its own connections.
"""

from __future__ import annotations

import secrets
import socket
import threading
from hashlib import sha1
from typing import Any

from benchmarks.floors.tape import Tape
from benchmarks.worker.contender import TTL

FREE = b"if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) end return 0"


def connect(masters: list[Any]) -> list[socket.socket]:
    """The connections to all masters."""
    made = [socket.create_connection(place) for place in masters]
    for connected in made:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


class SameBytes:
    """Sends the bytes of redlock_django (see `tape`) to every master and reads the answers."""

    masters_used = None

    def __init__(self, masters: list[Any], *, tape: dict[str, list[str]]) -> None:
        self._masters = [tuple(place) for place in masters]
        self._mine = threading.local()
        self._tape: Tape | None = Tape(**tape)
        self._tape.trust(self._masters)

    def key(self, resource: str) -> str:
        return f"redlock:lock:{resource}"

    def _packed(self, resource: str) -> tuple[list[bytes], list[bytes]]:
        assert self._tape is not None
        return self._tape.play(resource, self._mine.token)

    def _ready(self, resource: str) -> Any:
        mine = self._mine
        if not hasattr(mine, "sockets"):
            mine.sockets, mine.packed = connect(self._masters), {}
            mine.token = secrets.token_hex(16).encode()
        if resource not in mine.packed:
            mine.packed[resource] = self._packed(resource)
        return mine

    def acquire(self, resource: str) -> Any:
        mine = self._ready(resource)
        sockets = mine.sockets
        acquire, release = mine.packed[resource]
        for place, connected in enumerate(sockets):
            connected.send(acquire[place])
        granted = 0
        for connected in sockets:
            granted += self._yes(connected.recv(4096))
        return release if granted == len(sockets) else None

    def wait(self, resource: str) -> Any:
        return self.acquire(resource)

    def release(self, held: Any) -> None:
        sockets = self._mine.sockets
        for place, connected in enumerate(sockets):
            connected.send(held[place])
        freed = 0
        for connected in sockets:
            freed += self._yes(connected.recv(4096))
        if freed != len(sockets):
            raise RuntimeError("the floor did not free what it held")

    def _yes(self, said: bytes) -> bool:
        # A grant is no array; a refusal is.
        return said.startswith((b":", b"$"))


class PlainSet(SameBytes):
    """SET NX PX and compare-and-delete: no fence, no index, no holder, no trust."""

    def __init__(self, masters: list[Any]) -> None:
        self._masters = [tuple(place) for place in masters]
        self._mine = threading.local()
        for connected in connect(self._masters):
            connected.sendall(_spell(b"SCRIPT", b"LOAD", FREE))
            connected.recv(4096)
            connected.close()

    def key(self, resource: str) -> str:
        return resource

    def _packed(self, resource: str) -> tuple[list[bytes], list[bytes]]:
        key, value = resource.encode(), self._mine.token
        acquire = _spell(b"SET", key, value, b"NX", b"PX", b"%d" % (TTL * 1000))
        hashed = sha1(FREE, usedforsecurity=False).hexdigest().encode()
        release = _spell(b"EVALSHA", hashed, b"1", key, value)
        return [acquire] * len(self._masters), [release] * len(self._masters)

    def _yes(self, said: bytes) -> bool:
        return said in (b"+OK\r\n", b":1\r\n")


def _spell(*words: bytes) -> bytes:
    packed = b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
    return b"*%d\r\n%s" % (len(words), packed)

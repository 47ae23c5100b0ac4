"""asyncio, one connection for each master, the writes of one turn of the loop joined.

It sends what redlock_django sends and waits for all the answers; no timeouts, no errors.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from typing import Any

import hiredis

from benchmarks.floors.blocking import trust
from benchmarks.floors.commands import pair
from benchmarks.worker.contender import Contender
from redlock_django.engine.protocol.commands import as_array


class _Line(asyncio.Protocol):
    """The connection to one master."""

    def __init__(self) -> None:
        self.out = bytearray()
        self.owed: deque[_Round] = deque()
        self._reader = hiredis.Reader()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while (said := self._reader.gets()) is not False:
            self.owed.popleft().answer(said)


class _Round:
    __slots__ = ("answered", "left", "yes")

    def __init__(self, masters: int, answered: asyncio.Future[None]) -> None:
        self.left, self.yes, self.answered = masters, 0, answered

    def answer(self, said: Any) -> None:
        self.left -= 1
        self.yes += as_array(said)[1] == 1
        if not self.left:
            self.answered.set_result(None)


class SameBytes(Contender):
    """The async API."""

    prefix = "redlock:lock:"

    def __init__(self, masters: list[Any]) -> None:
        self._masters = masters
        trust(masters)
        self._token = secrets.token_hex(16)
        self._packed: dict[str, tuple[bytes, bytes]] = {}
        self._lines: list[_Line] = []
        self._flushing = False

    async def connect(self) -> None:
        self._loop = asyncio.get_running_loop()
        for host, port in self._masters:
            _, line = await self._loop.create_connection(_Line, host, port)
            self._lines.append(line)

    async def acquire(self, resource: str) -> Any:
        packed = self._packed.get(resource)
        if packed is None:
            packed = self._packed[resource] = pair(resource, self._token)
        return packed[1] if await self._say(packed[0]) else None

    async def wait(self, resource: str) -> Any:
        return await self.acquire(resource)

    async def release(self, held: Any) -> None:
        if not await self._say(held):
            raise RuntimeError("the floor did not free what it held")

    async def _say(self, packed: bytes) -> bool:
        asked = _Round(len(self._lines), self._loop.create_future())
        for line in self._lines:
            line.out += packed
            line.owed.append(asked)
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)
        await asked.answered
        return asked.yes == len(self._lines)

    def _flush(self) -> None:
        self._flushing = False
        for line in self._lines:
            line.transport.write(bytes(line.out))
            line.out.clear()

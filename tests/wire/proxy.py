"""A TCP proxy that delays, holds, slices and cuts connections as networks do, with or without TLS.

It never repeats or reorders data, as a TCP stream cannot.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    import ssl
    from collections.abc import Coroutine, Iterator, Sequence
    from types import TracebackType

    from redlock_django.testing.masters import LocalMaster

_AT_ONCE = struct.pack("ii", 1, 0)


class FaultProxy:
    """A proxy in front of 127.0.0.1:`target`; use it as a context manager.

    `delay_up` and `delay_down` are seconds, to the master and back. `slices` forwards replies
    in pieces of one byte. `lose_replies` forwards requests and cuts the connection instead of
    forwarding the first reply. Set them at any time; they apply to what arrives from then on.
    """

    port: int

    def __init__(self, target: int, *, tls: ssl.SSLContext | None = None) -> None:
        self.delay_up = 0.0
        self.delay_down = 0.0
        self.slices = False
        self.lose_replies = False
        self.lost = threading.Event()
        self._target = target
        self._tls = tls
        self._loop = asyncio.new_event_loop()
        self._writers: set[asyncio.StreamWriter] = set()
        self._forgotten: set[asyncio.StreamWriter] = set()
        self._pumps: set[asyncio.Task[Any]] = set()
        # The connection to the master, for each connection of a client.
        self._routes: dict[asyncio.StreamWriter, asyncio.StreamWriter] = {}
        self._server: asyncio.Server | None = None
        self._reserved = socket.socket()
        self._open = asyncio.Event()
        self._open.set()
        self._thread = threading.Thread(target=self._serve, name="proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        # Keep the port when `refuse` closes it: the kernel could give it to another connection.
        self._reserved.bind(("127.0.0.1", 0))
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.port = self._reserved.getsockname()[1]
        self.accept()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.refuse()
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._reserved.close()

    @property
    def url(self) -> str:
        """Return the URL that a client connects to, without TLS options."""
        return f"{'rediss' if self._tls else 'redis'}://127.0.0.1:{self.port}/0"

    def hold(self) -> None:
        """Hold all replies until `let_go`, which sends them in one piece."""
        self._loop.call_soon_threadsafe(self._open.clear)

    def let_go(self) -> None:
        """Forward what was held, where the connection is still open."""
        self._loop.call_soon_threadsafe(self._open.set)

    def cut(self) -> None:
        """Reset every connection, on both sides."""
        self._do(self._cut())

    def forget(self) -> None:
        """Reset each connection that is open now when its client sends the next byte."""
        self._forgotten = set(self._writers)

    def lead_to(self, target: int) -> None:
        """Forward to another server from now on, as an address does after a failover."""
        self._target = target
        self.cut()

    def switch(self, target: int) -> None:
        """Forward to another server, and keep the connections of clients as managed proxies do."""
        self._target = target
        self._do(self._switch())

    def refuse(self) -> None:
        """Refuse new connections and reset the old ones."""
        self._do(self._refuse())

    def accept(self) -> None:
        """Accept connections (again), on the same port as before."""
        self._do(self._accept())

    def _do(self, work: Coroutine[object, object, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    async def _accept(self) -> None:
        self._server = await asyncio.start_server(
            self._connected, "127.0.0.1", self.port, ssl=self._tls
        )

    async def _refuse(self) -> None:
        if self._server is not None:
            # A connection being accepted needs its server, or it is never closed.
            for listener in self._server.sockets:
                self._loop.remove_reader(listener.fileno())
            for _ in range(5):
                await asyncio.sleep(0)
            self._server.close()
            self._server = None
        await self._cut()

    async def _cut(self) -> None:
        for writer in list(self._writers):
            self._reset(writer)

    async def _switch(self) -> None:
        for to_client, old in list(self._routes.items()):
            from_master, to_master = await asyncio.open_connection("127.0.0.1", self._target)
            self._writers.add(to_master)
            self._routes[to_client] = to_master
            self._reset(old)
            down = asyncio.create_task(self._down(from_master, to_client))
            self._pumps.add(down)
            down.add_done_callback(partial(self._ended, to_client, to_master))

    def _ended(
        self,
        to_client: asyncio.StreamWriter,
        to_master: asyncio.StreamWriter,
        down: asyncio.Task[Any],
    ) -> None:
        """Reset both sides once the master has closed, unless another one is used instead."""
        self._pumps.discard(down)
        if self._routes.get(to_client) is to_master:
            del self._routes[to_client]
            self._reset(to_client)
        self._reset(to_master)

    async def _end(self) -> None:
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)
        for _ in range(5):  # the handler of the last accepted one starts, and is reset
            await asyncio.sleep(0)
            await self._cut()
        # A connection in its TLS handshake has no handler yet.
        shaking = asyncio.all_tasks() - {asyncio.current_task()}
        for task in shaking:
            task.cancel()
        await asyncio.gather(*shaking, return_exceptions=True)
        await asyncio.sleep(0)  # in which its transport is closed

    def _reset(self, writer: asyncio.StreamWriter) -> None:
        raw: socket.socket | None = writer.get_extra_info("socket")
        if raw is not None:
            with suppress(OSError):
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
        writer.transport.abort()
        self._writers.discard(writer)

    async def _connected(
        self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter
    ) -> None:
        self._writers.add(to_client)
        opening = asyncio.create_task(asyncio.open_connection("127.0.0.1", self._target))
        self._pumps.add(opening)  # so that `_end` can cancel it
        try:
            from_master, to_master = await opening
        except (OSError, asyncio.CancelledError):
            self._reset(to_client)
            return
        finally:
            self._pumps.discard(opening)
        self._writers.add(to_master)
        self._routes[to_client] = to_master
        up = asyncio.create_task(self._up(from_client, to_client))
        down = asyncio.create_task(self._down(from_master, to_client))
        down.add_done_callback(partial(self._ended, to_client, to_master))
        self._pumps |= {up, down}
        # The direction that ends first ends both.
        with suppress(asyncio.CancelledError):
            await up
        self._pumps.discard(up)
        down.cancel()
        if (route := self._routes.pop(to_client, None)) is not None:
            self._reset(route)
        self._reset(to_client)

    async def _up(self, reader: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                if self.delay_up:
                    await asyncio.sleep(self.delay_up)
                writer = self._routes.get(to_client)
                if writer is None or writer in self._forgotten:
                    return
                writer.write(data)

    async def _down(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                if self.lose_replies:
                    self.lost.set()
                    return
                if not self._open.is_set():
                    await self._open.wait()
                    with suppress(TimeoutError):
                        # Everything that came meanwhile goes in the same segment.
                        while more := await asyncio.wait_for(reader.read(65536), 0.02):
                            data += more
                if self.delay_down:
                    await asyncio.sleep(self.delay_down)
                for piece in [data[i : i + 1] for i in range(len(data))] if self.slices else [data]:
                    writer.write(piece)
                    if self.slices:
                        await asyncio.sleep(0)


@contextmanager
def behind(masters: Sequence[LocalMaster]) -> Iterator[list[FaultProxy]]:
    """Yield a proxy in front of each of these masters."""
    with ExitStack() as stack:
        yield [stack.enter_context(FaultProxy(master.port)) for master in masters]

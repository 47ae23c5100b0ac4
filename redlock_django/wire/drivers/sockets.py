"""The sockets of `Links`: what both drivers, for threads and for event loops, do for the core.

They read, send, close and dial; nothing here decides anything about a lock. Nothing here blocks
(except for `shut`), and a driver admits one thread at a time.
"""

from __future__ import annotations

import socket
import ssl
import struct
import threading
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import BuiltinMethodType
from typing import Any, Protocol

from redlock_django.wire.clock import clock
from redlock_django.wire.drivers.dialing import Dialing
from redlock_django.wire.links.link import ProtocolDesync, broken
from redlock_django.wire.links.links import Links
from redlock_django.wire.links.master import Master
from redlock_django.wire.notice import Notice
from redlock_django.wire.servers.trust import Joined, Unfit

CHUNK = 65536
BACKLOG = 2048
"""How many bytes of late replies are received at once: about forty replies.

A master that was hung sends hundreds of them together. The thread that reads them for all would not
get to its own round for tens of milliseconds.
"""
WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
NOT_BROKEN = (*WOULD_BLOCK, TimeoutError)


class Driver(Protocol):
    """The driver of the links, as far as its sockets need it: for threads or for an event loop."""

    def watch(self, master: Master, connection: LinkSocket) -> None:
        """Watch a connection until it is readable, or writable if it is `blocked`."""

    def unwatch(self, connection: LinkSocket) -> None:
        """Stop watching a connection, which is about to be closed."""

    def changed(self) -> None:
        """Wake the callers that wait for links: a master came or went."""

    def deliver(self, index: int, result: Joined | Unfit) -> bool:
        """Take the result of a connecting thread, in that thread; False ends the thread.

        A connection that is not taken is closed here, because the thread cannot know.
        """


class Sockets:
    """The connections of one process or one loop to all masters of an alias.

    They read and send for `links` what the links have decided, for a `driver` that knows when.
    """

    def __init__(self, links: Links, driver: Driver, notice: Notice) -> None:
        self.links = links
        self.closed = threading.Event()
        self._driver = driver
        self._notice = notice

    def read(self, masters: Iterable[Master]) -> None:
        """Read what masters have sent, without blocking, and count it."""
        links = self.links
        for master in masters:
            if (link := master.link) is None:
                continue
            try:
                # The bytes are received and kept in one step, as in `LinkSocket.send`.
                [data] = map(link.connection.recv, (BACKLOG if link.expired else CHUNK,))
            except WOULD_BLOCK:
                if not link.received and not link.parsing:  # as an interrupt may have left them
                    continue
            except (OSError, ProtocolDesync) as error:
                links.changes.lose(master, broken(error), ended=isinstance(error, OSError))
                continue
            else:
                if not data:
                    links.changes.lose(master, "closed the connection", ended=True)
                    continue
                link.received += data
            links.replies.feed(master, link, clock())

    def read_late(self) -> None:
        """Read late masters before a round: they may have answered by now."""
        if late := self.links.changes.late:
            self.read(late)

    def flush(self) -> None:
        """Do what the links have left to do: send the queued bytes, close, and dial."""
        links, dirty = self.links, self.links.dirty
        while dirty:
            for master in [*dirty]:
                if (link := master.link) is None:
                    self._come_and_go(master)
                else:
                    connection = link.connection
                    try:
                        blocked = connection.send(link.out)
                    except (OSError, ProtocolDesync) as error:
                        links.changes.lose(master, broken(error), ended=isinstance(error, OSError))
                        continue
                    if blocked is not connection.blocked:
                        connection.blocked = blocked
                        self._driver.watch(master, connection)
                dirty.discard(master)  # last: what an interrupt strikes is done again
        if links.changes.changed:
            links.changes.changed = False
            self._driver.changed()

    def waited(self, asked: float, took: float, now: float) -> None:
        """Count a poll that was to last `asked` seconds, took `took`, and ended `now`."""
        if self.links.lateness.running.polled(asked, took, now):
            self.judge(now)

    def judge(self, now: float) -> None:
        """Judge which replies are late, after one more read of their masters."""
        for master in self.links.lateness.overdue(now):
            self._read_all(master)
        self.links.judge(now)

    def _read_all(self, master: Master) -> None:
        """Read all that a master has sent, or a part of it if its oldest reply has expired."""
        while (link := master.link) is not None:
            owed = len(link.owed)
            self.read((master,))
            if len(link.owed) == owed or not link.owed or link.expired:
                return

    # Connections come and go.

    def connect(self) -> None:
        """Begin to connect to every master that no thread connects to yet."""
        self.links.changes.connect()
        self.flush()

    def arrived(self, index: int, result: Joined | Unfit) -> bool:
        """Handle the end of an attempt to connect; return whether another attempt must follow."""
        master = self.links.masters[index]
        if isinstance(result, Unfit):
            self.links.changes.failed(master, result)
            return True
        result.socket.setblocking(False)
        connection = LinkSocket(result.socket)
        self.links.changes.joined(master, result, connection)
        self._driver.watch(master, connection)
        return False

    def _come_and_go(self, master: Master) -> None:
        """Close the connection of a link that is lost, and begin to connect again."""
        if master.lost is not None:
            connection: LinkSocket = master.lost.connection
            if not connection.is_closed:  # as an interrupt may have left it
                self._driver.unwatch(connection)
                # A link that is closed on purpose still delivers its releases.
                connection.close(cut=not self.closed.is_set())
            master.lost = None
        if master.undialed is not None and not self.closed.is_set():
            self._dial(master, *master.undialed)

    def _dial(self, master: Master, reason: str, delay: float) -> None:
        master.reason = reason
        if not delay:
            self.links.changes.connecting.add(master)
        driver = weakref.WeakMethod(self._driver.deliver)
        dialing = Dialing(master, self.links, self._notice, self.closed, driver)
        thread = threading.Thread(
            target=dialing.run,
            args=(delay, reason if delay else ""),
            name=f"redlock-dial-{master.address.name}",
            daemon=True,
        )
        try:
            thread.start()
        except RuntimeError as error:  # the process may have no more threads now
            self.links.changes.not_dialed(master, error)
            return
        # Not earlier: if an interrupt strikes above, another thread is started. If both connect,
        # the driver takes the first connection only.
        master.undialed, master.undialed_logged = None, False

    # The end.

    def shut(self) -> None:
        """Close every link; waiting callers get a failed vote.

        Blocks for at most MASTER_TIMEOUT while masters still answer: a server whose answer is
        refused reads no further, and the last releases may be among the bytes that it has not read.
        """
        self.closed.set()
        self.links.finish()
        self.flush()
        connections: list[LinkSocket] = [
            master.link.connection for master in self.links.owing() if master.link is not None
        ]
        for connection in connections:
            with suppress(OSError):
                connection.socket.shutdown(socket.SHUT_WR)
        until = clock() + self.links.master_timeout
        for connection in connections:
            connection.drain(until)
        self.links.close()
        self.flush()

    def abandon(self) -> None:
        """Drop all links without sending a byte: after a fork, and for a loop that was closed."""
        self.closed.set()
        self.links.abandon()
        for master in self.links.masters:
            if master.lost is not None:
                master.lost.connection.close(cut=False)
                master.lost = None

    def forked(self) -> None:
        """Drop all links in the child of a fork."""
        # Another thread of the parent may have held the lock inside the event; in the child
        # nothing would ever release it.
        self.closed = threading.Event()
        self.abandon()


class LinkSocket:
    """The socket of one link."""

    __slots__ = ("blocked", "recv", "send_some", "socket")

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self.blocked = False  # the socket accepts no more bytes now
        self.recv: Callable[[int], bytes] = connected.recv
        self.send_some: Callable[[bytearray], int] = connected.send
        if isinstance(connected, ssl.SSLSocket):
            self.recv = _all_of(_asked_twice(self.recv))
            self.send_some = _asked_twice(self.send_some)
        if not isinstance(self.recv, BuiltinMethodType):
            self.recv = _in_order(self.recv, "receive")
        if not isinstance(self.send_some, BuiltinMethodType):
            self.send_some = _in_order(self.send_some, "send")

    def send(self, out: bytearray) -> bool:
        """Send bytes, and return whether some are left because the socket accepts no more now.

        What is sent is removed from `out`. Raises OSError, or ProtocolDesync.
        """
        while out:
            try:
                # The bytes are sent and counted in one step of Python, during and after which no
                # signal is handled before the next line is done: see
                # docs/contributing/interrupts.md. A process that ends by Ctrl-C has no time to
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

    @property
    def is_closed(self) -> bool:
        """True once the socket was closed: a loop cannot stop watching it any more."""
        return self.socket.fileno() < 0

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
            while True:  # without a condition: see docs/contributing/interrupts.md
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

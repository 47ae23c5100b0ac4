"""The poll that one thread makes for all: which links can be read, or take more bytes."""

from __future__ import annotations

import select
import socket
from contextlib import suppress
from select import POLLIN, POLLOUT

from redlock_django.wire.link.master import Master


class Poller:
    """A poll of the links of one process, which any thread may end."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._receiver, self._sender = socket.socketpair()
        for end in (self._receiver, self._sender):
            end.setblocking(False)
        self._poll.register(self._receiver.fileno(), POLLIN)
        # The masters, by the descriptor of their link and the one event that ends nearly every
        # poll.
        self._readable: dict[tuple[int, int], Master] = {}

    def watch(self, master: Master) -> None:
        """Watch a master's link from now on, also until it takes more bytes if it is `blocked`."""
        assert master.link is not None
        fd = master.link.socket.fileno()
        self._readable[fd, POLLIN] = master
        self._poll.register(fd, POLLIN | (POLLOUT if master.link.blocked else 0))
        self.wake()  # a poll under way does not notice the change

    def unwatch(self, master: Master) -> None:
        """Stop watching a master's link, which is about to be closed."""
        assert master.link is not None
        fd = master.link.socket.fileno()
        self._readable.pop((fd, POLLIN), None)
        with suppress(KeyError, ValueError):
            self._poll.unregister(fd)

    def poll(self, seconds: float) -> tuple[list[Master], list[Master]]:
        """Wait, and return the masters to read and those whose links take more bytes."""
        events = self._poll.poll(int(seconds * 1000) + 1)
        try:
            return list(map(self._readable.__getitem__, events)), []
        except KeyError:
            return self._sort(events)

    def _sort(self, events: list[tuple[int, int]]) -> tuple[list[Master], list[Master]]:
        """Return what `poll` does, for events of any kind."""
        readable, writable = [], []
        for fd, event in events:
            master = self._readable.get((fd, POLLIN))
            if master is None:
                with suppress(OSError):
                    self._receiver.recv(4096)
                continue
            if event & POLLOUT:
                writable.append(master)
            if event != POLLOUT:
                readable.append(master)
        return readable, writable

    def wake(self) -> None:
        """End a poll under way, or the next one."""
        with suppress(OSError):
            self._sender.send(b"!")

    def close(self) -> None:
        """Close what wakes it. It cannot be used afterwards."""
        for end in (self._receiver, self._sender):
            end.close()

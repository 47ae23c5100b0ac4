"""Ports for servers that take a number, not a socket."""

from __future__ import annotations

import random
import socket

# Below the range from which the kernel picks ports for outgoing connections and for whoever
# binds port 0: there, somebody else could have the port by the time a server has started.
_PORTS = range(10_000, 20_000)


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on."""
    while True:
        port = random.choice(_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port

"""Free ports, for servers that are given a port number instead of a socket."""

from __future__ import annotations

import random
import socket

# Below the range from which the kernel picks ports for outgoing connections and for binding port
# 0: another process could have taken a port of that range before the server has started.
_PORTS = range(10_000, 20_000)


def free_port() -> int:
    """Return a port of 127.0.0.1 that no process listens on."""
    while True:
        port = random.choice(_PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port

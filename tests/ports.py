"""Free ports, for servers that are given a port number instead of a socket."""

from __future__ import annotations

import atexit
import random
import socket
from contextlib import ExitStack

# Below the range from which the kernel picks ports for outgoing connections and for binding port
# 0: another process could have taken a port of that range before the server has started.
_PORTS = range(10_000, 20_000)

_reserved = ExitStack()
atexit.register(_reserved.close)


def free_port() -> int:
    """Return a port of 127.0.0.1 that no process listens on.

    Until this process ends, no other call returns it, in any process: a server may take seconds
    to start, and a test may expect that nothing listens.
    """
    while True:
        port = random.choice(_PORTS)
        # The reservation is the same port of UDP, which no server here uses.
        with socket.socket() as probe, socket.socket(type=socket.SOCK_DGRAM) as reserved:
            try:
                probe.bind(("127.0.0.1", port))
                reserved.bind(("127.0.0.1", port))
            except OSError:
                continue
            _reserved.enter_context(reserved.dup())
            return port

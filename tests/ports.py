"""Free ports, for servers that are given a port number instead of a socket."""

from __future__ import annotations

import atexit
from contextlib import ExitStack

from redlock_django.testing.masters import reserve_ports

_reserved = ExitStack()
atexit.register(_reserved.close)


def free_port() -> int:
    """Return a port of 127.0.0.1 that no process listens on.

    Until this process ends, no other call returns it, in any process: a server may take seconds
    to start, and a test may expect that nothing listens.
    """
    [port] = reserve_ports(1, _reserved)
    return port

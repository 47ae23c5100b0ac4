"""Connections to the masters: the transport of the engine's rounds. Knows nothing of Django.

`links` is the core: the links to all masters of an alias, without a socket, clock or thread: bytes
in, bytes and verdicts out. `drivers` has the sockets and two drivers of the core: one for threads,
one for each event loop. `servers` reads where a master is, connects, and asks whether the master is
trusted.
"""

"""The core: the links to all masters of an alias, without a socket, clock, thread or mutex."""

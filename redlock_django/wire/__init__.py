"""Connections to the masters: the transport of the engine's rounds. Knows nothing of Django.

`servers` reads where a master is, connects, and asks whether the master is trusted. `link` has one
connection as a pipeline, and the state of its master. `judging` watches for late masters and for
clocks that step. `links` joins them for all masters of an alias, and has the waiters that masters
call. `drivers` runs the links: one driver for threads, one for each event loop.
"""

"""Connections to the masters: the transport of the engine's rounds. Knows nothing of Django.

`address` reads where a master is, `join` opens a connection and asks whether the master is trusted,
`link` is one connection as a pipeline, `master` has the state of one master, `steps` watches the
masters' clocks, `links` has what the sync and async variants share (order, breaker, restart guard),
and `sync` and `aio` are the two variants. `declaration` serves redlock_init.
"""

"""BYTES TO MASTERS: what carries the engine's rounds. No Django.

`address` says where a master is, `join` makes a connection and asks whether the master
may be trusted, `link` is one connection as a pipeline, `master` what we know of one master,
`steps` watches its clock, `links` is what both colours share (order, breaker, restart
guard), and `sync` and `aio` are the two ways to wait. `declare` serves redlock_init.
"""

"""BYTES TO MASTERS: what carries the engine's rounds. No Django.

`address` says where a master is, `join` makes a connection and asks whether the master
may be trusted, `link` is what both colours share (pipeline order, owed replies, breaker,
restart guard), and `sync` and `aio` are the two ways to wait.
"""

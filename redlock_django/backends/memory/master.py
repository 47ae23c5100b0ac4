"""One master in memory, which runs the scripts that are sent to servers.

`MemoryMaster` replies as a server does, and its clock can be set. The memory backend and
the simulator of the test suite both run it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any

from redlock_django.backends.memory.interpreter import interpreter
from redlock_django.backends.memory.keyspace import Keyspace, bytes_of
from redlock_django.engine.protocol.commands import Argument, Command, Reply, decode, script
from redlock_django.engine.protocol.query import Answer, Query
from redlock_django.wire.clock import wall_ns


def encoded(argv: Sequence[Argument]) -> list[bytes]:
    """Return ARGV as a server receives it, in bytes."""
    return [part if isinstance(part, bytes) else str(part).encode() for part in argv]


class MemoryMaster:
    """One master in memory, with its `keyspace`; `time` returns its clock in µs.

    A server that restarts gets a new `run_id`.
    """

    def __init__(self, time: Callable[[], int] = lambda: wall_ns() // 1000) -> None:
        self.keyspace = Keyspace(time)
        self.run_id = secrets.token_hex(20)

    def forked(self) -> None:
        """Forget, after a fork, a script that a thread of the parent process was running."""
        interpreter.cache_clear()
        self.keyspace.began = 0

    def say(self, command: Command, number: int, marker: bytes = b"", ready_at: int = 0) -> Reply:
        """Return the reply to a command."""
        argv: list[Argument] = [number, *command.arguments()]
        if command.trusted:
            argv += [marker, ready_at]
        return decode(self.run(command, command.keys(), encoded(argv)))

    def ask(self, query: Query[Answer], /) -> Answer:
        """Return the answer to a query."""
        return query.read(self.run(query, query.keys(), encoded([0, *query.arguments()])))

    def run(self, sent: Command | Query[Any], keys: list[str], argv: list[bytes]) -> Any:
        """Return the reply of the script of a command or query to these KEYS and ARGV."""
        text, _ = script(sent.name, sent.deployment, failover=False)  # no server takes its place
        return interpreter().run(text, self.keyspace, [bytes_of(key) for key in keys], argv)

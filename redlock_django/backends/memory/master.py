"""One master in memory: the scripts of `engine/protocol/lua` in Python.

`MemoryMaster` replies as a server does, and its clock can be set. The memory backend and
the simulator of the test suite both run it.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Sequence

from redlock_django.backends.memory import inspection, scripts, slot_script
from redlock_django.backends.memory.keyspace import Keyspace, ScriptReply
from redlock_django.engine.protocol.commands import Argument, Command
from redlock_django.wire.clock import wall_ns

Script = Callable[[Keyspace, int, list[str], list[bytes]], ScriptReply]

SCRIPTS: dict[str, Script] = {
    "acquire": scripts.acquire,
    "acquire_slot": slot_script.acquire_slot,
    "confirm": scripts.confirm,
    "extend": scripts.extend,
    "heal": scripts.heal,
    "join": scripts.join,
    "release": scripts.release,
    "restore": scripts.restore,
    "swap": scripts.swap,
    "held": inspection.held,
    "find": inspection.find,
    "look": inspection.look,
    "scan": inspection.scan,
}


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
        self.forked()

    def forked(self) -> None:
        """Forget, after a fork, a script that a thread of the parent process was running."""
        self.alone = threading.RLock()  # a server runs one script at a time
        self.keyspace.script_ms = 0

    def say(
        self, command: Command, number: int, marker: bytes = b"", ready_at: int = 0
    ) -> ScriptReply:
        """Return the reply to a command, as it would arrive on a connection."""
        argv: list[Argument] = [number, *command.arguments()]
        if command.trusted:
            argv += [marker, ready_at]
        return self.eval(command.name, list(command.keys()), argv)

    def eval(self, script: str, keys: list[str], argv: list[Argument]) -> ScriptReply:
        """Return the reply of the script of that name to these KEYS and ARGV."""
        return self.run(script, keys, encoded(argv))

    def run(self, script: str, keys: list[str], argv: list[bytes]) -> ScriptReply:
        """Return the same reply for ARGV in bytes."""
        keyspace = self.keyspace
        with self.alone:
            now = keyspace.time()
            keyspace.script_ms = now // 1000
            try:
                return [int(argv[0]), *SCRIPTS[script](keyspace, now, keys, argv)]
            finally:
                keyspace.script_ms = 0

"""Helpers that run a management command and return its exit status and output."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any, NamedTuple

from django.core.management import CommandError, call_command

from redlock_django.backends.memory.backend import MemoryBackend
from redlock_django.locking.services import locks

THREE_IN_MEMORY = {
    "BACKEND": "redlock_django.backends.memory.MemoryBackend",
    "MASTERS": [f"redis://m{n}:6379/0" for n in (1, 2, 3)],
}

IN_MEMORY = {"default": THREE_IN_MEMORY, "other": THREE_IN_MEMORY}


class Ran(NamedTuple):
    """The result of a command: `out` is stdout, `said` is stderr with the error message."""

    status: int
    out: str
    said: str

    @property
    def json(self) -> Any:
        """The JSON document on stdout."""
        return json.loads(self.out)


def run(command: str, *arguments: str) -> Ran:
    """Run a command in this process. SystemExit is not caught: commands must not raise it."""
    out, err = StringIO(), StringIO()
    status, problem = 0, ""
    try:
        call_command(command, *arguments, stdout=out, stderr=err)
    except CommandError as error:
        status, problem = error.returncode, str(error)
    return Ran(status, out.getvalue(), err.getvalue() + problem)


def memory() -> MemoryBackend:
    """Return the backend of the default alias."""
    backend = locks["default"].backend
    assert isinstance(backend, MemoryBackend)
    return backend


def add_waiters(resource: str, many: int, master: int = 0) -> None:
    """Add so many clients that wait for a lock to its queue on one master."""
    queue = {f"process {number}".encode(): float(number) for number in range(many)}
    memory().masters[master].keyspace.sets[f"redlock:queue:{resource}"] = queue


def put(
    resource: str, value: bytes, masters: tuple[int, ...] = (0, 1, 2), ms: int = 30_000
) -> None:
    """Store a lock on some masters, in the form in which a client stores it."""
    for index in masters:
        master = memory().masters[index]
        master.keyspace.set(f"redlock:lock:{resource}", value, ms)
        listed = master.keyspace.sets.setdefault("redlock:held", {})
        listed[resource.encode(errors="surrogatepass")] = master.keyspace.time() // 1000 + ms

"""Workers that are forked from a process which has imported their library."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from pathlib import Path
from typing import IO, Any, Protocol

from redlock_django.testing.processes import ProcessGroup

ROOT = Path(__file__).resolve().parent.parent


class ForkFailed(Exception):
    """The process that forks workers has ended."""


class Process(Protocol):
    """The process of a worker, which may also be a `subprocess.Popen`."""

    stdin: IO[bytes] | None
    stdout: IO[bytes] | None

    def kill(self) -> None:
        """End the process."""

    def wait(self) -> Any:
        """Wait until it has ended."""


class Library:
    """A process that has imported a library, and forks workers (`worker/__main__.py`)."""

    def __init__(self, processes: ProcessGroup, command: list[str], module: str) -> None:
        self._log = processes.directory / f"{module}.log"
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, self._log.open("wb") as errors:
            processes.spawn(
                [*command, str(theirs.fileno()), module],
                pass_fds=[theirs.fileno()],
                stderr=errors,
                cwd=ROOT,
            )

    def fork(self, log: Path) -> Forked:
        """Return a new worker, on the processors of this process; its errors go to a file."""
        asks, stdin = os.pipe()
        stdout, answers = os.pipe()
        with log.open("wb") as errors:
            pid = self._ask([asks, answers, errors.fileno()], cpus=[*os.sched_getaffinity(0)])
        os.close(asks)
        os.close(answers)
        return Forked(self, pid, os.fdopen(stdin, "wb"), os.fdopen(stdout, "rb"))

    def end(self, pid: int) -> None:
        """End a worker and wait for it."""
        with contextlib.suppress(ForkFailed):
            self._ask([], end=pid)

    def _ask(self, streams: list[int], **asked: Any) -> int:
        with contextlib.suppress(OSError):
            socket.send_fds(self._channel, [json.dumps(asked).encode()], streams)
            if said := self._channel.recv(64):
                return int(said)
        last = self._log.read_text(errors="replace").strip().splitlines()[-1:]
        raise ForkFailed(*last or ["no output"])


class Forked:
    """The process of a forked worker."""

    def __init__(self, library: Library, pid: int, stdin: IO[bytes], stdout: IO[bytes]) -> None:
        self._library, self._pid = library, pid
        self.stdin: IO[bytes] | None = stdin
        self.stdout: IO[bytes] | None = stdout

    def kill(self) -> None:
        """End the process, and wait until it has ended."""
        if self._pid:
            self._library.end(self._pid)
        self._pid = 0

    def wait(self) -> None:
        """Do nothing: `kill` waits."""

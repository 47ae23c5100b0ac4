"""Workers: the processes that run the jobs, forked from one that has imported their library."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from benchmarks.harness.contenders import Contender
from benchmarks.harness.environments import program
from benchmarks.harness.workload import WorkerFailed
from redlock_django.testing.processes import ProcessGroup

ROOT = Path(__file__).resolve().parents[2]

PATIENCE = 30.0
"""Seconds beyond the length of a job after which a worker counts as failed."""


class Worker:
    """A contender in a separate process, which `end` ends."""

    def __init__(self, name: str, log: Path, asks: IO[bytes], answers: IO[bytes], end: Any) -> None:
        self._name, self._log, self._end = name, log, end
        self._asks, self._answers = asks, answers

    def ask(self, **job: Any) -> None:
        """Send a job without waiting for its result."""
        self._asks.write(json.dumps(job).encode() + b"\n")
        self._asks.flush()

    def answer(self, within: float) -> dict[str, Any]:
        """Return the result of the oldest job; raise WorkerFailed if it is late."""
        ready, _, _ = select.select([self._answers], [], [], within + PATIENCE)
        line = self._answers.readline() if ready else b""
        if not line:
            self.end()
            last = self._log.read_text(errors="replace").strip().splitlines()[-3:]
            word = " / ".join(last) or "no output"
            raise WorkerFailed(f"{self._name} {'ended' if ready else 'never answered'}: {word}")
        said: dict[str, Any] = json.loads(line)
        if "error" in said:
            raise WorkerFailed(f"{self._name}: {said['error'].strip().splitlines()[-1]}")
        return said

    def do(self, *, seconds: float, **job: Any) -> dict[str, Any]:
        """Run a job of `seconds` and return its result."""
        self.ask(seconds=seconds, **job)
        return self.answer(seconds)

    def end(self) -> None:
        """End the process, once."""
        end, self._end = self._end, lambda: None
        end()

    def close(self) -> None:
        """End the process and close its pipes."""
        self.end()
        for pipe in (self._asks, self._answers):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


class Library:
    """A process that has imported a library, and forks workers (`worker/__main__.py`)."""

    def __init__(self, processes: ProcessGroup, command: list[str], module: str) -> None:
        self._log = processes.directory / f"{module}.log"
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, self._log.open("wb") as errors:
            fd = theirs.fileno()
            command = [*command, str(fd), module]
            processes.spawn(command, pass_fds=[fd], stderr=errors, cwd=ROOT)

    def fork(self, name: str, log: Path) -> Worker:
        """Return a new worker, on the processors of this process; its errors go to a file."""
        asks, stdin = os.pipe()
        stdout, answers = os.pipe()
        with log.open("wb") as errors:
            pid = self._ask([asks, answers, errors.fileno()], cpus=[*os.sched_getaffinity(0)])
        os.close(asks)
        os.close(answers)

        def end() -> None:
            with contextlib.suppress(WorkerFailed):
                self._ask([], end=pid)

        return Worker(name, log, os.fdopen(stdin, "wb"), os.fdopen(stdout, "rb"), end)

    def _ask(self, streams: list[int], **asked: Any) -> int:
        with contextlib.suppress(OSError):
            socket.send_fds(self._channel, [json.dumps(asked).encode()], streams)
            if said := self._channel.recv(64):
                return int(said)
        last = self._log.read_text(errors="replace").strip().splitlines()[-1:] or ["no output"]
        raise WorkerFailed(f"{self._log.stem} ended: {last[0]}")


class Workers:
    """Starts workers of all contenders."""

    def __init__(self, processes: ProcessGroup) -> None:
        self._processes = processes
        self._libraries: dict[str, Library] = {}
        self._count = 0

    @contextlib.contextmanager
    def started(self, contender: Contender) -> Iterator[Worker]:
        """Yield a worker, which ends with the block."""
        self._count += 1
        log = self._processes.directory / f"worker-{self._count}.log"
        start = self._spawned if contender.environment == "node" else self._forked
        with contextlib.closing(start(contender, log)) as worker:
            yield worker

    def _spawned(self, contender: Contender, log: Path) -> Worker:
        command, pipe = program(contender.environment), subprocess.PIPE
        with log.open("wb") as errors:
            process = self._processes.spawn(
                command, stdin=pipe, stdout=pipe, stderr=errors, cwd=ROOT
            )
        assert process.stdin is not None
        assert process.stdout is not None

        def end() -> None:
            process.kill()
            process.wait()

        return Worker(contender.name, log, process.stdin, process.stdout, end)

    def _forked(self, contender: Contender, log: Path) -> Worker:
        module = contender.home.partition(":")[0]
        if module not in self._libraries:
            command = program(contender.environment)
            self._libraries[module] = Library(self._processes, command, module)
        try:
            return self._libraries[module].fork(contender.name, log)
        except WorkerFailed:
            del self._libraries[module]
            raise

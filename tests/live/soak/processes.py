"""The workers of the soak as processes: start, read, stop, kill and end them."""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from redlock_django.testing.processes import ProcessGroup
from tests.live.soak.history import Event
from tests.live.soak.worker import Task

if TYPE_CHECKING:
    import subprocess

ROOT = Path(__file__).resolve().parents[3]
TIMEOUT = 60.0  # seconds; nothing here takes more than one


class WorkerProcess:
    """One worker: its process, the events it has reported, and whether it is stopped."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name = name
        self.process = process
        self.stopped = False
        self.events: list[Event] = []
        self._log = log
        self._received = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith(b"\n"):
                with self._received:
                    self.events.append(Event(self.name, *json.loads(line)))
                    self._received.notify_all()

    def wait_for(self, what: str) -> None:
        """Wait until the worker has reported an event of this kind."""
        with self._received:
            reported = self._received.wait_for(
                lambda: any(e.what == what for e in self.events), TIMEOUT
            )
        assert reported, f"worker {self.name} has not reported {what!r}: {self.stderr_tail()}"

    def stop(self) -> None:
        """Stop the process (SIGSTOP)."""
        self.process.send_signal(signal.SIGSTOP)
        self.stopped = True

    def resume(self) -> None:
        """Continue the process (SIGCONT); no effect if it is running or has ended."""
        self.process.send_signal(signal.SIGCONT)
        self.stopped = False

    def kill(self) -> None:
        """Kill the process (SIGKILL), and read the events that it reported before."""
        self.process.kill()
        self.wait()

    def open_gate(self) -> None:
        """Allow a gated worker its next step: first to acquire the lock, then to write."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def terminate(self) -> None:
        """Send SIGTERM, and continue the process: it finishes what it is doing."""
        self.process.terminate()
        self.resume()

    def wait(self) -> int:
        """Wait until the process has ended and its events are read; return its exit status."""
        status = self.process.wait(TIMEOUT)
        self._reader.join(TIMEOUT)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
        return status

    def stderr_tail(self) -> str:
        """Return the end of what the process wrote to stderr."""
        return self._log.read_text()[-2000:]


class Workers:
    """All workers of one task, `running` or ended. Created by `workers_for`."""

    def __init__(self, processes: ProcessGroup, task: Task) -> None:
        self._processes = processes
        self._task = task
        self.running: list[WorkerProcess] = []
        self.started: list[WorkerProcess] = []

    def start(self, *, gated: bool = False) -> WorkerProcess:
        """Start another worker."""
        name = f"{self._task.seed}.{len(self.started) + 1}"
        log = self._processes.directory / f"{name}.log"
        task = replace(self._task, seed=name, gated=gated)
        with log.open("wb") as stderr:
            process = self._processes.spawn(
                [sys.executable, "-m", "tests.live.soak.worker", task.dumps()],
                cwd=ROOT, stdin=-1, stdout=-1, stderr=stderr,
            )  # fmt: skip
        worker = WorkerProcess(name, process, log)
        self.running.append(worker)
        self.started.append(worker)
        return worker

    def kill(self, worker: WorkerProcess) -> None:
        """Kill a worker; the outcome of its current step stays unknown."""
        self.running.remove(worker)
        worker.kill()

    def finish(self) -> list[str]:
        """End all workers; return an error for each that did not end well."""
        for worker in self.running:
            worker.terminate()
        ended, self.running = self.running, []
        return [
            f"worker {worker.name} ended with {status}: {worker.stderr_tail()}"
            for worker in ended
            # The signal itself ends a worker that has not started or has finished.
            if (status := worker.wait()) not in (0, -signal.SIGTERM)
        ]

    @property
    def events(self) -> list[Event]:
        """The events of all workers, in order for each worker."""
        return [event for worker in self.started for event in worker.events]


@contextmanager
def workers_for(task: Task) -> Iterator[Workers]:
    """Yield workers for a task, none started yet; kill those that run when the block ends."""
    with ProcessGroup("redlock-soak-") as processes:
        workers = Workers(processes, task)
        yield workers
        for worker in list(workers.running):
            workers.kill(worker)

"""The workers of the campaign as processes: start, read, command, kill and end them."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redlock_django.testing.processes import ProcessGroup
from tests.live.campaign.history import Event
from tests.live.clocks import Clock
from tests.programs import ROOT
from tests.waiting import until

if TYPE_CHECKING:
    import subprocess

    from tests.live.campaign.stores import Store


class WorkerProcess:
    """One worker: its process, its clock, and the events that it has reported."""

    def __init__(
        self, name: str, process: subprocess.Popen[bytes], clock: Clock, *, foreign: bool
    ) -> None:
        self.name = name
        self.process = process
        self.clock = clock
        self.foreign = foreign
        self.events: list[Event] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith(b"\n"):
                self.events.append(Event(*json.loads(line)))

    def wait_started(self) -> None:
        """Wait until the worker has reported its first try."""
        until(lambda: bool(self.events), f"{self.name} has started", seconds=60)

    def obey(self, command: str) -> None:
        """Send the worker a command."""
        assert self.process.stdin is not None
        self.process.stdin.write(command.encode() + b"\n")
        self.process.stdin.flush()

    def wait(self) -> int:
        """Wait until the process has ended and its events are read; return its exit status."""
        status = self.process.wait(30)
        self._reader.join(30)
        return status


class Workers:
    """All workers of a campaign, `running` or ended."""

    def __init__(self, store: Store, shim: Path, processes: ProcessGroup) -> None:
        self._store = store
        self._shim = shim
        self._processes = processes
        self.running: list[WorkerProcess] = []
        self.started: list[WorkerProcess] = []
        self.broken: list[str] = []

    def start(self, *, foreign: dict[str, Any] | None = None) -> WorkerProcess:
        """Start a worker; a `foreign` one uses these settings instead."""
        name = f"w{len(self.started) + 1}"
        clock = self._store.clock_of(Clock(self._processes.directory / f"{name}.clock"))
        shift = {"LD_PRELOAD": str(self._shim), "CLOCK_SHIFT": str(clock.path)}
        given = json.dumps(foreign or self._store.settings)
        log = self._processes.directory / f"{name}.log"
        with log.open("wb") as stderr:
            process = self._processes.spawn(
                [sys.executable, "-m", "tests.live.campaign.worker", name, given],
                cwd=ROOT, stdin=-1, stdout=-1, stderr=stderr, env={**os.environ, **shift},
            )  # fmt: skip
        worker = WorkerProcess(name, process, clock, foreign=bool(foreign))
        self.started.append(worker)
        if not foreign:
            self.running.append(worker)
        return worker

    def any(self) -> WorkerProcess:
        """Return the worker that has run for the longest time."""
        return self.running[0]

    def kill(self, worker: WorkerProcess) -> None:
        """Kill a worker; the outcome of its current steps stays unknown."""
        self.running.remove(worker)
        worker.process.kill()
        worker.wait()

    def end(self, worker: WorkerProcess) -> None:
        """Wait until a worker has ended, and note an exit status other than success."""
        if worker in self.running:
            self.running.remove(worker)
        worker.obey("end")
        if (status := worker.wait()) != 0:
            log = self._processes.directory / f"{worker.name}.log"
            self.broken.append(f"{worker.name} ended with {status}: {log.read_text()[-2000:]}")

    @property
    def events(self) -> list[Event]:
        """The events of all workers, in order for each thread."""
        return [event for worker in self.started for event in worker.events]

"""The soak's workers as processes: hired, listened to, stopped, killed, sent home."""

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
PATIENCE = 60.0  # seconds for what takes one at most


class Member:
    """One worker; `said` is what it told so far, and `stopped` whether it is."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name = name
        self.process = process
        self.stopped = False
        self.said: list[Event] = []
        self._log = log
        self._heard = threading.Condition()
        self._ear = threading.Thread(target=self._listen, daemon=True)
        self._ear.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith(b"\n"):
                with self._heard:
                    self.said.append(Event(self.name, *json.loads(line)))
                    self._heard.notify_all()

    def wait_for(self, what: str) -> None:
        """Wait until it has said that."""
        with self._heard:
            there = self._heard.wait_for(lambda: any(e.what == what for e in self.said), PATIENCE)
        assert there, f"worker {self.name} has not said {what!r}: {self.last_words()}"

    def stop(self) -> None:
        """SIGSTOP."""
        self.process.send_signal(signal.SIGSTOP)
        self.stopped = True

    def resume(self) -> None:
        """SIGCONT; harmless on one that runs or is gone."""
        self.process.send_signal(signal.SIGCONT)
        self.stopped = False

    def kill(self) -> None:
        """SIGKILL, and hear what it said before."""
        self.process.kill()
        self.leave()

    def go_on(self) -> None:
        """Open the next gate of one that is gated: first to the lock, then to the writing."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def ask_to_leave(self) -> None:
        """SIGTERM, awake: it finishes what it is at."""
        self.process.terminate()
        self.resume()

    def leave(self) -> int:
        """Wait until it is gone and all it said is heard; its exit status."""
        status = self.process.wait(PATIENCE)
        self._ear.join(PATIENCE)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
        return status

    def last_words(self) -> str:
        """The end of what it wrote to stderr."""
        return self._log.read_text()[-2000:]


class Crew:
    """Some workers at the same task, and all that ever were; made by `crew`."""

    def __init__(self, processes: ProcessGroup, task: Task) -> None:
        self._processes = processes
        self._task = task
        self.working: list[Member] = []
        self.ever: list[Member] = []

    def hire(self, *, gated: bool = False) -> Member:
        """Start one more worker."""
        name = f"{self._task.seed}.{len(self.ever) + 1}"
        log = self._processes.directory / f"{name}.log"
        task = replace(self._task, seed=name, gated=gated)
        with log.open("wb") as stderr:
            process = self._processes.spawn(
                [sys.executable, "-m", "tests.live.soak.worker", task.dumps()],
                cwd=ROOT, stdin=-1, stdout=-1, stderr=stderr,
            )  # fmt: skip
        member = Member(name, process, log)
        self.working.append(member)
        self.ever.append(member)
        return member

    def kill(self, member: Member) -> None:
        """Kill one; what it was at stays unknown."""
        self.working.remove(member)
        member.kill()

    def go_home(self) -> list[str]:
        """Let everybody finish; what went wrong with those that did not end well."""
        for member in self.working:
            member.ask_to_leave()
        gone, self.working = self.working, []
        return [
            f"worker {member.name} ended with {status}: {member.last_words()}"
            for member in gone
            # By the signal itself: it had not begun yet, or was done.
            if (status := member.leave()) not in (0, -signal.SIGTERM)
        ]

    @property
    def events(self) -> list[Event]:
        """What everybody said, each in its order."""
        return [event for member in self.ever for event in member.said]


@contextmanager
def crew(task: Task) -> Iterator[Crew]:
    """Give a crew without workers; they are gone when the block is left."""
    with ProcessGroup("redlock-soak-") as processes:
        made = Crew(processes, task)
        yield made
        for member in list(made.working):
            made.kill(member)
